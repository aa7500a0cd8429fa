#include "layer_bench.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "reference/matmul.hpp"
#include "reference/token_format.hpp"
#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/detail/ep/tuning.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "workload/buffers.hpp"

namespace switchyard::tools {
namespace {

constexpr int kGateUpShift = 0, kDownShift = 1000003;
constexpr uint64_t kLeadMicroseconds = 50;
// Of a step that is no graph: all of its launches are submitted meanwhile.
constexpr uint64_t kTraceLeadMicroseconds = 3000;
constexpr size_t kMaxSpans = 16;

// Scales of fp8, such that sums over `inner` codes are about 1: what lies where can be told without reading
// it back.
float scale_at(size_t i, size_t inner) {
  return (0.5f + static_cast<float>(i % 61) / 64.0f) * 0.1f / std::sqrt(static_cast<float>(inner));
}

// The same of coded weights, and of a group's, the tensor scale.
uint8_t code_scale_of_layer(WeightFormat weights, size_t i, size_t inner) {
  if (weights == WeightFormat::kNVFP4) return static_cast<uint8_t>(0x38 + i % 8);
  const float scale = (weights == WeightFormat::kMXFP8 ? 0.1f : 0.4f) / std::sqrt(static_cast<float>(inner));
  return static_cast<uint8_t>(127 + std::ilogb(scale) + static_cast<int>(i % 2));
}
float tensor_scale_of_layer(WeightFormat weights, size_t group, size_t inner) {
  return weights == WeightFormat::kNVFP4 ? 3 * scale_at(group, inner) : 1.0f;
}

size_t bits_of(MatmulElement element, WeightFormat weights) {
  return static_cast<size_t>(is_coded(weights) ? code_bits_of(weights) : 8 * bytes_of(element));
}

// The values of a column of a group's weights.
std::vector<float> weights_of(const PeriodicNumbers& numbers, MatmulElement element, WeightFormat weights,
                              int shift, size_t group, size_t column, size_t columns, size_t inner) {
  const size_t pairs = inner * bits_of(element, weights) / 16, row = group * columns + column;
  const std::vector<bf16> of_column = numbers.at(shift, row * pairs, (row + 1) * pairs);
  if (is_coded(weights)) {
    std::vector<uint8_t> codes, scales;
    for (const bf16 number : of_column)
      for (const int bits : {0, 8}) codes.push_back(static_cast<uint8_t>(number.bits >> bits));
    const size_t num_scales = inner / static_cast<size_t>(scale_group_size(weights));
    for (size_t i = 0; i < num_scales; ++i)
      scales.push_back(code_scale_of_layer(weights, row * num_scales + i, inner));
    return reference::decode_weights(weights, codes, scales, tensor_scale_of_layer(weights, group, inner));
  }
  std::vector<float> values;
  for (const bf16 number : of_column) {
    if (element == MatmulElement::kBF16) {
      values.push_back(to_float(number));
      continue;
    }
    const size_t num_steps = ceil_div(inner, size_t{kMatmulScaleGroup}),
                 num_column_groups = ceil_div(columns, size_t{kMatmulScaleGroup});
    const size_t scale_idx = (group * num_column_groups + column / kMatmulScaleGroup) * num_steps +
                             values.size() / kMatmulScaleGroup;
    for (const int bits : {0, 8})
      values.push_back(to_float(e4m3{static_cast<uint8_t>(number.bits >> bits)}) *
                       scale_at(scale_idx, inner));
  }
  return values;
}

// The rows of the rank that gets most, as a part of an even share.
double largest_share(const reference::Step& step) {
  std::vector<double> rows_of_rank(static_cast<size_t>(step.n_ranks));
  double num_rows = 0;
  for (const std::vector<int32_t>& ids : step.topk_ids)
    for (const int32_t id : ids) {
      ++rows_of_rank[static_cast<size_t>(id / (step.n_experts / step.n_ranks))];
      ++num_rows;
    }
  return *std::max_element(rows_of_rank.begin(), rows_of_rank.end()) * step.n_ranks / std::max(1.0, num_rows);
}

}  // namespace

double LayerBenchResult::part_us(const std::string& name) const {
  for (const auto& [part, timing] : parts)
    if (part == name) return timing.median_us;
  return 0;
}

Result<std::unique_ptr<LayerBench>> LayerBench::create(World& world, const Workload& workload,
                                                       const MoeLayerConfig& config) {
  std::unique_ptr<LayerBench> bench(new LayerBench(world, workload, config));
  bench->ranks_.resize(static_cast<size_t>(world.n_ranks()));
  for (int rank = 0; rank < world.n_ranks(); ++rank) SWITCHYARD_RETURN_IF_ERROR(bench->fill_weights(rank));
  return bench;
}

Status LayerBench::fill_weights(int r) {
  const Rank& rank = world_.rank(r);
  RankBuffers& buffers = ranks_[static_cast<size_t>(r)];
  const size_t hidden = static_cast<size_t>(workload_.hidden),
               width = static_cast<size_t>(workload_.expert_width);
  const uint64_t seed = workload_.seed + static_cast<uint64_t>(r);
  Result<PeriodicNumbers> numbers = element() == MatmulElement::kFP8 || is_coded(config_.weights)
                                        ? PeriodicNumbers::create_codes(rank, seed)
                                        : PeriodicNumbers::create(rank, seed);
  if (!numbers.ok()) return numbers.status();
  buffers.numbers = std::move(numbers).value();
  SWITCHYARD_RETURN_IF_ERROR(
      fill(r, {2 * width, hidden, kGateUpShift, buffers.gate_up, buffers.gate_up_scales,
               buffers.gate_up_code_scales, buffers.gate_up_tensor_scales}));
  return fill(r, {hidden, width, kDownShift, buffers.down, buffers.down_scales, buffers.down_code_scales,
                  buffers.down_tensor_scales});
}

Status LayerBench::fill(int r, const Weights& weights) {
  const Rank& rank = world_.rank(r);
  const auto& [columns, inner, shift, codes, scales, code_scales, tensor_scales] = weights;
  const WeightFormat format = config_.weights;
  const size_t num_weights = num_groups() * columns * inner;
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(codes, rank, num_weights * bits_of(element(), format) / 16));
  SWITCHYARD_RETURN_IF_ERROR(ranks_[static_cast<size_t>(r)].numbers.fill(codes, shift));
  if (is_coded(format)) {
    std::vector<uint8_t> values(num_weights / static_cast<size_t>(scale_group_size(format)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = code_scale_of_layer(format, i, inner);
    SWITCHYARD_RETURN_IF_ERROR(upload_into(code_scales, rank, values));
    std::vector<float> of_groups;
    for (size_t group = 0; group < num_groups(); ++group)
      of_groups.push_back(tensor_scale_of_layer(format, group, inner));
    return upload_into(tensor_scales, rank, of_groups);
  }
  if (element() == MatmulElement::kBF16) return Status();
  std::vector<float> values(num_groups() * ceil_div(columns, size_t{kMatmulScaleGroup}) *
                            ceil_div(inner, size_t{kMatmulScaleGroup}));
  for (size_t i = 0; i < values.size(); ++i) values[i] = scale_at(i, inner);
  return upload_into(scales, rank, values);
}

ExpertWeights LayerBench::pointers(const RankBuffers& buffers) const {
  const bool has_codes = is_coded(config_.weights);
  const auto scales_of = [&](const Buffer<float>& scales, const Buffer<uint8_t>& code_scales) {
    return has_codes ? static_cast<const void*>(code_scales.data()) : scales.data();
  };
  return {.gate_up = buffers.gate_up.data(),
          .down = buffers.down.data(),
          .gate_up_scales = scales_of(buffers.gate_up_scales, buffers.gate_up_code_scales),
          .down_scales = scales_of(buffers.down_scales, buffers.down_code_scales),
          .gate_up_tensor_scales = buffers.gate_up_tensor_scales.data(),
          .down_tensor_scales = buffers.down_tensor_scales.data()};
}

Status LayerBench::upload(const reference::Step& step, const std::vector<std::vector<float>>& logits) {
  for (int r = 0; r < world_.n_ranks(); ++r) {
    RankBuffers& buffers = ranks_[static_cast<size_t>(r)];
    const Rank& rank = world_.rank(r);
    SWITCHYARD_RETURN_IF_ERROR(upload_into(buffers.tokens, rank, step.tokens[static_cast<size_t>(r)]));
    SWITCHYARD_RETURN_IF_ERROR(upload_into(buffers.logits, rank, logits[static_cast<size_t>(r)]));
    SWITCHYARD_RETURN_IF_ERROR(
        allocate_into(buffers.output, rank, step.tokens[static_cast<size_t>(r)].size()));
    SWITCHYARD_RETURN_IF_ERROR(buffers.output.fill_bytes(0xff));
  }
  return Status();
}

MoeLayerStep LayerBench::step_of(int rank, int num_tokens) const {
  const RankBuffers& buffers = ranks_[static_cast<size_t>(rank)];
  return {.tokens = buffers.tokens.data(),
          .num_tokens = num_tokens,
          .logits = buffers.logits.data(),
          .output = buffers.output.data()};
}

// All ranks begin a part before any of them begins the next; unless combine starts with the experts, which it
// does where a rank's step is one call.
Status LayerBench::enqueue(MoeLayer& layer, int num_tokens, Spans spans, const BeginSpan& begin) {
  if (spans == Spans::kStep) SWITCHYARD_RETURN_IF_ERROR(begin("step"));
  if (spans == Spans::kStep && layer.config().ep.combine_start == CombineStart::kWithExperts) {
    for (int rank = 0; rank < world_.n_ranks(); ++rank)
      SWITCHYARD_RETURN_IF_ERROR(layer.run(rank, step_of(rank, num_tokens)));
    return Status();
  }
  for (const MoePart part : parts_of(layer.config())) {
    if (spans == Spans::kParts) SWITCHYARD_RETURN_IF_ERROR(begin(to_string(part)));
    for (int rank = 0; rank < world_.n_ranks(); ++rank)
      SWITCHYARD_RETURN_IF_ERROR(layer.run_part(part, rank, step_of(rank, num_tokens)));
  }
  return Status();
}

Result<std::vector<SpanSamples>> LayerBench::replay(MoeLayer& layer, int num_tokens, Spans spans,
                                                    int num_replays) {
  Result<std::unique_ptr<Graph>> graph = world_.capture([&] {
    SWITCHYARD_RETURN_IF_ERROR(world_.mark("lead"));
    SWITCHYARD_RETURN_IF_ERROR(
        enqueue_lead(world_, world_.target() == Target::kHost ? 0 : kLeadMicroseconds));
    return enqueue(layer, num_tokens, spans, [&](const std::string& name) { return world_.mark(name); });
  });
  if (!graph.ok()) return graph.status();
  Graphs graphs;
  graphs.push_back(std::move(graph).value());
  SWITCHYARD_RETURN_IF_ERROR(graphs.front()->launch());  // warms up
  SWITCHYARD_RETURN_IF_ERROR(layer.ep().synchronize());
  Result<std::vector<SpanSamples>> samples = time_replays(graphs, num_replays);
  if (!samples.ok()) return samples;
  SWITCHYARD_RETURN_IF_ERROR(layer.ep().synchronize());
  samples.value().erase(samples.value().begin());  // the lead
  return samples;
}

Result<LayerBench::PreparedStep> LayerBench::prepare(int num_tokens) {
  workload_.tokens_per_rank.assign(static_cast<size_t>(workload_.n_ranks), num_tokens);
  reference::Step step = make_step(workload_, 0);
  const std::vector<std::vector<float>> logits = make_logits(workload_, 0);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    reference::Routing routing =
        reference::topk_softmax(logits[rank], num_tokens, workload_.n_experts, workload_.top_k);
    step.topk_ids[rank] = std::move(routing.topk_ids);
    step.topk_weights[rank] = std::move(routing.topk_weights);
  }
  SWITCHYARD_RETURN_IF_ERROR(upload(step, logits));
  MoeLayerConfig config = config_;
  config.ep.max_tokens_per_rank = num_tokens;
  // Memory for the worst case would only leave less for the weights.
  config.ep.capacity_factor = std::max(kEpLimits.suggested_capacity_factor, largest_share(step));
  std::vector<ExpertWeights> weights;
  for (const RankBuffers& buffers : ranks_) weights.push_back(pointers(buffers));
  Result<std::unique_ptr<MoeLayer>> layer = MoeLayer::create(world_, config, weights);
  if (!layer.ok()) return layer.status();
  return PreparedStep{std::move(step), std::move(layer).value()};
}

Result<LayerBenchResult> LayerBench::time(int num_tokens, int num_replays) {
  const Result<PreparedStep> prepared = prepare(num_tokens);
  if (!prepared.ok()) return prepared.status();
  const reference::Step& step = prepared.value().step;
  MoeLayer& layer = *prepared.value().layer;
  std::set<int32_t> experts_with_rows;
  for (const std::vector<int32_t>& ids : step.topk_ids) experts_with_rows.insert(ids.begin(), ids.end());
  LayerBenchResult result{.num_tokens = num_tokens};
  result.protocol = layer.config().ep.protocol;
  result.gate_up_tuning = to_string(layer.gate_up(0).tuning());
  result.down_tuning = to_string(layer.down(0).tuning());
  const size_t num_shared = num_groups() - num_local();
  const double params = 3.0 * workload_.hidden * workload_.expert_width;
  result.flops =
      2 * params * num_tokens * workload_.n_ranks * (workload_.top_k + static_cast<double>(num_shared));
  const double scale_bytes =
      is_coded(config_.weights) ? params / scale_group_size(config_.weights) : 0;  // of the others, few
  const double expert_bytes =
      params * static_cast<double>(bits_of(element(), config_.weights)) / 8 + scale_bytes;
  result.weight_bytes = static_cast<uint64_t>(
      expert_bytes * static_cast<double>(experts_with_rows.size() + num_shared * ranks_.size()));
  const Result<std::vector<SpanSamples>> whole = replay(layer, num_tokens, Spans::kStep, num_replays);
  if (!whole.ok()) return whole.status();
  result.step = whole.value().front().summarize(result.weight_bytes);
  const Result<std::vector<SpanSamples>> parts = replay(layer, num_tokens, Spans::kParts, num_replays);
  if (!parts.ok()) return parts.status();
  for (const SpanSamples& part : parts.value()) result.parts.emplace_back(part.name, part.summarize(0));

  for (const auto& [rank, token_idx] :
       {std::pair<size_t, size_t>{0, 0}, {ranks_.size() - 1, static_cast<size_t>(num_tokens) - 1}}) {
    const Result<double> off = distance(step, rank, token_idx);
    if (!off.ok()) return off.status();
    if (!(off.value() <= result.error)) result.error = off.value();  // NaN, too
  }
  result.error_limit = config_.ep.combine_format == CombineFormat::kFP8 ? 0.06
                       : element() == MatmulElement::kFP8               ? 0.04
                                                                        : 0.01;
  return result;
}

Result<LayerTrace> LayerBench::trace(int num_tokens, uint32_t events_per_block) {
  const Result<PreparedStep> prepared = prepare(num_tokens);
  if (!prepared.ok()) return prepared.status();
  MoeLayer& layer = *prepared.value().layer;
  LayerTrace trace;
  const Status enabled = layer.ep().enable_trace(events_per_block);
  if (enabled.code() == StatusCode::kInvalidArgument)
    trace.missing = enabled.message();
  else
    SWITCHYARD_RETURN_IF_ERROR(enabled);
  // The first step loads kernels; only what follows it counts.
  for (const bool counts : {false, true}) {
    if (counts && trace.missing.empty()) SWITCHYARD_RETURN_IF_ERROR(layer.ep().take_trace().status());
    SWITCHYARD_RETURN_IF_ERROR(enqueue_stamped(layer, num_tokens, trace.phases));
    SWITCHYARD_RETURN_IF_ERROR(layer.ep().synchronize());
  }
  SWITCHYARD_RETURN_IF_ERROR(take_times(trace.phases));
  trace.ranks.resize(ranks_.size());
  if (!trace.missing.empty()) return trace;
  Result<std::vector<RankTrace>> ranks = layer.ep().take_trace();
  if (!ranks.ok()) return ranks.status();
  trace.ranks = std::move(ranks).value();
  return trace;
}

Status LayerBench::enqueue_stamped(MoeLayer& layer, int num_tokens, std::vector<TimedPhase>& phases) {
  const auto stamp = [&] {
    for (int r = 0; r < world_.n_ranks(); ++r) {
      const Rank& rank = world_.rank(r);
      SWITCHYARD_RETURN_IF_ERROR(rank.launch(kernel_table(rank).time_stamp, {},
                                             {ranks_[static_cast<size_t>(r)].stamps.data() + phases.size()}));
    }
    return Status();
  };
  phases.clear();
  for (int r = 0; r < world_.n_ranks(); ++r)
    SWITCHYARD_RETURN_IF_ERROR(
        allocate_into(ranks_[static_cast<size_t>(r)].stamps, world_.rank(r), kMaxSpans + 1));
  SWITCHYARD_RETURN_IF_ERROR(
      enqueue_lead(world_, world_.target() == Target::kHost ? 0 : kTraceLeadMicroseconds));
  const bool is_early = layer.config().ep.combine_start == CombineStart::kWithExperts;
  SWITCHYARD_RETURN_IF_ERROR(
      enqueue(layer, num_tokens, is_early ? Spans::kStep : Spans::kParts, [&](const std::string& name) {
        SWITCHYARD_RETURN_IF_ERROR(stamp());
        phases.push_back({name, {}});
        return Status();
      }));
  return stamp();
}

Status LayerBench::take_times(std::vector<TimedPhase>& phases) {
  for (const RankBuffers& buffers : ranks_) {
    const Result<std::vector<uint64_t>> stamps = buffers.stamps.download();
    if (!stamps.ok()) return stamps.status();
    for (size_t i = 0; i < phases.size(); ++i)
      phases[i].of_rank.push_back({stamps.value()[i], stamps.value()[i + 1]});
  }
  return Status();
}

reference::GatedMlp LayerBench::expert(size_t rank, size_t group) const {
  const size_t hidden = static_cast<size_t>(workload_.hidden),
               width = static_cast<size_t>(workload_.expert_width);
  const PeriodicNumbers& numbers = ranks_[rank].numbers;
  const MatmulElement kind = element();
  const WeightFormat format = config_.weights;
  return {.activation = config_.activation,
          .gate_layout = config_.gate_layout,
          .element = kind,
          .hidden = hidden,
          .width = width,
          .gate_up =
              [=, &numbers](size_t column) {
                return weights_of(numbers, kind, format, kGateUpShift, group, column, 2 * width, hidden);
              },
          .down =
              [=, &numbers](size_t column) {
                return weights_of(numbers, kind, format, kDownShift, group, column, hidden, width);
              }};
}

Result<double> LayerBench::distance(const reference::Step& step, size_t rank, size_t token_idx) const {
  const size_t hidden = static_cast<size_t>(workload_.hidden), top_k = static_cast<size_t>(workload_.top_k);
  const auto begin = step.tokens[rank].begin() + static_cast<ptrdiff_t>(token_idx * hidden);
  const std::vector<bf16> token(begin, begin + static_cast<ptrdiff_t>(hidden));
  const std::vector<float> seen = reference::as_multiplied(config_.ep.dispatch_format, element(), token, 1);
  std::vector<double> expected(hidden, 0.0), values;
  const auto add = [&](const std::vector<double>& output, double weight) {
    for (size_t i = 0; i < hidden; ++i) expected[i] += weight * output[i];
  };
  const size_t num_shared = num_groups() - num_local();
  for (size_t k = 0; k < top_k; ++k) {
    const size_t id = static_cast<size_t>(step.topk_ids[rank][token_idx * top_k + k]);
    add(expert(id / num_local(), num_shared + id % num_local()).output(seen),
        static_cast<double>(step.topk_weights[rank][token_idx * top_k + k]));
  }
  if (num_shared > 0) add(expert(rank, 0).output(seen), 1);
  const Result<std::vector<bf16>> output = world_.rank(static_cast<int>(rank))
                                               .view(ranks_[rank].output.data() + token_idx * hidden, hidden)
                                               .download();
  if (!output.ok()) return output.status();
  for (const bf16 value : output.value()) values.push_back(static_cast<double>(to_float(value)));
  return reference::relative_distance(values, expected);
}

}  // namespace switchyard::tools
