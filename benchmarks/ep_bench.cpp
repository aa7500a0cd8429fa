#include "ep_bench.hpp"

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <numeric>
#include <set>

#include "reference/all_cores.hpp"
#include "reference/per_rank.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "workload/buffers.hpp"
#include "workload/host_memory.hpp"

namespace switchyard::tools {
namespace {

constexpr uint8_t kPoison = 0xff;
constexpr char kStamp[] = "stamp";  // the span of a graph in which its end is recorded

// The format that encodes a token once, and is like `format` in all else.
TokenFormatKind encoded_once(TokenFormatKind format) {
  const TokenFormatInfo info = info_of(format);
  for (const TokenFormatKind kind : kTokenFormatKinds) {
    const TokenFormatInfo other = info_of(kind);
    if (other.encoding == TokenEncoding::kOnce && other.element == info.element &&
        other.group_size == info.group_size && other.scale == info.scale && other.placement == info.placement)
      return kind;
  }
  return format;
}

// Tokens as experts see them, encoded once for each input scale: there are few of these, even if every expert
// has its own.
class SeenTokens {
 public:
  explicit SeenTokens(const reference::Step& step) : step_(step) {
    if (step.format == TokenFormatKind::kBF16) return;  // as they are
    for (int expert = 0; expert < step.n_experts; ++expert) {
      const float scale = step.input_scale_of(expert);
      if (of_scale_.contains(scale)) continue;
      reference::Step one_scale = step;
      one_scale.input_scale = scale;
      one_scale.format = encoded_once(step.format);
      of_scale_.emplace(scale, reference::as_seen(std::move(one_scale)));
    }
  }
  // Of an expert that changes nothing.
  static std::vector<bf16> identity_expert(const void* seen, const reference::Step&, int rank, int token_idx,
                                           int expert_idx) {
    const auto& self = *static_cast<const SeenTokens*>(seen);
    if (self.of_scale_.empty()) return self.step_.token(rank, token_idx, expert_idx);
    return self.of_scale_.at(self.step_.input_scale_of(expert_idx)).token(rank, token_idx, expert_idx);
  }

