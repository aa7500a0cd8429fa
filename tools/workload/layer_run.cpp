#include "layer_run.hpp"

#include <algorithm>
#include <csignal>

#include "buffers.hpp"
#include "reference/fused_layer.hpp"
#include "reference/per_rank.hpp"
#include "reference/placement.hpp"
#include "switchyard/detail/ep/tuning.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard::tools {
namespace {

// A step has fewer.
constexpr size_t kMaxPhases = 16;

template <typename T>
Status take(Result<std::vector<T>> result, std::vector<T>& into) {
  if (!result.ok()) return result.status();
  into = std::move(result).value();
  return Status();
}

}  // namespace

double TimedPhase::microseconds() const {
  uint64_t longest_ns = 0;
  for (const Interval& interval : of_rank)
    longest_ns = std::max(longest_ns, interval.end_ns - interval.begin_ns);
  return static_cast<double>(longest_ns) * 1e-3;
}

Result<std::unique_ptr<LayerRun>> LayerRun::create(World& world, const Workload& workload,
                                                   const LayerOptions& options) {
  auto run = std::unique_ptr<LayerRun>(new LayerRun(world, workload, options));
  MoeLayerConfig config = layer_config(options);
  config.ep.n_experts = workload.n_experts;
  config.ep.top_k = workload.top_k;
  config.ep.hidden = workload.hidden;
  config.ep.max_tokens_per_rank = workload.max_tokens_per_rank();
  config.expert_width = workload.expert_width;
  // On a GPU any number of blocks will do; emulated blocks are costly, and as few as dispatch has.
  if (world.target() == Target::kHost)
    config.num_matmul_blocks = config.ep.n_sms > 0 ? config.ep.n_sms : kHostEpTuning.num_blocks;
  if (run->is_fast()) {
    SWITCHYARD_RETURN_IF_ERROR(run->create_fast(config));
  } else {
    auto ep = ExpertParallel::create(world, config.ep);
    if (!ep.ok()) return ep.status();
    run->own_ep_ = std::move(ep).value();
    run->ep_ = run->own_ep_.get();
  }
  const Result<RowBuffers> rows = run->ep_->row_buffers(world.local_ranks().front());
  if (!rows.ok()) return rows.status();
  run->max_rows_ = rows.value().max_rows;
  return run;
}

Result<std::unique_ptr<LayerRun>> LayerRun::create_on_flight(LayerRun& first, int flight_idx) {
  auto run = std::unique_ptr<LayerRun>(new LayerRun(first.world_, first.workload_, first.options_));
  const Result<ExpertParallel*> flight = first.ep_->flight(flight_idx);
  if (!flight.ok()) return flight.status();
  run->ep_ = flight.value();
  run->max_rows_ = first.max_rows_;
  if (!first.is_fast()) return run;
  const Result<MoeLayer*> layer = first.layer_->flight(flight_idx);
  if (!layer.ok()) return layer.status();
  run->layer_ = layer.value();
  return run;
}

Status LayerRun::allocate(const reference::MlpExperts& experts) {
  ranks_.resize(static_cast<size_t>(world_.n_ranks()));
  for (const int rank : world_.local_ranks()) {
    SWITCHYARD_RETURN_IF_ERROR(allocate_inputs(rank));
    SWITCHYARD_RETURN_IF_ERROR(view_exchange(rank));
    if (is_fast())
      view_fast(rank);
    else
      SWITCHYARD_RETURN_IF_ERROR(allocate_plain(rank, experts));
  }
  size_t i = 0;
  for (WeightTensors& weights : weights_) {
    const int rank = world_.local_ranks()[i++];
    SWITCHYARD_RETURN_IF_ERROR(weights.upload(experts, experts_of_rank(*ep_, rank, workload_.n_experts)));
  }
  return Status();
}

