#include "moe_layer.hpp"

#include <algorithm>
#include <csignal>
#include <numeric>

#include "buffers.hpp"
#include "reference/per_rank.hpp"
#include "reference/placement.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard::tools {
namespace {

// A step has fewer.
constexpr size_t kMaxPhases = 16;

// The matrices of one rank's groups of rows, contiguous. The shared expert has the last index but comes
// first.
std::vector<bf16> matrices_of(const std::vector<std::vector<bf16>>& matrices, int rank,
                              const ExpertParallel& ep) {
  std::vector<bf16> all;
  if (num_matrices(ep) > ep.n_local_experts()) all = matrices.back();
  for (int seat = 0; seat < ep.n_local_experts(); ++seat) {
    // An empty seat has any weights: no row goes there.
    const auto& matrix = matrices[static_cast<size_t>(std::max(0, ep.placement().expert_at({rank, seat})))];
    all.insert(all.end(), matrix.begin(), matrix.end());
  }
  return all;
}

}  // namespace

double TimedPhase::microseconds() const {
  uint64_t longest_ns = 0;
  for (const Interval& interval : of_rank)
    longest_ns = std::max(longest_ns, interval.end_ns - interval.begin_ns);
  return static_cast<double>(longest_ns) * 1e-3;
}

Result<std::unique_ptr<MoeLayer>> MoeLayer::create(World& world, const Workload& workload,
                                                   ExpertParallelConfig config, const FaultPlan& faults,
                                                   const reference::TensorStyle& style) {
  auto layer = std::unique_ptr<MoeLayer>(new MoeLayer(world, workload, faults, style));
  config.n_experts = workload.n_experts;
  config.top_k = workload.top_k;
  config.hidden = workload.hidden;
  config.max_tokens_per_rank = workload.max_tokens_per_rank();
  auto ep = ExpertParallel::create(world, config);
  if (!ep.ok()) return ep.status();
  layer->own_ep_ = std::move(ep).value();
  layer->ep_ = layer->own_ep_.get();
  const Result<RowBuffers> rows = layer->ep_->row_buffers(world.local_ranks().front());
  if (!rows.ok()) return rows.status();
  layer->max_rows_ = rows.value().max_rows;
  return layer;
}

Result<std::unique_ptr<MoeLayer>> MoeLayer::create_on_flight(MoeLayer& first, int flight_idx) {
  auto layer =
      std::unique_ptr<MoeLayer>(new MoeLayer(first.world_, first.workload_, first.faults_, first.style_));
  const Result<ExpertParallel*> flight = first.ep_->flight(flight_idx);
  if (!flight.ok()) return flight.status();
  layer->ep_ = flight.value();
  layer->max_rows_ = first.max_rows_;
  return layer;
}