 private:
  const reference::Step& step_;
  std::map<float, reference::Step> of_scale_;
};

// A step with the ids and weights that a router would give it: distinct experts for each token. Without a
// router every id is 0.
reference::Step make_routed_step(const Workload& workload, int step_idx) {
  reference::Step step = make_step(workload, step_idx);
  if (!has_router(workload)) return step;
  const std::vector<std::vector<float>> logits = make_logits(workload, step_idx);
  reference::for_each_on_all_cores(static_cast<size_t>(workload.n_ranks), [&](size_t rank) {
    reference::Routing routing = reference::topk_softmax(logits[rank], workload.tokens_per_rank[rank],
                                                         workload.n_experts, workload.top_k);
    step.topk_ids[rank] = std::move(routing.topk_ids);
    step.topk_weights[rank] = std::move(routing.topk_weights);
  });
  return step;
}

}  // namespace

const char* to_string(StepMode mode) { return mode == StepMode::kSplit ? "split" : "fused"; }

Result<std::unique_ptr<EpBench>> EpBench::create(World& world, const Workload& workload,
                                                 const EpLaunch& launch, int max_sets) {
  auto bench = std::unique_ptr<EpBench>(new EpBench(world, workload, launch));
  const uint64_t set_bytes =
      static_cast<uint64_t>(workload.n_ranks) * static_cast<uint64_t>(bench->num_tokens()) *
      static_cast<uint64_t>(workload.hidden) * sizeof(bf16) * static_cast<uint64_t>(2 + workload.top_k);
  const int num_sets = num_buffer_sets(world.target(), set_bytes, max_sets);
  const std::vector<float> scales = expert_input_scales(launch.format, workload.n_experts);
  const size_t num_scales = std::max<size_t>(std::set<float>(scales.begin(), scales.end()).size(), 1);
  SWITCHYARD_RETURN_IF_ERROR(check_host_memory(bench->host_bytes(num_sets, static_cast<int>(num_scales))));
  auto ep = ExpertParallel::create(world, {.n_experts = workload.n_experts,
                                           .top_k = workload.top_k,
                                           .hidden = workload.hidden,
                                           .max_tokens_per_rank = bench->num_tokens(),
                                           .n_sms = launch.n_sms,
                                           .num_threads = launch.num_threads,
                                           .timeout_ns = default_timeout_ns(world.target()),
                                           .dependent_launch = launch.dependent,
                                           .protocol = launch.protocol,
                                           .row_layout = launch.row_layout,
                                           .row_alignment = launch.row_alignment,
                                           .max_rows_per_expert = launch.max_rows_per_expert,
                                           .row_delivery = launch.row_delivery,
                                           .reduce_at_owner = launch.reduce_at_owner,
                                           .dispatch_format = launch.format,
                                           .input_scale = kInputScale,
                                           .expert_input_scales = scales,
                                           .combine_format = launch.combine_format,
                                           .p2p_world_size = launch.p2p_world_size,
                                           .counts_experts = launch.counts_experts});
  if (!ep.ok()) return ep.status();
  bench->ep_ = std::move(ep).value();
  for (int set_idx = 0; set_idx < num_sets; ++set_idx) SWITCHYARD_RETURN_IF_ERROR(bench->add_set(set_idx));
  return bench;
}

double EpBench::host_bytes(int num_sets, int num_scales) const {
  const WorkloadBytes bytes(workload_);
  double needed = bytes.tokens * (num_scales + num_sets) + bytes.logits;
  // On the emulator buffers are host memory, too; of the receive buffers, only pages of used slots are ever
  // accessed.
  if (world_.target() == Target::kHost)
    needed += num_sets * (2 * bytes.tokens + bytes.rows) + bytes.tokens + 2 * bytes.rows;
  return needed;
}

Status EpBench::add_set(int set_idx) {
  reference::Step routed = make_routed_step(workload_, set_idx);
  const std::vector<std::vector<int32_t>> topk_ids = routed.topk_ids;
  const std::vector<std::vector<float>> topk_weights = routed.topk_weights;
  reference::Step step = is_per_rank() ? reference::per_rank(routed) : std::move(routed);
  step.format = ep_->config().dispatch_format;
  step.input_scale = kInputScale;
  step.expert_input_scales = ep_->config().expert_input_scales;
  step.combine_format = ep_->config().combine_format;
  step.reduces_at_owner = ep_->config().reduce_at_owner;
  step.row_alignment = static_cast<uint32_t>(ep_->config().row_alignment);
  step.min_group_rows = static_cast<uint32_t>(ep_->config().max_rows_per_expert);
  if (set_idx == 0) ids_ = topk_ids;
  if (set_idx == 0) traffic_ = reference::count_traffic(step, reference::traffic_options(*ep_));
  const SeenTokens seen(step);
  const int n_local = step.n_local_experts();
  std::vector<std::future<std::vector<bf16>>> outputs;
  const std::vector<int> local_ranks = world_.local_ranks();
  for (const int rank : local_ranks)
    outputs.push_back(std::async(std::launch::async, [&step, &seen, rank] {
      return reference::combine_weighted(step, rank, &SeenTokens::identity_expert, &seen);
    }));
  std::vector<uint32_t> rows_of_expert(static_cast<size_t>(step.n_experts));
  for (const auto& ids : step.topk_ids)
    for (const int32_t id : ids)
      if (id >= 0) ++rows_of_expert[static_cast<size_t>(id)];
  if (set_idx == 0) num_rows_ = std::accumulate(rows_of_expert.begin(), rows_of_expert.end(), uint64_t{0});

  BufferSet& set = sets_.emplace_back(local_ranks.size());
  for (size_t i = 0; i < local_ranks.size(); ++i) {
    const int r = local_ranks[i];
    const Rank& rank = world_.rank(r);
    RankBuffers& buffers = set[i];
    buffers.expected_output = outputs[i].get();
    buffers.expected_offsets.push_back(0);
    for (int expert = r * n_local; expert < (r + 1) * n_local; ++expert)
      buffers.expected_offsets.push_back(static_cast<uint32_t>(
          step.next_group(buffers.expected_offsets.back(), rows_of_expert[static_cast<size_t>(expert)])));
    SWITCHYARD_RETURN_IF_ERROR(upload_into(buffers.tokens, rank, step.tokens[r]));
    SWITCHYARD_RETURN_IF_ERROR(upload_into(buffers.topk_ids, rank, topk_ids[r]));
    SWITCHYARD_RETURN_IF_ERROR(upload_into(buffers.topk_weights, rank, topk_weights[r]));
    SWITCHYARD_RETURN_IF_ERROR(upload_into(buffers.group_input_scales, rank, step.group_input_scales(r)));
    SWITCHYARD_RETURN_IF_ERROR(allocate_rows(r, buffers));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.expert_ids, rank, static_cast<uint64_t>(n_local)));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_offsets, rank, static_cast<uint64_t>(n_local) + 1));
    const uint64_t num_choices =
        is_per_rank() ? buffers.src_info.size() / 2 * static_cast<uint64_t>(workload_.top_k) : 0;
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_experts, rank, num_choices));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_weights, rank, num_choices));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.output, rank, buffers.expected_output.size()));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.check, rank, 1));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.stamps, rank, 2));
  }
  return Status();
}

