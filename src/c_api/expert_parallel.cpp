#include "handles.hpp"

namespace switchyard::c_api {
namespace {

Status read_input(const switchyard_dispatch_input* given, DispatchInput& input) {
  switchyard_dispatch_input from;
  SWITCHYARD_RETURN_IF_ERROR(read("input", given, from));
  SWITCHYARD_RETURN_IF_ERROR(check_reserved("input->reserved", from.reserved));
  input = {.tokens = from.tokens,
           .topk_ids = from.topk_ids,
           .num_tokens = from.num_tokens,
           .topk_weights = from.topk_weights,
           .topk_ids_64 = from.topk_ids_64,
           .token_stride_bytes = from.token_stride_bytes,
           .scales = from.scales,
           .scales_stride_bytes = from.scales_stride_bytes,
           .input_scale = from.input_scale,
           .row_set = from.row_set,
           .rank_wait_ns = from.rank_wait_ns};
  return read_enum("input_format", from.input_format, InputFormat::kEncoded, input.format);
}

Status read_output(const switchyard_dispatch_output* given, DispatchOutput& output) {
  switchyard_dispatch_output from;
  SWITCHYARD_RETURN_IF_ERROR(read("output", given, from));
  output = {.rows = from.rows,
            .src_info = from.src_info,
            .max_rows = from.max_rows,
            .row_offsets = from.row_offsets,
            .expert_ids = from.expert_ids,
            .scales = from.scales,
            .scale_row_offsets = from.scale_row_offsets,
            .row_counts = from.row_counts,
            .src_ranks = from.src_ranks,
            .row_experts = from.row_experts,
            .row_weights = from.row_weights,
            .expert_totals = from.expert_totals,
            .source_ranges = from.source_ranges,
            .row_totals = from.row_totals,
            .rank_wait_ns = from.rank_wait_ns};
  return read_enum("unwritten", from.unwritten, UnwrittenRows::kZeroed, output.unwritten);
}

Status read_input(const switchyard_combine_input* given, CombineInput& input) {
  switchyard_combine_input from;
  SWITCHYARD_RETURN_IF_ERROR(read("input", given, from));
  SWITCHYARD_RETURN_IF_ERROR(check_reserved("input->reserved", from.reserved));
  input = {from.expert_rows, from.src_info};
  input.awaits_readers = from.awaits_readers != 0;
  return Status();
}

Status read_output(const switchyard_combine_output* given, CombineOutput& output) {
  switchyard_combine_output from;
  SWITCHYARD_RETURN_IF_ERROR(read("output", given, from));
  output = {from.topk_ids, from.topk_weights, from.num_tokens, {}};
  output.destination.output = static_cast<bf16*>(from.output);
  output.destination.output_stride_bytes = from.output_stride_bytes;
  output.rank_wait_ns = from.rank_wait_ns;
  return read_enum("reduction", from.reduction, CombineReduction::kUnreduced, output.destination.reduction);
}

// Whether the caller's array has the length that `why` says. Asked before anything is waited for.
Status check_length(const char* name, int32_t length, int64_t expected, const char* why) {
  if (length == expected) return Status();
  return invalid_argument("%s is %d; it must be %lld (%s)", name, length, static_cast<long long>(expected),
                          why);
}

// Copies numbers to the caller's array, which has room for them.
template <typename T>
Status copy_out(const Result<std::vector<T>>& numbers, T* to) {
  if (numbers.ok()) std::copy(numbers.value().begin(), numbers.value().end(), to);
  return numbers.status();
}

// Calls `function` with the object behind the handle.
template <typename Function>
switchyard_status with(const switchyard_ep* ep, Function function) noexcept {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("ep", ep));
    return function(*ep->ep);
  });
}

}  // namespace
}  // namespace switchyard::c_api

using namespace switchyard;
using namespace switchyard::c_api;

switchyard_status switchyard_ep_memory_needed(const switchyard_ep_config* config, int32_t n_ranks,
                                              uint64_t* bytes) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("bytes", bytes));
    ExpertParallelConfig wanted;
    SWITCHYARD_RETURN_IF_ERROR(read_config("config", config, n_ranks, wanted));
    const Result<MemoryNeeded> needed = ExpertParallel::memory_needed(wanted, n_ranks);
    if (needed.ok()) *bytes = needed.value().total();
    return needed.status();
  });
}