Status LayerRun::allocate_inputs(int r) {
  const Rank& rank = world_.rank(r);
  RankBuffers& buffers = of(r);
  const uint64_t num_tokens = static_cast<uint64_t>(workload_.tokens_per_rank[r]);
  Result<reference::TokenTensors> tokens = reference::TokenTensors::create(
      rank, {.top_k = workload_.top_k, .hidden = workload_.hidden, .format = ep_->config().dispatch_format},
      workload_.tokens_per_rank[r], options_.style);
  if (!tokens.ok()) return tokens.status();
  buffers.tokens = std::move(tokens).value();
  SWITCHYARD_RETURN_IF_ERROR(
      allocate_into(buffers.logits, rank, num_tokens * static_cast<uint64_t>(workload_.n_experts)));
  SWITCHYARD_RETURN_IF_ERROR(
      allocate_into(buffers.topk_weights, rank, num_tokens * static_cast<uint64_t>(workload_.top_k)));
  return allocate_into(buffers.stamps, rank, kMaxPhases + 1);
}

// The rows of ExpertParallel.
Status LayerRun::view_exchange(int r) {
  const Rank& rank = world_.rank(r);
  RankBuffers& buffers = of(r);
  const Result<RowBuffers> rows = ep_->row_buffers(r);
  if (!rows.ok()) return rows.status();
  const TokenFormatInfo format = info_of(ep_->config().dispatch_format);
  const uint64_t max_rows = rows.value().max_rows;
  buffers.rows = rank.view(reinterpret_cast<uint8_t*>(rows.value().encoded_rows),
                           max_rows * format.row_bytes(workload_.hidden));
  buffers.scales = rank.view(reinterpret_cast<uint8_t*>(rows.value().scales),
                             format.scale_tensor_bytes(rows.value().max_rows, workload_.hidden).value());
  const uint64_t output_bytes = encodes_outputs() ? ep_->combine_message_bytes()
                                                  : static_cast<uint64_t>(workload_.hidden) * sizeof(bf16);
  buffers.expert_outputs =
      rank.view(encodes_outputs() ? reinterpret_cast<uint8_t*>(rows.value().encoded_outputs)
                                  : reinterpret_cast<uint8_t*>(rows.value().expert_outputs),
                max_rows * output_bytes);
  buffers.src_info = rank.view(rows.value().src_info, 2 * max_rows);
  return Status();
}

// Everything that the host has to do before the step is enqueued.
Status LayerRun::prepare(int step_idx, reference::Step& step) {
  describe(step);
  if (has_router(workload_)) {
    const std::vector<std::vector<float>> logits = make_logits(workload_, step_idx);
    for (int rank = 0; rank < world_.n_ranks(); ++rank) {
      if (world_.is_local(rank)) SWITCHYARD_RETURN_IF_ERROR(of(rank).logits.upload(logits[rank]));
      reference::Routing routing =
          reference::topk_softmax(logits[rank], step.num_tokens(rank), workload_.n_experts, workload_.top_k);
      step.topk_ids[rank] = std::move(routing.topk_ids);
      step.topk_weights[rank] = std::move(routing.topk_weights);
    }
  }
  apply_padding(workload_, step_idx, step);
  if (options_.style.is_encoded) step = reference::with_encoded_tokens(std::move(step));
  const reference::Step sent = exchanged(step);
  for (const int rank : world_.local_ranks()) SWITCHYARD_RETURN_IF_ERROR(prepare(rank, step, sent));
  return Status();
}