Status EpBench::allocate_rows(int r, RankBuffers& buffers) {
  const Rank& rank = world_.rank(r);
  const TokenFormatInfo format = info_of(ep_->config().dispatch_format);
  const uint64_t row_bytes = format.row_bytes(workload_.hidden);
  const auto scale_bytes = [&](uint32_t max_rows) {
    return format.scale_tensor_bytes(max_rows, workload_.hidden).value();
  };
  if (ep_->config().protocol == Protocol::kDirect) {
    Result<RowBuffers> owned = ep_->row_buffers(r);
    if (!owned.ok()) return owned.status();
    const RowBuffers& rows = owned.value();
    buffers.rows = rank.view(reinterpret_cast<uint8_t*>(rows.encoded_rows), rows.max_rows * row_bytes);
    buffers.scales = rank.view(reinterpret_cast<uint8_t*>(rows.scales), scale_bytes(rows.max_rows));
    buffers.src_info = rank.view(rows.src_info, size_t{2} * rows.max_rows);
    buffers.expert_outputs =
        rank.view(expert_format() == CombineFormat::kBF16 ? reinterpret_cast<uint8_t*>(rows.expert_outputs)
                                                          : reinterpret_cast<uint8_t*>(rows.encoded_outputs),
                  rows.max_rows * expert_row_bytes());
    return Status();
  }
  const uint32_t num_rows = buffers.expected_offsets.back();
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.rows, rank, num_rows * row_bytes));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.scales, rank, scale_bytes(num_rows)));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.src_info, rank, uint64_t{num_rows} * 2));
  return has_experts() ? allocate_into(buffers.expert_outputs, rank, num_rows * expert_row_bytes())
                       : Status();
}

// Overwrites the outputs: memory that a replay fails to write must not look right.
Status EpBench::poison(BufferSet& set) {
  for (RankBuffers& buffers : set) {
    SWITCHYARD_RETURN_IF_ERROR(buffers.rows.fill_bytes(kPoison));
    SWITCHYARD_RETURN_IF_ERROR(buffers.scales.fill_bytes(kPoison));
    SWITCHYARD_RETURN_IF_ERROR(buffers.src_info.fill_bytes(kPoison));
    SWITCHYARD_RETURN_IF_ERROR(buffers.row_offsets.fill_bytes(kPoison));
    SWITCHYARD_RETURN_IF_ERROR(buffers.expert_ids.fill_bytes(kPoison));
    SWITCHYARD_RETURN_IF_ERROR(buffers.output.fill_bytes(kPoison));
    if (has_experts()) SWITCHYARD_RETURN_IF_ERROR(buffers.expert_outputs.fill_bytes(kPoison));
  }
  return Status();
}

