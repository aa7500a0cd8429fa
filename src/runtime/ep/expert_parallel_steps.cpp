// The calls of a step. Each is checked, filled in and enqueued.
#include <limits>
#include <numeric>
#include <utility>

#include "call_checks.hpp"
#include "expert_parallel_impl.hpp"

namespace switchyard {
// To the emulator every rank is a device of its own. Ranks on one GPU meet in its L2, whichever process they
// are in.
Scope ExpertParallel::Impl::signal_scope() const {
  const int here = world.local_ranks().front();
  const bool is_one_device = world.num_ranks_on_device_of(here) == world.n_ranks();
  return world.target() == Target::kCuda && is_one_device ? Scope::kDevice : Scope::kSystem;
}

EpShape ExpertParallel::Impl::shape_of_rank(int rank) const {
  EpShape shape = shape_of(config, n_ranks());
  if (has_table())
    shape.seat_of_id = state(rank).memory.at<int32_t>(layout.seat_table);
  else if (config.routing == Routing::kSkipAllToAll)
    shape.first_expert = rank * n_local_experts();
  return shape;
}

EpShape ExpertParallel::Impl::exchange_shape_of(int rank) const {
  return is_per_rank() ? exchange_shape(config, n_ranks()) : shape_of_rank(rank);
}

std::vector<int> ExpertParallel::Impl::local_ranks() const {
  std::vector<int> local;
  for (int rank = 0; rank < n_ranks(); ++rank)
    if (ranks[static_cast<size_t>(rank)] != nullptr) local.push_back(rank);
  return local;
}

std::vector<int> ExpertParallel::Impl::peers_of(int rank) const {
  if (config.routing == Routing::kSkipAllToAll) return {rank};
  std::vector<int> peers(members.size());
  std::iota(peers.begin(), peers.end(), 0);
  return peers;
}

SharedExpertTokens ExpertParallel::Impl::shared_expert_tokens(int rank, int num_tokens) const {
  if (config.shared_expert == SharedExpert::kNone) return {};
  if (config.routing == Routing::kAllToAll)
    return {.num_groups = 1, .first_token = 0, .num_tokens = num_tokens};
  const int num_sharing = num_reducing_ranks(config, n_ranks()), share = rank % num_sharing;
  const auto first_of = [&](int i) {
    return static_cast<int>(static_cast<int64_t>(num_tokens) * i / num_sharing);
  };
  return {
      .num_groups = 1, .first_token = first_of(share), .num_tokens = first_of(share + 1) - first_of(share)};
}

SharedExpertTokens ExpertParallel::Impl::group_in_front(int rank, int num_tokens) const {
  if (config.row_sets == 1) return shared_expert_tokens(rank, num_tokens);
  return {.num_groups = 1,
          .first_token = std::numeric_limits<int32_t>::max(),
          .num_tokens = static_cast<int32_t>(rows_per_set() * static_cast<uint64_t>(state(rank).row_set))};
}

Status ExpertParallel::Impl::check_rank(const char* call, int rank) const {
  SWITCHYARD_RETURN_IF_ERROR(process.check(call));
  if (rank < 0 || rank >= n_ranks())
    return invalid_argument("%s: rank is %d; it must be 0..%d", call, rank, n_ranks() - 1);
  if (arenas == nullptr)
    return failed_precondition("%s: reset() could not allocate the exchange buffers; call it again", call);
  if (ranks[static_cast<size_t>(rank)] != nullptr) return Status();
  return invalid_argument("%s: rank is %d; it lives in another process", call, rank);
}

Status ExpertParallel::Impl::check_call(int rank, const char* call, Step required) const {
  SWITCHYARD_RETURN_IF_ERROR(check_rank(call, rank));
  const RankState& state = this->state(rank);
  if (const Status& failure = whole().state(rank).failure; !failure.ok())
    return failed_precondition("%s: the last step of rank %d failed (%s); call reset() first", call, rank,
                               failure.message().c_str());
  if (state.step == required) return Status();
  const char* last = state.step == Step::kIdle           ? "a finished step"
                     : state.step == Step::kDispatchSent ? "dispatch_async"
                     : state.step == Step::kDispatched   ? "dispatch"
                                                         : "combine_async";
  const char* next = state.step == Step::kIdle           ? "dispatch or dispatch_async"
                     : state.step == Step::kDispatchSent ? "dispatch_wait"
                     : state.step == Step::kDispatched   ? "combine or combine_async"
                                                         : "combine_wait";
  return failed_precondition("%s on rank %d after %s; next must come %s", call, rank, last, next);
}

RankCall ExpertParallel::Impl::begin_call(int rank, const char* call, Step required) {
  if (Status status = check_rank(call, rank); !status.ok()) return RankCall(std::move(status));
  RankCall begun(state(rank).call_under_way, rank, call);
  if (begun.status().ok()) begun.refuse(check_call(rank, call, required));
  return begun;
}

// Also checks that an array with an entry per token is not null.
Status ExpertParallel::Impl::check_tokens(const char* call, int num_tokens, const void* pointer,
                                          const char* name) const {
  if (num_tokens < 0 || num_tokens > config.max_tokens_per_rank)
    return invalid_argument("%s: num_tokens is %d; it must be 0..%d (max_tokens_per_rank)", call, num_tokens,
                            config.max_tokens_per_rank);
  return num_tokens == 0 ? Status() : check_pointer(call, name, pointer);
}

// Peers write rows, and read expert output, in memory whose address all of them know.
Status ExpertParallel::Impl::check_rows(int rank, const char* call, const DispatchOutput& output) const {
  const RowBuffers own = state(rank).memory.row_buffers();
  if (output.rows == nullptr && output.src_info == nullptr) return Status();
  if (output.rows != own.encoded_rows || output.src_info != own.src_info || output.max_rows != own.max_rows ||
      output.scales != own.scales)
    return invalid_argument(
        "%s: rows, scales, src_info and max_rows must be those of row_buffers(%d): the direct protocol "
        "writes there",
        call, rank);
  return Status();
}
Status ExpertParallel::Impl::check_expert_rows(int rank, const char* call, const void* expert_rows) const {
  const RowBuffers own = state(rank).memory.row_buffers();
  if (expert_rows == nullptr || is_lent(rank, expert_rows)) return Status();
  if (layout.has_encoded_outputs) {
    if (expert_rows == own.encoded_outputs) return Status();
    return invalid_argument(
        "%s: expert_rows must be the encoded_outputs of row_buffers(%d): the direct protocol's peers read "
        "fp8 there",
        call, rank);
  }
  if (expert_rows != own.expert_outputs && expert_rows != own.rows)
    return invalid_argument(
        "%s: expert_rows must be the expert_outputs or the rows of row_buffers(%d), or have been offered: "
        "the direct protocol's peers read there",
        call, rank);
  return Status();
}

Status ExpertParallel::Impl::check_rows_output(int rank, const char* call,
                                               const DispatchOutput& output) const {
  if (is_direct()) {
    SWITCHYARD_RETURN_IF_ERROR(check_rows(rank, call, output));
  } else if (output.max_rows > 0) {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "rows", output.rows));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "src_info", output.src_info));
    if (layout.has_scales) SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "scales", output.scales));
  }
  SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "row_offsets", output.row_offsets));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "expert_ids", output.expert_ids));
  if (output.row_counts != nullptr)
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "row_counts", output.row_counts));
  if (output.src_ranks != nullptr)
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "src_ranks", output.src_ranks));
  if (output.unwritten == UnwrittenRows::kZeroed && config.own_format != nullptr)
    return invalid_argument("%s: unwritten rows cannot be zeroed in %s, a format of the caller's own", call,
                            format_layout(config).name);
  SWITCHYARD_RETURN_IF_ERROR(check_choices(call, output));
  if ((output.source_ranges != nullptr || output.row_totals != nullptr) && !is_direct())
    return invalid_argument(
        "%s: source_ranges and row_totals must be null: the protocol is %s, and not direct", call,
        to_string(config.protocol));
  if (output.source_ranges != nullptr)
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "source_ranges", output.source_ranges));
  if (output.row_totals != nullptr)
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "row_totals", output.row_totals));
  SWITCHYARD_RETURN_IF_ERROR(check_rank_waits(call, output.rank_wait_ns));
  if (output.scale_row_offsets == nullptr) return Status();
  if (!format_layout(config).has_tiled_scales)
    return invalid_argument("%s: scale_row_offsets must be null: format %s has no tiled scales", call,
                            format_layout(config).name);
  return check_pointer(call, "scale_row_offsets", output.scale_row_offsets);
}