Status MoeLayer::allocate(const reference::MlpExperts& experts) {
  const uint64_t hidden = static_cast<uint64_t>(workload_.hidden);
  ranks_.resize(static_cast<size_t>(world_.n_ranks()));
  for (const int r : world_.local_ranks()) {
    const Rank& rank = world_.rank(r);
    RankBuffers& buffers = ranks_[static_cast<size_t>(r)];
    const uint64_t num_tokens = static_cast<uint64_t>(workload_.tokens_per_rank[r]);
    const uint64_t num_ids = num_tokens * static_cast<uint64_t>(workload_.top_k);
    const uint64_t num_groups = static_cast<uint64_t>(ep_->num_groups());
    Result<RowBuffers> rows = ep_->row_buffers(r);
    if (!rows.ok()) return rows.status();
    const TokenFormatInfo format = info_of(ep_->config().dispatch_format);
    const uint64_t max_rows = rows.value().max_rows;
    buffers.rows = rank.view(reinterpret_cast<uint8_t*>(rows.value().encoded_rows),
                             max_rows * format.row_bytes(workload_.hidden));
    buffers.scales = rank.view(reinterpret_cast<uint8_t*>(rows.value().scales),
                               format.scale_tensor_bytes(rows.value().max_rows, workload_.hidden).value());
    const uint64_t output_bytes = encodes_outputs() ? ep_->combine_message_bytes() : hidden * sizeof(bf16);
    buffers.expert_outputs =
        rank.view(encodes_outputs() ? reinterpret_cast<uint8_t*>(rows.value().encoded_outputs)
                                    : reinterpret_cast<uint8_t*>(rows.value().expert_outputs),
                  max_rows * output_bytes);
    buffers.src_info = rank.view(rows.value().src_info, 2 * max_rows);
    SWITCHYARD_RETURN_IF_ERROR(
        allocate_into(buffers.logits, rank, num_tokens * static_cast<uint64_t>(workload_.n_experts)));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.topk_weights, rank, num_ids));
    Result<reference::TokenTensors> tokens = reference::TokenTensors::create(
        rank, {.top_k = workload_.top_k, .hidden = workload_.hidden, .format = ep_->config().dispatch_format},
        workload_.tokens_per_rank[r], style_);
    if (!tokens.ok()) return tokens.status();
    buffers.tokens = std::move(tokens).value();
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.routed_ids, rank, num_ids));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.stamps, rank, kMaxPhases + 1));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.expert_ids, rank, num_groups));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_offsets, rank, num_groups + 1));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_counts, rank, num_groups));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.group_input_scales, rank, num_groups));
    if (is_per_rank()) SWITCHYARD_RETURN_IF_ERROR(allocate_choices(r));
    if (format.placement == ScalePlacement::kTiled)
      SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.scale_row_offsets, rank, num_groups));
    if (is_fast()) continue;
    SWITCHYARD_RETURN_IF_ERROR(
        upload_into(buffers.gate_up_weights, rank, matrices_of(experts.gate_up, r, *ep_)));
    SWITCHYARD_RETURN_IF_ERROR(upload_into(buffers.down_weights, rank, matrices_of(experts.down, r, *ep_)));
  }
  if (!is_fast()) return Status();
  Result<std::unique_ptr<FastExperts>> fast =
      FastExperts::create(world_, *ep_, experts, matmul_rows(), max_expert_rows());
  if (!fast.ok()) return fast.status();
  fast_experts_ = std::move(fast).value();
  return Status();
}

Status MoeLayer::allocate_choices(int r) {
  RankBuffers& buffers = ranks_[static_cast<size_t>(r)];
  const Rank& rank = world_.rank(r);
  const uint64_t num_choices = uint64_t{max_rows_} * static_cast<uint64_t>(workload_.top_k);
  const uint64_t num_groups = static_cast<uint64_t>(num_matrices(*ep_));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_experts, rank, num_choices));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_weights, rank, num_choices));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_of_choice, rank, num_choices));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.group_offsets, rank, num_groups + 1));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.group_counts, rank, num_groups));
  std::vector<int32_t> ids(num_groups);
  std::iota(ids.begin(), ids.end(), 0);
  return upload_into(buffers.group_ids, rank, ids);
}