// `sent`: the step as dispatch sees it.
Status LayerRun::prepare(int rank, const reference::Step& step, const reference::Step& sent) {
  RankBuffers& buffers = of(rank);
  SWITCHYARD_RETURN_IF_ERROR(buffers.tokens.upload(step, rank));
  if (has_router(workload_))
    SWITCHYARD_RETURN_IF_ERROR(buffers.topk_weights.fill_bytes(0xff));
  else
    SWITCHYARD_RETURN_IF_ERROR(buffers.topk_weights.upload(step.topk_weights[rank]));
  uint64_t num_rows = 0, num_expert_rows = 0;
  for (const auto& rows : reference::dispatched_rows(sent, rank))
    num_rows = sent.next_group(num_rows, rows.size());
  if (!is_fast()) {
    for (const auto& rows : reference::dispatched_rows(step, rank)) num_expert_rows += rows.size();
    SWITCHYARD_RETURN_IF_ERROR(buffers.group_input_scales.upload(sent.group_input_scales(rank)));
    SWITCHYARD_RETURN_IF_ERROR(reserve_rows(rank, num_rows, num_expert_rows));
    SWITCHYARD_RETURN_IF_ERROR(buffers.row_experts.fill_bytes(0xff));
    SWITCHYARD_RETURN_IF_ERROR(buffers.row_weights.fill_bytes(0xff));
  }
  // Overwrites the outputs: memory that a step fails to write must not look right. Rows that it should not
  // write are left alone, since most of their memory is never accessed.
  const uint64_t num_filled = std::min<uint64_t>(num_rows, buffers.src_info.size() / 2);
  SWITCHYARD_RETURN_IF_ERROR(
      buffers.rows.fill_bytes(0xff, num_filled * info_of(step.format).row_bytes(workload_.hidden)));
  SWITCHYARD_RETURN_IF_ERROR(buffers.src_info.fill_bytes(0xff, 2 * num_filled));
  SWITCHYARD_RETURN_IF_ERROR(buffers.row_counts.fill_bytes(0));  // a dispatch that breaks has no rows
  SWITCHYARD_RETURN_IF_ERROR(buffers.routed_ids.fill_bytes(0xff));
  SWITCHYARD_RETURN_IF_ERROR(buffers.scales.fill_bytes(0xff));
  return buffers.stamps.fill_bytes(0);
}

// Enqueues the rank's next time stamp: the time at which its stream reaches it.
Status LayerRun::stamp(int r) {
  const Rank& rank = world_.rank(r);
  return rank.launch(kernel_table(rank).time_stamp, {},
                     {ranks_[static_cast<size_t>(r)].stamps.data() + phases_.size()});
}

// Enqueues phase by phase over all ranks, not rank by rank: if there are more ranks than hardware queues,
// streams share queues, and a launch that waits for a peer must not be queued in front of the launch that it
// waits for.
Status LayerRun::enqueue(const Phase& phase) {
  const FaultPlan& faults = options_.faults;
  if (faults.kill.phase == phase.name) killed_ = true;
  phases_.push_back({phase.name, {}});
  for (const int r : world_.local_ranks()) {
    Rank& rank = world_.rank(r);
    if (!is_alive(r) && static_cast<int>(world_.local_ranks().size()) < world_.n_ranks()) {
      (void)rank.synchronize();  // as where ranks share a process, it does what comes before
      std::raise(SIGKILL);       // the rank's own process
    }
    if (!is_alive(r)) continue;
    const DeviceScope active = device_of(rank).activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    if (faults.stall.rank == r && faults.stall.phase == phase.name)
      SWITCHYARD_RETURN_IF_ERROR(
          kernel_table(rank).stall({}, rank.stream(), {faults.stall.milliseconds * 1'000'000}));
    SWITCHYARD_RETURN_IF_ERROR(phase.launch(r));
  }
  // Stamps come behind the launches of all ranks: a stamp waits for its rank's launch, and ranks may share a
  // queue.
  for (const int r : world_.local_ranks())
    if (is_alive(r)) SWITCHYARD_RETURN_IF_ERROR(stamp(r));
  return Status();
}

// Called after the step has ended, with or without a fault.
Status LayerRun::take_times() {
  for (TimedPhase& phase : phases_) phase.of_rank.assign(ranks_.size(), {});
  for (const int rank : world_.local_ranks()) {
    const Result<std::vector<uint64_t>> stamps = ranks_[static_cast<size_t>(rank)].stamps.download();
    if (!stamps.ok()) return stamps.status();
    for (size_t i = 0; i < phases_.size(); ++i) {
      const uint64_t begin_ns = stamps.value()[i], end_ns = stamps.value()[i + 1];
      if (end_ns != 0) phases_[i].of_rank[static_cast<size_t>(rank)] = {begin_ns, end_ns};
    }
  }
  return Status();
}