Status ExpertParallel::Impl::check_input(int rank, const char* call, const CombineInput& input) const {
  // A rank that received nothing may pass null; only the device knows whether it did.
  if (is_direct()) {
    if (input.expert_rows == nullptr) return Status();
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "expert_rows", input.expert_rows));
    return check_expert_rows(rank, call, input.expert_rows);
  }
  const bool has_shared_rows = shared_expert_tokens(rank, state(rank).num_tokens).num_tokens > 0;
  if (input.expert_rows == nullptr && !has_shared_rows) return Status();
  SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "expert_rows", input.expert_rows));
  return worst_case_rows(config, n_ranks()) > 0 ? check_pointer(call, "src_info", input.src_info) : Status();
}

Status ExpertParallel::Impl::check_destination(int rank, const char* call,
                                               const CombineOutput& output) const {
  SWITCHYARD_RETURN_IF_ERROR(check_rank_waits(call, output.rank_wait_ns));
  const CombineDestination& destination = output.destination;
  // Per rank, and of 64-bit ids, this object has kept what it needs.
  const bool has_kept_ids = is_per_rank() || (output.topk_ids == nullptr && state(rank).has_narrowed_ids);
  SWITCHYARD_RETURN_IF_ERROR(check_tokens(
      call, output.num_tokens, has_kept_ids ? make_combine_call(rank).step.topk_ids : output.topk_ids));
  SWITCHYARD_RETURN_IF_ERROR(
      check_stride(call, "output_stride_bytes", destination.output_stride_bytes, token_bytes(config), 16));
  if (output.num_tokens != state(rank).num_tokens)
    return invalid_argument("%s: num_tokens is %d; this step dispatched %d", call, output.num_tokens,
                            state(rank).num_tokens);
  if (config.shared_expert == SharedExpert::kFused && destination.reduction == CombineReduction::kUnreduced)
    return invalid_argument("%s: with a shared expert there is no unreduced output", call);
  if (is_per_rank() && destination.reduction == CombineReduction::kUnreduced)
    return invalid_argument("%s: where row_layout is per-rank there is no unreduced output", call);
  if (config.reduce_at_owner && destination.reduction == CombineReduction::kUnreduced)
    return invalid_argument("%s: with reduce_at_owner there is no unreduced output", call);
  const bool has_own_epilogue = destination.reduction == CombineReduction::kOwnEpilogue;
  if (has_own_epilogue) SWITCHYARD_RETURN_IF_ERROR(check_epilogue(call, destination));
  if (output.num_tokens == 0) return Status();
  if (!has_own_epilogue) SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "output", destination.output));
  return destination.reduction == CombineReduction::kUnreduced || is_per_rank()
             ? Status()
             : check_pointer(call, "topk_weights", output.topk_weights);
}