switchyard_status switchyard_ep_create(const switchyard_world* world, const switchyard_ep_config* config,
                                       switchyard_ep** ep) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("ep", ep));
    ExpertParallelConfig wanted;
    SWITCHYARD_RETURN_IF_ERROR(read_config("config", config, world->world->n_ranks(), wanted));
    Result<std::unique_ptr<ExpertParallel>> made = ExpertParallel::create(*world->world, wanted);
    if (!made.ok()) return made.status();
    std::shared_ptr<ExpertParallel> whole = std::move(made).value();
    *ep = new switchyard_ep{{}, world->world, whole, whole.get()};
    return Status();
  });
}

void switchyard_ep_destroy(switchyard_ep* ep) { destroy(ep); }

switchyard_status switchyard_ep_flight(switchyard_ep* ep, int32_t flight_idx, switchyard_ep** flight) {
  return with(ep, [&](ExpertParallel&) {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("flight", flight));
    const Result<ExpertParallel*> found = ep->whole->flight(flight_idx);
    if (found.ok()) *flight = new switchyard_ep{{}, ep->world, ep->whole, found.value()};
    return found.status();
  });
}

switchyard_status switchyard_ep_get_info(const switchyard_ep* ep, switchyard_ep_info* info) {
  return with(ep, [&](const ExpertParallel& of) {
    return write("info",
                 {.n_ranks = of.n_ranks(),
                  .n_local_experts = of.n_local_experts(),
                  .num_groups = of.num_groups(),
                  .n_sms = of.n_sms(),
                  .protocol = static_cast<int32_t>(of.config().protocol),
                  .max_rows_per_expert = of.config().max_rows_per_expert,
                  .max_recv_rows = of.max_recv_rows(),
                  .dispatch_message_bytes = of.dispatch_message_bytes(),
                  .combine_message_bytes = of.combine_message_bytes(),
                  .bytes_per_rank = of.bytes_per_rank(),
                  .rows_per_set = of.rows_per_set(),
                  .row_delivery = static_cast<int32_t>(of.config().row_delivery)},
                 info);
  });
}

switchyard_status switchyard_ep_row_buffers(switchyard_ep* ep, int32_t rank,
                                            switchyard_row_buffers* buffers) {
  return with(ep, [&](ExpertParallel& of) {
    const Result<RowBuffers> own = of.row_buffers(rank);
    if (!own.ok()) return own.status();
    return write("buffers",
                 {.rows = own.value().encoded_rows,
                  .scales = own.value().scales,
                  .src_info = own.value().src_info,
                  .expert_outputs = own.value().expert_outputs,
                  .encoded_outputs = own.value().encoded_outputs,
                  .max_rows = own.value().max_rows,
                  .expert_tensor_scales = own.value().expert_tensor_scales},
                 buffers);
  });
}

switchyard_status switchyard_ep_dispatch(switchyard_ep* ep, int32_t rank,
                                         const switchyard_dispatch_input* input,
                                         const switchyard_dispatch_output* output, switchyard_stream stream) {
  return with(ep, [&](ExpertParallel& of) {
    DispatchInput from;
    DispatchOutput to;
    SWITCHYARD_RETURN_IF_ERROR(read_input(input, from));
    SWITCHYARD_RETURN_IF_ERROR(read_output(output, to));
    return of.dispatch(rank, from, to, stream_of(stream));
  });
}

switchyard_status switchyard_ep_dispatch_async(switchyard_ep* ep, int32_t rank,
                                               const switchyard_dispatch_input* input,
                                               switchyard_stream stream) {
  return with(ep, [&](ExpertParallel& of) {
    DispatchInput from;
    SWITCHYARD_RETURN_IF_ERROR(read_input(input, from));
    return of.dispatch_async(rank, from, stream_of(stream));
  });
}

switchyard_status switchyard_ep_dispatch_wait(switchyard_ep* ep, int32_t rank,
                                              const switchyard_dispatch_output* output,
                                              switchyard_stream stream) {
  return with(ep, [&](ExpertParallel& of) {
    DispatchOutput to;
    SWITCHYARD_RETURN_IF_ERROR(read_output(output, to));
    return of.dispatch_wait(rank, to, stream_of(stream));
  });
}