Status EpBench::enqueue_step(const BufferSet& set, StepMode mode, Extra extra) {
  const auto dispatch_input = [&](const RankBuffers& buffers) {
    return DispatchInput{buffers.tokens.data(), buffers.topk_ids.data(), num_tokens(),
                         buffers.topk_weights.data()};
  };
  const auto dispatch_output = [&](const RankBuffers& buffers) {
    return DispatchOutput{.rows = buffers.rows.data(),
                          .src_info = buffers.src_info.data(),
                          .max_rows = static_cast<uint32_t>(buffers.src_info.size() / 2),
                          .row_offsets = buffers.row_offsets.data(),
                          .expert_ids = buffers.expert_ids.data(),
                          .scales = buffers.scales.data(),
                          .row_experts = is_per_rank() ? buffers.row_experts.data() : nullptr,
                          .row_weights = is_per_rank() ? buffers.row_weights.data() : nullptr};
  };
  const auto combine_input = [&](const RankBuffers& buffers) {
    return CombineInput{(has_experts() ? buffers.expert_outputs : buffers.rows).data(),
                        buffers.src_info.data()};
  };
  const auto experts = [&](int rank, const RankBuffers& buffers) { return enqueue_experts(rank, buffers); };
  const auto combine_output = [&](const RankBuffers& buffers) {
    return CombineOutput{buffers.topk_ids.data(),
                         buffers.topk_weights.data(),
                         num_tokens(),
                         {CombineReduction::kWeighted, buffers.output.data()}};
  };
  const auto phase = [&](const char* name, const auto& call) {
    if (extra == Extra::kPhaseTimes) SWITCHYARD_RETURN_IF_ERROR(world_.mark(name));
    const int first_rank = world_.local_ranks().front();
    for (size_t i = 0; i < set.size(); ++i)
      SWITCHYARD_RETURN_IF_ERROR(call(first_rank + static_cast<int>(i), set[i]));
    return Status();
  };
  if (mode == StepMode::kFused) {
    SWITCHYARD_RETURN_IF_ERROR(phase("dispatch", [&](int rank, const RankBuffers& buffers) {
      return ep_->dispatch(rank, dispatch_input(buffers), dispatch_output(buffers));
    }));
    if (has_experts()) SWITCHYARD_RETURN_IF_ERROR(phase(kExperts, experts));
    SWITCHYARD_RETURN_IF_ERROR(phase("combine", [&](int rank, const RankBuffers& buffers) {
      return ep_->combine(rank, combine_input(buffers), combine_output(buffers));
    }));
  } else {
    SWITCHYARD_RETURN_IF_ERROR(phase("dispatch_async", [&](int rank, const RankBuffers& buffers) {
      return ep_->dispatch_async(rank, dispatch_input(buffers));
    }));
    SWITCHYARD_RETURN_IF_ERROR(phase("dispatch_wait", [&](int rank, const RankBuffers& buffers) {
      return ep_->dispatch_wait(rank, dispatch_output(buffers));
    }));
    if (has_experts()) SWITCHYARD_RETURN_IF_ERROR(phase(kExperts, experts));
    SWITCHYARD_RETURN_IF_ERROR(phase("combine_async", [&](int rank, const RankBuffers& buffers) {
      return ep_->combine_async(rank, combine_input(buffers));
    }));
    SWITCHYARD_RETURN_IF_ERROR(phase("combine_wait", [&](int rank, const RankBuffers& buffers) {
      return ep_->combine_wait(rank, combine_output(buffers));
    }));
  }
  if (extra != Extra::kHashes) return Status();
  return phase("check_output",
               [&](int rank, const RankBuffers& buffers) { return enqueue_check(rank, buffers); });
}

// The stamps are taken outside of what the marks time.
Status EpBench::enqueue(const BufferSet& set, StepMode mode, Extra extra) {
  if (extra == Extra::kStepTime || extra == Extra::kPhaseTimes)
    SWITCHYARD_RETURN_IF_ERROR(enqueue_lead(world_, lead_us_));
  if (extra != Extra::kStepTime) return enqueue_step(set, mode, extra);
  if (is_stamped_) SWITCHYARD_RETURN_IF_ERROR(enqueue_stamp(set, 0));
  SWITCHYARD_RETURN_IF_ERROR(world_.mark(kWholeStep));
  SWITCHYARD_RETURN_IF_ERROR(enqueue_step(set, mode, extra));
  if (!is_stamped_) return Status();
  SWITCHYARD_RETURN_IF_ERROR(world_.mark(kStamp));
  return enqueue_stamp(set, 1);
}