// Of combine.
Status ExpertParallel::Impl::check_start(int rank, const CombineInput& input,
                                         const CombineOutput& output) const {
  if (input.awaits_readers && (!is_direct() || has_wire || starts_with_experts()))
    return invalid_argument(
        "combine: awaits_readers must be false: the protocol is %s%s, and combine_start is %s",
        to_string(config.protocol), has_wire ? " with a wire" : "", to_string(config.combine_start));
  if (!starts_with_experts())
    return input.follows_experts ? invalid_argument(
                                       "combine: follows_experts must be false: combine_start is "
                                       "behind-experts")
                                 : Status();
  if (output.destination.reduction != CombineReduction::kWeighted)
    return invalid_argument(
        "combine: with combine_start with-experts the output is weighted, and nothing else");
  if (is_lent(rank, input.expert_rows))
    return invalid_argument(
        "combine: with combine_start with-experts expert_rows must be those of row_buffers(%d), not rows "
        "that "
        "were offered",
        rank);
  return Status();
}

Status ExpertParallel::Impl::check_epilogue(const char* call, const CombineDestination& destination) const {
  if (config.own_epilogue == nullptr)
    return invalid_argument("%s: the destination has an epilogue, but the configuration has no own_epilogue",
                            call);
  if (destination.epilogue_kernels != config.own_epilogue)
    return invalid_argument("%s: the epilogue is of another type than the own_epilogue of the configuration",
                            call);
  if (destination.output_stride_bytes != 0)
    return invalid_argument("%s: output_stride_bytes is %llu; it must be 0 with an epilogue", call,
                            static_cast<unsigned long long>(destination.output_stride_bytes));
  if (destination.epilogue == nullptr)
    return invalid_argument("%s: epilogue is null; own_destination(epilogue) fills it in", call);
  return Status();
}