switchyard_status switchyard_ep_combine(switchyard_ep* ep, int32_t rank,
                                        const switchyard_combine_input* input,
                                        const switchyard_combine_output* output, switchyard_stream stream) {
  return with(ep, [&](ExpertParallel& of) {
    CombineInput from;
    CombineOutput to;
    SWITCHYARD_RETURN_IF_ERROR(read_input(input, from));
    SWITCHYARD_RETURN_IF_ERROR(read_output(output, to));
    return of.combine(rank, from, to, stream_of(stream));
  });
}

switchyard_status switchyard_ep_combine_async(switchyard_ep* ep, int32_t rank,
                                              const switchyard_combine_input* input,
                                              switchyard_stream stream) {
  return with(ep, [&](ExpertParallel& of) {
    CombineInput from;
    SWITCHYARD_RETURN_IF_ERROR(read_input(input, from));
    return of.combine_async(rank, from, stream_of(stream));
  });
}

switchyard_status switchyard_ep_combine_wait(switchyard_ep* ep, int32_t rank,
                                             const switchyard_combine_output* output,
                                             switchyard_stream stream) {
  return with(ep, [&](ExpertParallel& of) {
    CombineOutput to;
    SWITCHYARD_RETURN_IF_ERROR(read_output(output, to));
    return of.combine_wait(rank, to, stream_of(stream));
  });
}

switchyard_status switchyard_ep_all_reduce(switchyard_ep* ep, int32_t rank, void* values, int32_t num_tokens,
                                           switchyard_stream stream) {
  return with(ep, [&](ExpertParallel& of) {
    return of.all_reduce(rank, static_cast<bf16*>(values), num_tokens, stream_of(stream));
  });
}

switchyard_status switchyard_ep_abandon_step(switchyard_ep* ep, int32_t rank) {
  return with(ep, [&](ExpertParallel& of) { return of.abandon_step(rank); });
}

switchyard_status switchyard_ep_reopen_step(switchyard_ep* ep, int32_t rank, switchyard_stream stream) {
  return with(ep, [&](ExpertParallel& of) { return of.reopen_step(rank, stream_of(stream)); });
}

switchyard_status switchyard_ep_call_off_step(switchyard_ep* ep, int32_t rank, switchyard_stream stream) {
  return with(ep, [&](ExpertParallel& of) { return of.call_off_step(rank, stream_of(stream)); });
}

switchyard_status switchyard_ep_store_expert_rows(switchyard_ep* ep, int32_t rank,
                                                  const switchyard_expert_rows* rows,
                                                  switchyard_stream stream) {
  return with(ep, [&](ExpertParallel& of) {
    switchyard_expert_rows from;
    SWITCHYARD_RETURN_IF_ERROR(read("rows", rows, from));
    SWITCHYARD_RETURN_IF_ERROR(check_reserved("rows->reserved", from.reserved));
    return of.store_expert_rows(rank,
                                {.rows = from.rows,
                                 .num_rows = from.num_rows,
                                 .rows_per_group = from.rows_per_group,
                                 .row_offsets = from.row_offsets,
                                 .row_counts = from.row_counts},
                                stream_of(stream));
  });
}

switchyard_status switchyard_ep_offer_expert_rows(switchyard_ep* ep, int32_t rank, const void* rows,
                                                  switchyard_stream stream, int32_t* can_be_read) {
  return with(ep, [&](ExpertParallel& of) {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("can_be_read", can_be_read));
    const Result<bool> answer = of.offer_expert_rows(rank, rows, stream_of(stream));
    if (answer.ok()) *can_be_read = answer.value() ? 1 : 0;
    return answer.status();
  });
}

switchyard_status switchyard_ep_source_row_offsets(const switchyard_ep* ep, int32_t rank, uint32_t* offsets,
                                                   int32_t num_offsets) {
  return with(ep, [&](const ExpertParallel& of) {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("offsets", offsets));
    const bool per_rank = of.config().row_layout == RowLayout::kPerRank;
    const int64_t num_groups = per_rank ? 1 : of.n_local_experts();
    SWITCHYARD_RETURN_IF_ERROR(check_length("num_offsets", num_offsets, num_groups * of.n_ranks(),
                                            per_rank ? "n_ranks" : "n_local_experts x n_ranks"));
    return copy_out(of.source_row_offsets(rank), offsets);
  });
}