Status EpBench::enqueue_stamp(const BufferSet& set, size_t which) {
  const int first_rank = world_.local_ranks().front();
  for (size_t i = 0; i < set.size(); ++i) {
    const Rank& rank = world_.rank(first_rank + static_cast<int>(i));
    SWITCHYARD_RETURN_IF_ERROR(
        rank.launch(kernel_table(rank).time_stamp, {}, {set[i].stamps.data() + which}));
  }
  return Status();
}

Status EpBench::read_stamps(const BufferSet& set, Stamps& stamps) const {
  uint64_t begin_ns = UINT64_MAX, end_ns = 0;
  for (const RankBuffers& buffers : set) {
    const Result<std::vector<uint64_t>> of_rank = buffers.stamps.download();
    if (!of_rank.ok()) return of_rank.status();
    begin_ns = std::min(begin_ns, of_rank.value()[0]);
    end_ns = std::max(end_ns, of_rank.value()[1]);
  }
  stamps.begin_ns.push_back(begin_ns);
  stamps.end_ns.push_back(end_ns);
  return Status();
}

Result<Graphs> EpBench::capture(StepMode mode, Extra extra) {
  // The step runs once without a graph: this loads the kernels, and errors are easiest to read here.
  SWITCHYARD_RETURN_IF_ERROR(enqueue(sets_.front(), mode, Extra::kNothing));
  SWITCHYARD_RETURN_IF_ERROR(ep_->synchronize());
  Graphs graphs;
  for (const BufferSet& set : sets_) {
    Result<std::unique_ptr<Graph>> graph = world_.capture([&] { return enqueue(set, mode, extra); });
    if (!graph.ok()) return graph.status();
    graphs.push_back(std::move(graph).value());
  }
  return graphs;
}

Status EpBench::time_graphs(StepMode mode, Extra extra, int num_replays, std::vector<PhaseTime>& times) {
  Result<Graphs> captured = capture(mode, extra);
  if (!captured.ok()) return captured.status();
  const Graphs& graphs = captured.value();
  for (const auto& graph : graphs) SWITCHYARD_RETURN_IF_ERROR(graph->launch());  // warms up
  SWITCHYARD_RETURN_IF_ERROR(ep_->synchronize());
  for (BufferSet& set : sets_) SWITCHYARD_RETURN_IF_ERROR(poison(set));

  Stamps stamps;
  const bool has_stamps = is_stamped_ && extra == Extra::kStepTime;
  Result<std::vector<SpanSamples>> phases = time_replays(graphs, num_replays, [&](size_t set_idx) {
    return has_stamps ? read_stamps(sets_[set_idx], stamps) : Status();
  });
  if (!phases.ok()) return phases.status();
  SWITCHYARD_RETURN_IF_ERROR(ep_->synchronize());
  for (const SpanSamples& phase : phases.value())
    if (phase.name != kStamp) times.push_back(summarize(phase, mode));
  if (has_stamps) times.back().stamps = std::move(stamps);
  for (int set_idx = 0; set_idx < num_sets() && first_difference_.empty(); ++set_idx) {
    Result<std::string> difference = check(sets_[static_cast<size_t>(set_idx)], set_idx);
    if (!difference.ok()) return difference.status();
    if (!difference.value().empty())
      first_difference_ = std::string(switchyard::to_string(ep_->config().protocol)) + ", " +
                          to_string(mode) + ": " + difference.value();
  }
  return Status();
}

Result<std::vector<PhaseTime>> EpBench::time(StepMode mode, int num_replays) {
  std::vector<PhaseTime> times;
  SWITCHYARD_RETURN_IF_ERROR(time_graphs(mode, Extra::kStepTime, num_replays, times));
  SWITCHYARD_RETURN_IF_ERROR(time_graphs(mode, Extra::kPhaseTimes, num_replays, times));
  return times;
}

PhaseTime EpBench::summarize(const SpanSamples& samples, StepMode mode) const {
  return {samples.summarize(bytes_of(samples.name)), ep_->config().protocol, mode, samples.name,
          samples.microseconds};
}