Status LayerRun::run_at_once(const std::vector<LayerRun*>& layers, int first_step,
                             const std::vector<reference::Step*>& steps) {
  std::vector<std::vector<Phase>> phases;
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i]->phases_.clear();
    SWITCHYARD_RETURN_IF_ERROR(layers[i]->prepare(first_step + static_cast<int>(i), *steps[i]));
    phases.push_back(layers[i]->phases_of(*steps[i]));
  }
  Status status;
  for (LayerRun* layer : layers)
    for (const int rank : layer->local_ranks())
      if (status.ok()) status = layer->stamp(rank);
  for (size_t phase_idx = 0; phase_idx < phases.front().size(); ++phase_idx)
    for (size_t i = 0; i < layers.size() && status.ok(); ++i)
      status = layers[i]->enqueue(phases[i][phase_idx]);
  // Who is to blame for an error of a kernel behind a rank that has ended is known there.
  if (const Status ended = layers.front()->ep_->synchronize(); !ended.ok()) status = ended;
  for (LayerRun* layer : layers)
    if (const Status timed = layer->take_times(); !timed.ok() && status.ok()) status = timed;
  return status;
}

std::vector<std::vector<bf16>> LayerRun::expected_outputs(const reference::Step& step,
                                                          const reference::MlpExperts& experts) const {
  if (is_fast()) return reference::fused_moe_layer(step, {experts, matmul_element()});
  return is_per_rank() ? reference::moe_layer_per_rank(step, experts) : reference::moe_layer(step, experts);
}

double LayerRun::tolerance() const {
  if (!is_fast()) return 0;
  const bool has_fp8 = is_encoded() || ep_->config().combine_format != CombineFormat::kBF16;
  return has_fp8 ? 0.06 : 0.01;
}

std::string LayerRun::protocol_reason() const {
  if (!is_fast() || options_.ep.protocol != Protocol::kAutomatic) return ep_->protocol_reason();
  if (options_.gate_up_start == GateUpStart::kWithRows) return "gate_up starts with the rows";
  if (is_coded(options_.weights) && ep_->config().combine_format != CombineFormat::kBF16)
    return "it encodes what matmuls of coded weights write in bf16";
  return ep_->protocol_reason();
}

reference::Step LayerRun::exchanged(const reference::Step& step) const {
  return is_per_rank() ? reference::per_rank(step) : step;
}

void LayerRun::describe(reference::Step& step) const {
  const ExpertParallelConfig& config = ep_->config();
  step.format = config.dispatch_format;
  step.input_scale = options_.style.has_device_scale ? kInputScale : config.input_scale;
  step.expert_input_scales = config.expert_input_scales;
  step.row_alignment = static_cast<uint32_t>(config.row_alignment);
  step.min_group_rows = static_cast<uint32_t>(config.max_rows_per_expert);
  step.combine_format = config.combine_format;
  step.reduces_at_owner = config.reduce_at_owner;
  step.has_shared_expert = config.shared_expert == SharedExpert::kFused;
  step.is_shared_output_encoded = encodes_outputs();
  step.skips_all_to_all = config.routing == Routing::kSkipAllToAll;
  step.allreduce_world_size = config.allreduce_world_size;
  reference::place_experts(step, *ep_);
}