DispatchCall ExpertParallel::Impl::make_dispatch_call(int rank, int num_tokens) const {
  DispatchCall call = state(rank).dispatch_call;
  call.step.num_tokens = num_tokens;
  call.step.shared_expert = group_in_front(rank, num_tokens);
  if (config.row_sets > 1)
    std::get<DirectDispatchPart>(call.parts).first_scaled_row =
        static_cast<uint32_t>(call.step.shared_expert.num_tokens);
  return call;
}

void ExpertParallel::Impl::fill_in(const DispatchOutput& output, DispatchCall& call) const {
  if (!is_direct()) call.step.max_rows = output.max_rows;
  call.step.row_offsets = output.row_offsets;
  call.step.row_counts = output.row_counts;
  call.step.expert_ids = output.expert_ids;
  call.step.src_info = output.src_info;
  call.step.rank_wait_ns = output.rank_wait_ns;
  call.tensors.rows = static_cast<std::byte*>(output.rows);
  call.tensors.scales = static_cast<std::byte*>(output.scales);
  call.tensors.max_rows = call.step.max_rows;
  call.tensors.scale_row_offsets = output.scale_row_offsets;
}

AnnotateRowsParams ExpertParallel::Impl::make_annotation(int rank, const DispatchOutput& output) const {
  const DispatchStep& step = state(rank).dispatch_call.step;
  const TokenFormatInfo format = info_of(config.dispatch_format);
  const SharedExpertTokens shared = group_in_front(rank, state(rank).num_tokens);
  AnnotateRowsParams params{.my_rank = rank,
                            .n_ranks = step.shape.n_ranks,
                            .num_groups = num_groups(),
                            .first_group = config.row_sets > 1 ? 1 : 0,
                            .num_shared_groups = shared.num_groups,
                            .num_shared_rows = static_cast<uint32_t>(shared.num_tokens),
                            .row_offsets = output.row_offsets,
                            .step_cells = is_direct() ? step.recv_counts.mine : nullptr,
                            .ep_counters = step.ep_counters,
                            .src_ranks = output.src_ranks,
                            .unwritten = output.unwritten,
                            .src_info = output.src_info,
                            .rows = static_cast<std::byte*>(output.rows),
                            .row_bytes = format_layout(config).row_bytes,
                            .scales = static_cast<std::byte*>(output.scales),
                            .scale_placement = format.placement,
                            .num_scales = format.num_scales(config.hidden),
                            .row_scale_bytes = format_layout(config).scales_bytes,
                            .max_rows = is_direct() ? step.max_rows : output.max_rows,
                            .wait_context = step.wait_context};
  if (!is_direct()) return params;
  const RowBuffers own = state(rank).memory.row_buffers();
  params.src_info = own.src_info;
  params.rows = own.encoded_rows;
  params.scales = own.scales;
  return params;
}

Status ExpertParallel::Impl::annotate_rows(int rank, const DispatchOutput& output, Stream stream) const {
  if (output.src_ranks == nullptr && output.unwritten == UnwrittenRows::kLeft) return Status();
  LaunchShape shape = launch_shape();
  shape.programmatic_dependent = false;
  const Rank& here = member(rank);
  return here.launch_on(stream, kernel_table(here).annotate_rows, shape, make_annotation(rank, output));
}

CombineCall ExpertParallel::Impl::make_combine_call(int rank) const {
  const RankState& own = state(rank);
  CombineCall call = own.combine_call;
  call.step.num_tokens = own.num_tokens;
  call.step.shared_expert = group_in_front(rank, own.num_tokens);
  call.step.expert_rows = own.expert_rows;  // combine_wait finds the shared expert's among them
  if (own.has_narrowed_ids && !is_per_rank())
    call.step.topk_ids = own.memory.at<int32_t>(layout.narrowed_ids);
  return call;
}