Result<PhaseTime> EpBench::time_back_to_back(StepMode mode, int num_replays) {
  constexpr int kNumSamples = 5;
  Result<Graphs> captured = capture(mode, Extra::kNothing);
  if (!captured.ok()) return captured.status();
  const auto launch_all = [&](int count) {
    for (int i = 0; i < count; ++i)
      SWITCHYARD_RETURN_IF_ERROR(captured.value()[static_cast<size_t>(i % num_sets())]->launch());
    return ep_->synchronize();
  };
  SWITCHYARD_RETURN_IF_ERROR(launch_all(num_sets()));  // warms up
  SpanSamples samples{kBackToBack, {}};
  for (int i = 0; i < kNumSamples; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    SWITCHYARD_RETURN_IF_ERROR(launch_all(num_replays));
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    samples.microseconds.push_back(time.count() / num_replays);
  }
  return summarize(samples, mode);
}

Result<std::string> EpBench::check(const BufferSet& set, int set_idx) const {
  for (size_t rank = 0; rank < set.size(); ++rank) {
    const RankBuffers& buffers = set[rank];
    const std::string where = "set " + std::to_string(set_idx) + ", rank " +
                              std::to_string(world_.local_ranks().front() + static_cast<int>(rank)) + ": ";
    Result<std::vector<uint32_t>> offsets = buffers.row_offsets.download();
    if (!offsets.ok()) return offsets.status();
    if (offsets.value() != buffers.expected_offsets) return where + "row_offsets are wrong";
    Result<std::vector<bf16>> output = buffers.output.download();
    if (!output.ok()) return output.status();
    const auto [expected, seen] =
        std::mismatch(buffers.expected_output.begin(), buffers.expected_output.end(), output.value().begin());
    if (expected == buffers.expected_output.end()) continue;
    const auto index = expected - buffers.expected_output.begin();
    return where + "token " + std::to_string(index / workload_.hidden) + ", column " +
           std::to_string(index % workload_.hidden) + ": output " + std::to_string(to_float(*seen)) +
           ", expected " + std::to_string(to_float(*expected));
  }
  return std::string();
}

Status EpBench::enqueue_experts(int rank, const RankBuffers& buffers) {
  const Rank& owner = world_.rank(rank);
  return owner.launch(kernel_table(owner).recode_rows,
                      {.num_blocks = static_cast<uint32_t>(ep_->config().n_sms),
                       .num_threads = static_cast<uint32_t>(ep_->config().num_threads)},
                      {.format = ep_->config().dispatch_format,
                       .hidden = workload_.hidden,
                       .input = {.rows = reinterpret_cast<std::byte*>(buffers.rows.data()),
                                 .scales = reinterpret_cast<std::byte*>(buffers.scales.data()),
                                 .max_rows = static_cast<uint32_t>(buffers.src_info.size() / 2),
                                 .tensor_scale = kInputScale},
                       .num_groups = ep_->num_groups(),
                       .row_offsets = buffers.row_offsets.data(),
                       .group_tensor_scales = buffers.group_input_scales.data(),
                       .output_format = expert_format(),
                       .output = buffers.expert_outputs.data()});
}

// Enqueued behind the rank's combine, which stream order makes sufficient. Rows of the direct protocol are
// not overwritten: peers may still read them.
Status EpBench::enqueue_check(int rank, const RankBuffers& buffers) {
  const Rank& owner = world_.rank(rank);
  return owner.launch(
      kernel_table(owner).check_output,
      {.num_blocks = static_cast<uint32_t>(ep_->config().n_sms),
       .num_threads = static_cast<uint32_t>(ep_->config().num_threads)},
      {buffers.check.data(), reinterpret_cast<std::byte*>(buffers.output.data()),
       buffers.output.size() * sizeof(bf16), reinterpret_cast<std::byte*>(buffers.rows.data()),
       ep_->config().protocol == Protocol::kDirect ? 0 : buffers.rows.size()});
}