// The experts' intermediate buffers hold the rows of this step, not of the worst case: the tool knows the
// routing.
Status MoeLayer::reserve_rows(int r, uint64_t num_rows, uint64_t num_expert_rows) {
  RankBuffers& buffers = ranks_[static_cast<size_t>(r)];
  const uint64_t width = static_cast<uint64_t>(workload_.expert_width);
  const uint64_t hidden = static_cast<uint64_t>(workload_.hidden);
  // Fast experts have their own for all rows; tensors of theirs have as many.
  const uint64_t num_expanded = is_fast() ? max_expert_rows() : num_expert_rows;
  if (is_per_rank() && buffers.expert_rows.size() < num_expanded * hidden) {
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.expert_rows, world_.rank(r), num_expanded * hidden));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.expert_results, world_.rank(r), num_expanded * hidden));
  }
  if (is_fast()) {
    if (decodes_rows() && buffers.decoded.size() == 0)
      SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.decoded, world_.rank(r), max_rows_ * hidden));
    if (encodes_outputs() && buffers.down.size() == 0)
      SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.down, world_.rank(r), max_rows_ * hidden));
    return Status();
  }
  if (is_encoded() && buffers.decoded.size() < num_rows * hidden)
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.decoded, world_.rank(r), num_rows * hidden));
  if (encodes_outputs() && buffers.down.size() < num_rows * hidden)
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.down, world_.rank(r), num_rows * hidden));
  const uint64_t num_worked_on = is_per_rank() ? num_expert_rows : num_rows;
  if (num_worked_on * width <= buffers.activated.size()) return Status();
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.gate_up, world_.rank(r), num_worked_on * 2 * width));
  return allocate_into(buffers.activated, world_.rank(r), num_worked_on * width);
}

LaunchShape MoeLayer::layer_launch(int rank) const {
  const bool is_host = world_.target() == Target::kHost;
  const int num_blocks = is_host ? ep_->n_sms() : 4 * device_of(world_.rank(rank)).num_multiprocessors();
  return {.num_blocks = static_cast<uint32_t>(num_blocks), .num_threads = is_host ? kHostThreads : 256u};
}