void ExpertParallel::Impl::fill_in(int rank, const CombineInput& input, CombineCall& call) const {
  call.step.expert_rows = input.expert_rows;
  call.step.src_info = input.src_info;
  if (!is_direct()) return;
  std::get<DirectCombinePart>(call.parts).awaits_readers = input.awaits_readers;
  if (is_lent(rank, input.expert_rows)) {
    const std::vector<const std::byte*>& rows_of = state(rank).found_rows.address_of_reader;
    for (size_t peer = 0; peer < rows_of.size(); ++peer)
      std::get<DirectCombinePart>(call.parts).lent_rows[peer] = rows_of[peer] - bytes_in_front(rank);
    call.step.expert_rows = static_cast<const std::byte*>(input.expert_rows) - bytes_in_front(rank);
    return;
  }
  const RowBuffers own = state(rank).memory.row_buffers();
  const void* outputs =
      layout.has_encoded_outputs ? static_cast<const void*>(own.encoded_outputs) : own.expert_outputs;
  if (input.expert_rows == nullptr) call.step.expert_rows = outputs;
  // Peers count rows from the first set on, and expert outputs are those of one.
  if (config.row_sets > 1 && call.step.expert_rows == outputs)
    call.step.expert_rows = static_cast<const std::byte*>(outputs) - bytes_in_front(rank);
}

uint64_t ExpertParallel::Impl::bytes_in_front(int rank) const {
  return rows_per_set() * static_cast<uint64_t>(state(rank).row_set) * combine_bytes(config);
}

void ExpertParallel::Impl::fill_in(const CombineOutput& output, CombineCall& call) const {
  if (!is_per_rank()) {
    if (output.topk_ids != nullptr) call.step.topk_ids = output.topk_ids;
    call.step.topk_weights = output.topk_weights;
  }
  call.destination = output.destination;
  call.step.rank_wait_ns = output.rank_wait_ns;
}

const CombineKernels& ExpertParallel::Impl::combine_to(const CombineOutput& output) const {
  return output.destination.reduction == CombineReduction::kOwnEpilogue ? *kernels.own_combine
                                                                        : *kernels.combine;
}

uint64_t ExpertParallel::Impl::begin_call(int rank, Stream stream) const {
  whole().state(rank).uses_callers_streams |= stream.is_callers();
  if (!state(rank).is_first_step) return config.timeout_ns;
  // A graph would keep the deadline of a first step for ever.
  const Result<bool> recorded = is_recorded(rank, stream);
  return !recorded.ok() || recorded.value() ? config.timeout_ns : first_timeout_ns(config);
}

Result<bool> ExpertParallel::Impl::is_recorded(int rank, Stream stream) const {
  const Result<StreamHandle> handle = member(rank).handle_of(stream);
  if (!handle.ok()) return handle.status();
  return device_of(member(rank)).is_recording(handle.value());
}

Status ExpertParallel::Impl::wait_for_calls(int rank) const {
  const Rank& here = member(rank);
  return whole().state(rank).uses_callers_streams ? device_of(here).synchronize_all() : here.synchronize();
}

// What could not be enqueued leaves what the last step has as it was: a combine of its rows may follow
// (reopen_step). If ids were made for it, they may have overwritten those of the last step.
Status ExpertParallel::Impl::enqueue_dispatch(int rank, LaunchFunction<DispatchCall> launch,
                                              const DispatchInput& input, const DispatchOutput* output,
                                              Step next, Stream stream) const {
  const Result<StreamHandle> handle = member(rank).handle_of(stream);
  if (!handle.ok()) return handle.status();
  whole().keep_skip(rank, {});
  const bool had_narrowed_ids = state(rank).has_narrowed_ids;
  const int last_set = std::exchange(state(rank).row_set, input.row_set);
  DispatchCall call = make_dispatch_call(rank, input.num_tokens);
  fill_in(rank, input, call);
  if (output != nullptr) fill_in(*output, call);
  Status enqueued = prepare_ids(rank, input, stream);
  if (enqueued.ok()) enqueued = enqueue(rank, launch, call, next, stream);
  if (enqueued.ok()) return enqueued;
  const bool makes_ids = state(rank).has_narrowed_ids || is_per_rank();
  if (makes_ids && state(rank).has_dispatched) whole().state(rank).failure = enqueued;
  state(rank).row_set = last_set;
  state(rank).has_narrowed_ids = had_narrowed_ids;
  return enqueued;
}