Result<RepeatCheck> EpBench::repeat(StepMode mode, int64_t num_replays,
                                    const std::function<void(int64_t num_done)>& on_progress) {
  constexpr int64_t kReplaysPerWait = 500;  // a broken step is noticed after at most so many replays
  Result<Graphs> captured = capture(mode, Extra::kHashes);
  if (!captured.ok()) return captured.status();
  RepeatCheck result{.protocol = ep_->config().protocol, .mode = mode, .num_replays = num_replays};
  for (BufferSet& set : sets_) {
    SWITCHYARD_RETURN_IF_ERROR(poison(set));
    for (RankBuffers& buffers : set) {
      const OutputTally check{.expected = output_hash(buffers.expected_output.data(),
                                                      buffers.expected_output.size() * sizeof(bf16))};
      result.hash = hash_of_word(check.expected, result.hash);
      SWITCHYARD_RETURN_IF_ERROR(buffers.check.upload({check}));
    }
  }
  for (int64_t i = 1; i <= num_replays; ++i) {
    SWITCHYARD_RETURN_IF_ERROR(captured.value()[static_cast<size_t>(i % num_sets())]->launch());
    if (i % kReplaysPerWait != 0 && i != num_replays) continue;
    SWITCHYARD_RETURN_IF_ERROR(ep_->synchronize());
    on_progress(i);
  }
  for (const BufferSet& set : sets_)
    for (const RankBuffers& buffers : set) {
      Result<std::vector<OutputTally>> check = buffers.check.download();
      if (!check.ok()) return check.status();
      result.num_hashed += static_cast<int64_t>(check.value().front().num_checked);
      result.num_different += static_cast<int64_t>(check.value().front().num_different);
    }
  if (result.num_hashed != num_replays * workload_.n_ranks)
    return internal_error("%lld replays of %d ranks, but %lld outputs were hashed",
                          static_cast<long long>(num_replays), workload_.n_ranks,
                          static_cast<long long>(result.num_hashed));
  return result;
}

// The bytes that the protocol must move. Slotted: a token is read once and written as a message to each of
// its experts, where messages are copied to rows; combine sends each row back, where the rows are read and
// summed. The send buffer is not counted: only a fused shared expert needs it, and this benchmark has none.
// Direct: a token is read once and written to each of its rows; combine reads each row once and writes the
// sum.
uint64_t EpBench::bytes_of(const std::string& phase) const {
  const uint64_t tokens = static_cast<uint64_t>(workload_.n_ranks) * static_cast<uint64_t>(num_tokens());
  const uint64_t rows = num_rows_;
  const uint64_t token_bytes = static_cast<uint64_t>(workload_.hidden) * sizeof(bf16);
  const uint64_t encoded_bytes = info_of(ep_->config().dispatch_format).encoded_bytes(workload_.hidden);
  const uint64_t message_bytes = ep_->dispatch_message_bytes(), row_bytes = ep_->combine_message_bytes();
  const std::map<std::string, uint64_t> direct_bytes = {
      {"dispatch_async", tokens * token_bytes + rows * encoded_bytes},
      {"dispatch_wait", 0},
      {"combine_async", 0},
      {"combine_wait", rows * row_bytes + tokens * token_bytes}};
  const std::map<std::string, uint64_t> slotted_bytes = {
      {"dispatch_async", tokens * token_bytes + rows * message_bytes},
      {"dispatch_wait", rows * message_bytes + rows * encoded_bytes},
      {"combine_async", rows * (token_bytes + row_bytes)},
      {"combine_wait", rows * row_bytes + tokens * token_bytes}};
  const auto& bytes = ep_->config().protocol == Protocol::kDirect ? direct_bytes : slotted_bytes;
  if (phase == kExperts) return rows * (encoded_bytes + expert_row_bytes());
  if (phase == kWholeStep || phase == kBackToBack)
    return bytes_of("dispatch") + bytes_of("combine") + (has_experts() ? bytes_of(kExperts) : 0);
  if (phase == "dispatch") return bytes.at("dispatch_async") + bytes.at("dispatch_wait");
  if (phase == "combine") return bytes.at("combine_async") + bytes.at("combine_wait");
  return bytes.at(phase);
}

}  // namespace switchyard::tools