switchyard_status switchyard_count_routing(const switchyard_world* world, int32_t rank,
                                           const switchyard_routing_input* input,
                                           const switchyard_routing_counts* counts,
                                           switchyard_stream stream) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    switchyard_routing_input from;
    switchyard_routing_counts to;
    SWITCHYARD_RETURN_IF_ERROR(read("input", input, from));
    SWITCHYARD_RETURN_IF_ERROR(check_reserved("input->reserved", from.reserved));
    SWITCHYARD_RETURN_IF_ERROR(read("counts", counts, to));
    return ExpertParallel::count_routing(
        *world->world, rank, {from.topk_ids, from.num_tokens, from.top_k, from.n_experts},
        {to.tokens_of_rank, to.choices_of_expert, to.is_token_in_rank}, stream_of(stream));
  });
}

switchyard_status switchyard_ep_warm_up(switchyard_ep* ep) {
  return with(ep, [](ExpertParallel& of) { return of.warm_up(); });
}

switchyard_status switchyard_ep_synchronize(switchyard_ep* ep, int32_t rank, switchyard_stream stream) {
  return with(ep, [&](ExpertParallel& of) {
    return stream == SWITCHYARD_RANK_STREAM ? of.synchronize(rank) : of.synchronize(rank, Stream(stream));
  });
}

switchyard_status switchyard_ep_poll(switchyard_ep* ep, int32_t rank) {
  return with(ep, [&](ExpertParallel& of) { return of.poll(rank); });
}

switchyard_status switchyard_ep_fault(const switchyard_ep* ep, int32_t rank, switchyard_fault* fault) {
  return with(ep, [&](const ExpertParallel& of) {
    if (rank < 0 || rank >= of.n_ranks())
      return invalid_argument("rank is %d; it must be 0..%d", rank, of.n_ranks() - 1);
    const std::optional<FaultRecord> found = of.fault(rank);
    if (!found) return write("fault", switchyard_fault{}, fault);
    return write("fault",
                 {.kind = static_cast<int32_t>(found->kind),
                  .phase = static_cast<int32_t>(found->phase),
                  .waiting_rank = found->waiting_rank,
                  .late_rank = found->late_rank,
                  .expert = found->expert,
                  .expected = found->expected,
                  .seen = found->seen,
                  .elapsed_ns = found->elapsed_ns},
                 fault);
  });
}

switchyard_status switchyard_ep_reset(switchyard_ep* ep) {
  return with(ep, [](ExpertParallel& of) { return of.reset(); });
}

switchyard_status switchyard_ep_reset_to(switchyard_ep* ep, const int32_t* world_ranks, int32_t num_ranks) {
  return with(ep, [&](ExpertParallel& of) {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world_ranks", world_ranks));
    if (num_ranks < 1) return invalid_argument("num_ranks is %d; it must be at least 1", num_ranks);
    return of.reset_to(std::vector<int>(world_ranks, world_ranks + num_ranks));
  });
}

switchyard_status switchyard_ep_set_placement(switchyard_ep* ep, const int32_t* placement,
                                              const int32_t* num_experts_of_rank) {
  return with(ep, [&](ExpertParallel& of) {
    const Result<ExpertPlacement> next =
        read_placement(of.config().n_experts, of.n_ranks(), placement, num_experts_of_rank);
    return next.ok() ? of.set_placement(next.value()) : next.status();
  });
}

switchyard_status switchyard_ep_expert_counts(const switchyard_ep* ep, int32_t rank, int64_t* counts,
                                              int32_t num_counts) {
  return with(ep, [&](const ExpertParallel& of) {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("counts", counts));
    SWITCHYARD_RETURN_IF_ERROR(check_length("num_counts", num_counts, of.config().n_experts, "n_experts"));
    return copy_out(of.expert_counts(rank), counts);
  });
}

switchyard_status switchyard_ep_clear_expert_counts(switchyard_ep* ep, int32_t rank) {
  return with(ep, [&](ExpertParallel& of) { return of.clear_expert_counts(rank); });
}