Status ExpertParallel::check_may_dispatch(int rank) const {
  return impl_->check_call(rank, "dispatch", Impl::Step::kIdle);
}

Status ExpertParallel::dispatch_async(int rank, const DispatchInput& input, Stream stream) {
  const RankCall begun = impl_->begin_call(rank, "dispatch_async", Impl::Step::kIdle);
  SWITCHYARD_RETURN_IF_ERROR(begun.status());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_input("dispatch_async", input));
  return impl_->enqueue_dispatch(rank, impl_->kernels.dispatch->async, input, nullptr,
                                 Impl::Step::kDispatchSent, stream);
}

Status ExpertParallel::dispatch_wait(int rank, const DispatchOutput& output, Stream stream) {
  const RankCall begun = impl_->begin_call(rank, "dispatch_wait", Impl::Step::kDispatchSent);
  SWITCHYARD_RETURN_IF_ERROR(begun.status());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rows_output(rank, "dispatch_wait", output));
  DispatchCall call = impl_->make_dispatch_call(rank, impl_->state(rank).num_tokens);
  impl_->fill_in(output, call);
  SWITCHYARD_RETURN_IF_ERROR(
      impl_->enqueue(rank, impl_->kernels.dispatch->wait, call, Impl::Step::kDispatched, stream));
  SWITCHYARD_RETURN_IF_ERROR(impl_->fill_siblings(rank, stream));
  SWITCHYARD_RETURN_IF_ERROR(impl_->fetch_choices(rank, output, stream));
  SWITCHYARD_RETURN_IF_ERROR(impl_->count_sources(rank, output, stream));
  return impl_->annotate_rows(rank, output, stream);
}

Status ExpertParallel::dispatch(int rank, const DispatchInput& input, const DispatchOutput& output,
                                Stream stream) {
  const RankCall begun = impl_->begin_call(rank, "dispatch", Impl::Step::kIdle);
  SWITCHYARD_RETURN_IF_ERROR(begun.status());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_input("dispatch", input));
  if (input.rank_wait_ns != nullptr)
    return invalid_argument(
        "dispatch: rank_wait_ns of the input must be null: that of the output is for both halves");
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rows_output(rank, "dispatch", output));
  SWITCHYARD_RETURN_IF_ERROR(impl_->enqueue_dispatch(rank, impl_->kernels.dispatch->fused, input, &output,
                                                     Impl::Step::kDispatched, stream));
  SWITCHYARD_RETURN_IF_ERROR(impl_->fill_siblings(rank, stream));
  SWITCHYARD_RETURN_IF_ERROR(impl_->fetch_choices(rank, output, stream));
  SWITCHYARD_RETURN_IF_ERROR(impl_->count_sources(rank, output, stream));
  return impl_->annotate_rows(rank, output, stream);
}

// Sums lie where rows were: a combine that could not be enqueued behind them must not be repeated.
Status ExpertParallel::Impl::enqueue_combine(int rank, LaunchFunction<CombineCall> launch, CombineCall& call,
                                             Step next, Stream stream) const {
  SWITCHYARD_RETURN_IF_ERROR(reduce_siblings(rank, call.step.expert_rows, stream));
  const Status enqueued = enqueue(rank, launch, call, next, stream);
  if (!enqueued.ok() && config.reduce_at_owner) whole().state(rank).failure = enqueued;
  return enqueued;
}

Status ExpertParallel::combine_async(int rank, const CombineInput& input, Stream stream) {
  const RankCall begun = impl_->begin_call(rank, "combine_async", Impl::Step::kDispatched);
  SWITCHYARD_RETURN_IF_ERROR(begun.status());
  if (impl_->starts_with_experts())
    return failed_precondition("combine_async: combine_start is with-experts; call combine instead");
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_input(rank, "combine_async", input));
  if (input.awaits_readers)
    return invalid_argument("combine_async: awaits_readers must be false; call combine instead");
  SWITCHYARD_RETURN_IF_ERROR(impl_->exchange_offers(rank, input, stream));
  CombineCall call = impl_->make_combine_call(rank);
  impl_->fill_in(rank, input, call);
  SWITCHYARD_RETURN_IF_ERROR(
      impl_->enqueue_combine(rank, impl_->kernels.combine->async, call, Impl::Step::kCombineSent, stream));
  impl_->state(rank).expert_rows = call.step.expert_rows;
  return Status();
}