// Everything that the host has to do before the step is enqueued.
Status MoeLayer::prepare(int step_idx, reference::Step& step) {
  describe(step);
  if (has_router(workload_)) {
    const std::vector<std::vector<float>> logits = make_logits(workload_, step_idx);
    for (int rank = 0; rank < world_.n_ranks(); ++rank) {
      if (world_.is_local(rank)) SWITCHYARD_RETURN_IF_ERROR(ranks_[rank].logits.upload(logits[rank]));
      reference::Routing routing =
          reference::topk_softmax(logits[rank], step.num_tokens(rank), workload_.n_experts, workload_.top_k);
      step.topk_ids[rank] = std::move(routing.topk_ids);
      step.topk_weights[rank] = std::move(routing.topk_weights);
    }
  }
  apply_padding(workload_, step_idx, step);
  if (style_.is_encoded) step = reference::with_encoded_tokens(std::move(step));
  const reference::Step sent = exchanged(step);
  for (const int rank : world_.local_ranks()) {
    RankBuffers& buffers = ranks_[rank];
    SWITCHYARD_RETURN_IF_ERROR(buffers.tokens.upload(step, rank));
    if (has_router(workload_))
      SWITCHYARD_RETURN_IF_ERROR(buffers.topk_weights.fill_bytes(0xff));
    else
      SWITCHYARD_RETURN_IF_ERROR(buffers.topk_weights.upload(step.topk_weights[rank]));
    SWITCHYARD_RETURN_IF_ERROR(buffers.group_input_scales.upload(sent.group_input_scales(rank)));
    uint64_t num_rows = 0, num_expert_rows = 0;
    for (const auto& rows : reference::dispatched_rows(sent, rank))
      num_rows = sent.next_group(num_rows, rows.size());
    for (const auto& rows : reference::dispatched_rows(step, rank)) num_expert_rows += rows.size();
    SWITCHYARD_RETURN_IF_ERROR(reserve_rows(rank, num_rows, num_expert_rows));
    if (is_per_rank()) {
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
    SWITCHYARD_RETURN_IF_ERROR(buffers.stamps.fill_bytes(0));
  }
  return Status();
}

// Enqueues the rank's next time stamp: the time at which its stream reaches it.
Status MoeLayer::stamp(int r) {
  const Rank& rank = world_.rank(r);
  return rank.launch(kernel_table(rank).time_stamp, {},
                     {ranks_[static_cast<size_t>(r)].stamps.data() + phases_.size()});
}

// Enqueues phase by phase over all ranks, not rank by rank: if there are more ranks than hardware queues,
// streams share queues, and a launch that waits for a peer must not be queued in front of the launch that it
// waits for.
Status MoeLayer::enqueue(const std::string& phase, const std::function<Status(int rank)>& launch) {
  if (faults_.kill.phase == phase) killed_ = true;
  phases_.push_back({phase, {}});
  for (const int r : world_.local_ranks()) {
    Rank& rank = world_.rank(r);
    if (!is_alive(r) && static_cast<int>(world_.local_ranks().size()) < world_.n_ranks()) {
      (void)rank.synchronize();  // as where ranks share a process, it does what comes before
      std::raise(SIGKILL);       // the rank's own process
    }
    if (!is_alive(r)) continue;
    const DeviceScope active = device_of(rank).activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    if (faults_.stall.rank == r && faults_.stall.phase == phase)
      SWITCHYARD_RETURN_IF_ERROR(
          kernel_table(rank).stall({}, rank.stream(), {faults_.stall.milliseconds * 1'000'000}));
    SWITCHYARD_RETURN_IF_ERROR(launch(r));
  }
  // Stamps come behind the launches of all ranks: a stamp waits for its rank's launch, and ranks may share a
  // queue.
  for (const int r : world_.local_ranks())
    if (is_alive(r)) SWITCHYARD_RETURN_IF_ERROR(stamp(r));
  return Status();
}

// Called after the step has ended, with or without a fault.
Status MoeLayer::take_times() {
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

Status MoeLayer::enqueue_router(const reference::Step& step) {
  return enqueue("route", [&](int rank) {
    RankBuffers& buffers = ranks_[rank];
    const TopkSoftmaxParams params{step.num_tokens(rank),     workload_.n_experts,
                                   workload_.top_k,           buffers.logits.data(),
                                   buffers.routed_ids.data(), buffers.topk_weights.data()};
    return kernel_table(world_.rank(rank))
        .topk_softmax(layer_launch(rank), world_.rank(rank).stream(), params);
  });
}

const int32_t* MoeLayer::topk_ids(int rank) const {
  const RankBuffers& buffers = ranks_[static_cast<size_t>(rank)];
  const bool has_routed_ids = has_router(workload_) && workload_.padding == 0 && !style_.has_wide_ids;
  return has_routed_ids ? buffers.routed_ids.data() : buffers.tokens.topk_ids();
}

Status MoeLayer::enqueue_dispatch(const reference::Step& step, StepMode mode) {
  const auto input = [&](int rank) {
    DispatchInput given = ranks_[rank].tokens.input(step.num_tokens(rank));
    given.topk_ids = topk_ids(rank);
    given.topk_weights = ranks_[rank].topk_weights.data();
    return given;
  };
  const auto output = [&](int rank) {
    RankBuffers& buffers = ranks_[rank];
    return DispatchOutput{buffers.rows.data(),
                          buffers.src_info.data(),
                          static_cast<uint32_t>(buffers.src_info.size() / 2),
                          buffers.row_offsets.data(),
                          buffers.expert_ids.data(),
                          buffers.scales.data(),
                          buffers.scale_row_offsets.data(),
                          buffers.row_counts.data(),
                          nullptr,
                          UnwrittenRows::kLeft,
                          buffers.row_experts.data(),
                          buffers.row_weights.data()};
  };
  if (mode == StepMode::kFused)
    return enqueue("dispatch", [&](int rank) { return ep_->dispatch(rank, input(rank), output(rank)); });
  SWITCHYARD_RETURN_IF_ERROR(
      enqueue("dispatch_async", [&](int rank) { return ep_->dispatch_async(rank, input(rank)); }));
  return enqueue("dispatch_wait", [&](int rank) { return ep_->dispatch_wait(rank, output(rank)); });
}

Status MoeLayer::enqueue_combine(const reference::Step& step, StepMode mode) {
  const auto input = [&](int rank) {
    return CombineInput{ranks_[rank].expert_outputs.data(), ranks_[rank].src_info.data()};
  };
  const auto output = [&](int rank) {
    RankBuffers& buffers = ranks_[rank];
    return CombineOutput{topk_ids(rank), buffers.topk_weights.data(), step.num_tokens(rank),
                         buffers.tokens.destination()};
  };
  if (mode == StepMode::kFused) {
    SWITCHYARD_RETURN_IF_ERROR(
        enqueue("combine", [&](int rank) { return ep_->combine(rank, input(rank), output(rank)); }));
  } else {
    SWITCHYARD_RETURN_IF_ERROR(
        enqueue("combine_async", [&](int rank) { return ep_->combine_async(rank, input(rank)); }));
    SWITCHYARD_RETURN_IF_ERROR(
        enqueue("combine_wait", [&](int rank) { return ep_->combine_wait(rank, output(rank)); }));
  }
  if (ep_->config().routing == Routing::kAllToAll || step.num_reducing() == 1) return Status();
  return enqueue("all_reduce", [&](int rank) {
    return ep_->all_reduce(rank, ranks_[rank].tokens.destination().output, step.num_tokens(rank));
  });
}

Status MoeLayer::begin_step(const reference::Step& step) {
  for (const int rank : world_.local_ranks()) SWITCHYARD_RETURN_IF_ERROR(stamp(rank));
  return has_router(workload_) ? enqueue_router(step) : Status();
}

Status MoeLayer::run_at_once(const std::vector<MoeLayer*>& layers, int first_step, StepMode mode,
                             const std::vector<reference::Step*>& steps) {
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i]->phases_.clear();
    SWITCHYARD_RETURN_IF_ERROR(layers[i]->prepare(first_step + static_cast<int>(i), *steps[i]));
  }
  Status status;
  const auto for_each_layer = [&](const auto& enqueue_part) {
    for (size_t i = 0; i < layers.size() && status.ok(); ++i) status = enqueue_part(*layers[i], *steps[i]);
  };
  for_each_layer([](MoeLayer& layer, const reference::Step& step) { return layer.begin_step(step); });
  for_each_layer(
      [&](MoeLayer& layer, const reference::Step& step) { return layer.enqueue_dispatch(step, mode); });
  for_each_layer([](MoeLayer& layer, const reference::Step&) { return layer.enqueue_experts(); });
  for_each_layer(
      [&](MoeLayer& layer, const reference::Step& step) { return layer.enqueue_combine(step, mode); });
  // Who is to blame for an error of a kernel behind a rank that has ended is known there.
  if (const Status ended = layers.front()->ep_->synchronize(); !ended.ok()) status = ended;
  for (MoeLayer* layer : layers)
    if (const Status timed = layer->take_times(); !timed.ok() && status.ok()) status = timed;
  return status;
}