Result<std::vector<int32_t>> LayerRun::source_ranks(int rank,
                                                    const reference::DispatchResult& dispatch) const {
  const Result<std::vector<uint32_t>> offsets = ep_->source_row_offsets(rank);
  if (!offsets.ok()) return offsets.status();
  const size_t num_rows = dispatch.src_info.size() / 2, n_ranks = static_cast<size_t>(world_.n_ranks());
  std::vector<int32_t> source(num_rows, rank);  // a shared expert's rows are the rank's own
  for (size_t i = 0; i < offsets.value().size(); ++i) {
    // Fills up to the end of the expert's rows; the next source rank overwrites its part.
    const size_t group = static_cast<size_t>(num_matrices() - ep_->n_local_experts()) + i / n_ranks;
    const size_t end = std::min<size_t>(dispatch.row_offsets[group + 1], num_rows);
    for (size_t row = offsets.value()[i]; row < end; ++row) source[row] = static_cast<int32_t>(i % n_ranks);
  }
  for (size_t row = 0; row < num_rows; ++row)
    if (dispatch.src_info[2 * row] < 0) source[row] = -1;
  return source;
}

Result<LayerRun::Results> LayerRun::download(int rank) const {
  const RankBuffers& buffers = of(rank);
  Results results;
  if (has_router(workload_)) {
    SWITCHYARD_RETURN_IF_ERROR(take(buffers.routed_ids.download(), results.routing.topk_ids));
    SWITCHYARD_RETURN_IF_ERROR(take(buffers.topk_weights.download(), results.routing.topk_weights));
  }
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.row_offsets.download(), results.dispatch.row_offsets));
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.row_counts.download(), results.dispatch.row_counts));
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.expert_ids.download(), results.dispatch.expert_ids));
  const uint64_t num_rows =
      std::min<uint64_t>(results.dispatch.row_offsets.back(), buffers.src_info.size() / 2);
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.src_info.download(2 * num_rows), results.dispatch.src_info));
  SWITCHYARD_RETURN_IF_ERROR(take(source_ranks(rank, results.dispatch), results.src_rank));
  SWITCHYARD_RETURN_IF_ERROR(download_rows(rank, num_rows, results.dispatch));
  if (encodes_outputs())
    SWITCHYARD_RETURN_IF_ERROR(take(buffers.expert_outputs.download(num_rows * ep_->combine_message_bytes()),
                                    results.encoded_outputs));
  if (!is_fast() || !encodes_outputs()) {
    const Buffer<bf16> outputs =
        world_.rank(rank).view(returned_rows(rank), num_rows * static_cast<uint64_t>(workload_.hidden));
    SWITCHYARD_RETURN_IF_ERROR(take(outputs.download(), results.expert_outputs));
  }
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.tokens.output(workload_.tokens_per_rank[rank]), results.output));
  return results;
}

// The rows as they came, with what describes them.
Status LayerRun::download_rows(int rank, uint64_t num_rows, reference::DispatchResult& dispatch) const {
  const RankBuffers& buffers = of(rank);
  const uint64_t num_elements = num_rows * static_cast<uint64_t>(workload_.hidden);
  if (is_per_rank()) {
    const uint64_t num_choices = num_rows * static_cast<uint64_t>(workload_.top_k);
    SWITCHYARD_RETURN_IF_ERROR(take(buffers.row_experts.download(num_choices), dispatch.row_experts));
    SWITCHYARD_RETURN_IF_ERROR(take(buffers.row_weights.download(num_choices), dispatch.row_weights));
  }
  if (!is_encoded()) {
    bf16* const rows = reinterpret_cast<bf16*>(buffers.rows.data());
    return take(world_.rank(rank).view(rows, num_elements).download(), dispatch.rows);
  }
  const uint64_t row_bytes = info_of(ep_->config().dispatch_format).row_bytes(workload_.hidden);
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.rows.download(num_rows * row_bytes), dispatch.encoded_rows));
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.scales.download(), dispatch.scales));
  dispatch.max_rows = buffers.src_info.size() / 2;
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.scale_row_offsets.download(), dispatch.scale_row_offsets));
  return is_fast() ? Status() : take(buffers.decoded.download(num_elements), dispatch.rows);
}

}  // namespace switchyard::tools