Status ExpertParallel::combine_wait(int rank, const CombineOutput& output, Stream stream) {
  const RankCall begun = impl_->begin_call(rank, "combine_wait", Impl::Step::kCombineSent);
  SWITCHYARD_RETURN_IF_ERROR(begun.status());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_destination(rank, "combine_wait", output));
  CombineCall call = impl_->make_combine_call(rank);
  impl_->fill_in(output, call);
  return impl_->enqueue(rank, impl_->combine_to(output).wait, call, Impl::Step::kIdle, stream);
}

Status ExpertParallel::combine(int rank, const CombineInput& input, const CombineOutput& output,
                               Stream stream) {
  const RankCall begun = impl_->begin_call(rank, "combine", Impl::Step::kDispatched);
  SWITCHYARD_RETURN_IF_ERROR(begun.status());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_input(rank, "combine", input));
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_destination(rank, "combine", output));
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_start(rank, input, output));
  SWITCHYARD_RETURN_IF_ERROR(impl_->exchange_offers(rank, input, stream));
  CombineCall call = impl_->make_combine_call(rank);
  impl_->fill_in(rank, input, call);
  impl_->fill_in(output, call);
  if (impl_->starts_with_experts())
    return impl_->enqueue(rank, impl_->kernels.early_combine.launch, call, Impl::Step::kIdle, stream,
                          input.follows_experts);
  return impl_->enqueue_combine(rank, impl_->combine_to(output).fused, call, Impl::Step::kIdle, stream);
}

Status ExpertParallel::all_reduce(int rank, bf16* values, int num_tokens, Stream stream) {
  const RankCall begun = impl_->begin_call(rank, "all_reduce", Impl::Step::kIdle);
  SWITCHYARD_RETURN_IF_ERROR(begun.status());
  if (impl_->config.routing != Routing::kSkipAllToAll)
    return failed_precondition("all_reduce: outputs are whole unless routing skips the all-to-all");
  const int num_reducing = num_reducing_ranks(impl_->config, n_ranks());
  const int first_rank = rank / num_reducing * num_reducing;
  if (num_reducing == 1 && n_ranks() > 1)
    return failed_precondition(
        "all_reduce: allreduce_world_size is 1, so the caller adds up; 0 or %d lets all ranks do it",
        n_ranks());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_tokens("all_reduce", num_tokens, values, "values"));
  const int num_dispatched = impl_->state(rank).num_tokens;
  if (num_tokens != num_dispatched)
    return invalid_argument("all_reduce: num_tokens is %d; this step dispatched %d", num_tokens,
                            num_dispatched);
  if (num_reducing == 1) return Status();  // of one rank the sum is there
  AllReduceParams params{.layout = {num_reducing, impl_->config.max_tokens_per_rank, impl_->config.hidden},
                         .my_rank = rank - first_rank,
                         .signal_scope = impl_->signal_scope(),
                         .num_tokens = num_tokens,
                         .values = values,
                         .exchanged = {},
                         .cells = {},
                         .wait_context = impl_->state(rank).wait_context};
  params.wait_context.first_rank = first_rank;
  params.wait_context.timeout_ns = impl_->begin_call(rank, stream);
  const ExchangeLayout& layout = impl_->layout;
  for (int peer = 0; peer < num_reducing; ++peer) {
    std::byte* arena = impl_->exchange_of(first_rank + peer);
    params.exchanged.of_rank[peer] = reinterpret_cast<bf16*>(arena + layout.reduce_values.offset);
    params.cells.of_rank[peer] = reinterpret_cast<uint64_t*>(arena + layout.reduce_cells.offset);
  }
  params.exchanged.mine = params.exchanged.of_rank[params.my_rank];
  params.cells.mine = params.cells.of_rank[params.my_rank];
  return impl_->member(rank).launch_on(stream, impl_->kernels.all_reduce.launch, impl_->launch_shape(),
                                       params);
}

}  // namespace switchyard