reference::Step MoeLayer::exchanged(const reference::Step& step) const {
  return is_per_rank() ? reference::per_rank(step) : step;
}

void MoeLayer::describe(reference::Step& step) const {
  const ExpertParallelConfig& config = ep_->config();
  step.format = config.dispatch_format;
  step.input_scale = style_.has_device_scale ? kInputScale : config.input_scale;
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

Result<std::vector<int32_t>> MoeLayer::source_ranks(int rank,
                                                    const reference::DispatchResult& dispatch) const {
  const Result<std::vector<uint32_t>> offsets = ep_->source_row_offsets(rank);
  if (!offsets.ok()) return offsets.status();
  const size_t num_rows = dispatch.src_info.size() / 2, n_ranks = static_cast<size_t>(world_.n_ranks());
  std::vector<int32_t> source(num_rows, rank);  // a shared expert's rows are the rank's own
  for (size_t i = 0; i < offsets.value().size(); ++i) {
    // Fills up to the end of the expert's rows; the next source rank overwrites its part.
    const size_t group = static_cast<size_t>(num_matrices(*ep_) - ep_->n_local_experts()) + i / n_ranks;
    const size_t end = std::min<size_t>(dispatch.row_offsets[group + 1], num_rows);
    for (size_t row = offsets.value()[i]; row < end; ++row) source[row] = static_cast<int32_t>(i % n_ranks);
  }
  for (size_t row = 0; row < num_rows; ++row)
    if (dispatch.src_info[2 * row] < 0) source[row] = -1;
  return source;
}

Result<MoeLayer::Results> MoeLayer::download(int rank) const {
  const RankBuffers& buffers = ranks_[static_cast<size_t>(rank)];
  Results results;
  const auto take = [](auto result, auto& into) {
    if (!result.ok()) return result.status();
    into = std::move(result).value();
    return Status();
  };
  if (has_router(workload_)) {
    SWITCHYARD_RETURN_IF_ERROR(take(buffers.routed_ids.download(), results.routing.topk_ids));
    SWITCHYARD_RETURN_IF_ERROR(take(buffers.topk_weights.download(), results.routing.topk_weights));
  }
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.row_offsets.download(), results.dispatch.row_offsets));
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.row_counts.download(), results.dispatch.row_counts));
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.expert_ids.download(), results.dispatch.expert_ids));
  const uint64_t num_rows =
      std::min<uint64_t>(results.dispatch.row_offsets.back(), buffers.src_info.size() / 2);
  const uint64_t hidden = static_cast<uint64_t>(workload_.hidden);
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.src_info.download(2 * num_rows), results.dispatch.src_info));
  SWITCHYARD_RETURN_IF_ERROR(take(source_ranks(rank, results.dispatch), results.src_rank));
  if (encodes_outputs())
    SWITCHYARD_RETURN_IF_ERROR(take(buffers.expert_outputs.download(num_rows * ep_->combine_message_bytes()),
                                    results.encoded_outputs));
  if (is_encoded()) {
    const uint64_t row_bytes = info_of(ep_->config().dispatch_format).row_bytes(workload_.hidden);
    SWITCHYARD_RETURN_IF_ERROR(
        take(buffers.rows.download(num_rows * row_bytes), results.dispatch.encoded_rows));
    SWITCHYARD_RETURN_IF_ERROR(take(buffers.scales.download(), results.dispatch.scales));
    if (decodes_rows())
      SWITCHYARD_RETURN_IF_ERROR(take(buffers.decoded.download(num_rows * hidden), results.dispatch.rows));
    results.dispatch.max_rows = buffers.src_info.size() / 2;
    if (buffers.scale_row_offsets.size() > 0)
      SWITCHYARD_RETURN_IF_ERROR(
          take(buffers.scale_row_offsets.download(), results.dispatch.scale_row_offsets));
  } else {
    const Buffer<bf16> rows = world_.rank(rank).view(reinterpret_cast<bf16*>(buffers.rows.data()),
                                                     buffers.rows.size() / sizeof(bf16));
    SWITCHYARD_RETURN_IF_ERROR(take(rows.download(num_rows * hidden), results.dispatch.rows));
  }
  if (is_per_rank()) {
    const uint64_t num_choices = num_rows * static_cast<uint64_t>(workload_.top_k);
    SWITCHYARD_RETURN_IF_ERROR(take(buffers.row_experts.download(num_choices), results.dispatch.row_experts));
    SWITCHYARD_RETURN_IF_ERROR(take(buffers.row_weights.download(num_choices), results.dispatch.row_weights));
  }
  const Buffer<bf16> outputs = world_.rank(rank).view(returned_rows(rank), num_rows * hidden);
  SWITCHYARD_RETURN_IF_ERROR(take(outputs.download(), results.expert_outputs));
  SWITCHYARD_RETURN_IF_ERROR(take(buffers.tokens.output(workload_.tokens_per_rank[rank]), results.output));
  return results;
}

}  // namespace switchyard::tools
