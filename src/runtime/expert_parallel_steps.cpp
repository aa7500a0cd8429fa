// The calls of a step: what each is checked against, the arguments of its kernel, the launch.
#include <numeric>

#include "expert_parallel_state.hpp"

namespace switchyard {
namespace {

Status check_pointer(const char* call, const char* name, const void* pointer) {
  if (pointer == nullptr) return invalid_argument("%s: %s is null", call, name);
  if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0)
    return invalid_argument("%s: %s is %p; it must be aligned to 16 bytes", call, name, pointer);
  return Status();
}

}  // namespace

WaitContext ExpertParallel::wait_context(int rank) const {
  WaitContext context{};
  context.record = ranks_[static_cast<size_t>(rank)]->memory.fault.as<FaultRecord>();
  context.skipped = context.record + 1;
  for (size_t peer = 0; peer < ranks_.size(); ++peer)
    context.poison[peer] = ranks_[peer]->memory.poison.as<uint32_t>();
  context.my_rank = rank;
  context.n_ranks = n_ranks();
  context.timeout_ns = config_.timeout_ns;
  if (const auto& trace = ranks_[static_cast<size_t>(rank)]->trace) context.trace = trace->buffer();
  return context;
}

WaitContext ExpertParallel::step_wait_context(int rank) const {
  WaitContext context = wait_context(rank);
  context.first_rank = peers_of(rank).front();
  context.first_expert = shape_of_rank(rank).first_expert;
  return context;
}

// The emulator takes every rank for a device of its own.
Scope ExpertParallel::signal_scope() const {
  for (int rank = 0; rank < n_ranks(); ++rank)
    if (world_.target() == Target::kHost || &member(rank).device() != &member(0).device())
      return Scope::kSystem;
  return Scope::kDevice;
}

EpShape ExpertParallel::shape_of_rank(int rank) const {
  EpShape shape = shape_of(config_, n_ranks());
  if (config_.routing == Routing::kSkipAllToAll) shape.first_expert = rank * n_local_experts();
  return shape;
}

std::vector<int> ExpertParallel::peers_of(int rank) const {
  if (config_.routing == Routing::kSkipAllToAll) return {rank};
  std::vector<int> peers(ranks_.size());
  std::iota(peers.begin(), peers.end(), 0);
  return peers;
}

SharedExpertTokens ExpertParallel::shared_expert_tokens(int rank, int num_tokens) const {
  if (config_.shared_expert == SharedExpert::kNone) return {};
  if (config_.routing == Routing::kAllToAll)
    return {.num_groups = 1, .first_token = 0, .num_tokens = num_tokens};
  const auto first_of = [&](int r) {
    return static_cast<int>(static_cast<int64_t>(num_tokens) * r / n_ranks());
  };
  return {.num_groups = 1, .first_token = first_of(rank), .num_tokens = first_of(rank + 1) - first_of(rank)};
}

DispatchArguments ExpertParallel::dispatch_arguments(int rank) const {
  DispatchArguments arguments{};
  arguments.shape = shape_of_rank(rank);
  const std::vector<int> peers = peers_of(rank);
  arguments.my_rank = peers.size() == 1 ? 0 : rank;
  arguments.signal_scope = signal_scope();
  for (size_t i = 0; i < peers.size(); ++i) ranks_[static_cast<size_t>(peers[i])]->memory.show(i, arguments);
  const ExchangeMemory& own = ranks_[static_cast<size_t>(rank)]->memory;
  arguments.ep_counters = own.ep_counters(arguments.shape);
  arguments.row_of = own.row_of.as<uint32_t>();
  arguments.max_rows = static_cast<uint32_t>(sizes_->row_capacity);
  arguments.scales_offset = sizes_->scales_offset;
  arguments.token_scales_offset = sizes_->token_scales_offset;
  arguments.scale_sources_offset = sizes_->scale_sources_offset;
  arguments.send_buf = own.send.as<std::byte>();
  arguments.fault = step_wait_context(rank);
  return arguments;
}

CombineArguments ExpertParallel::combine_arguments(int rank) const {
  CombineArguments arguments{};
  arguments.shape = shape_of_rank(rank);
  const std::vector<int> peers = peers_of(rank);
  arguments.my_rank = peers.size() == 1 ? 0 : rank;
  arguments.signal_scope = signal_scope();
  for (size_t i = 0; i < peers.size(); ++i) ranks_[static_cast<size_t>(peers[i])]->memory.show(i, arguments);
  const ExchangeMemory& own = ranks_[static_cast<size_t>(rank)]->memory;
  arguments.ep_counters = own.ep_counters(arguments.shape);
  arguments.row_of = own.row_of.as<uint32_t>();
  arguments.fault = step_wait_context(rank);
  return arguments;
}

Status ExpertParallel::check_call(int rank, const char* call, Step required) const {
  if (rank < 0 || rank >= n_ranks())
    return invalid_argument("%s: rank is %d; it must be 0..%d", call, rank, n_ranks() - 1);
  const RankState& state = *ranks_[static_cast<size_t>(rank)];
  if (!state.failure.ok())
    return failed_precondition("%s: the last step of rank %d failed (%s); call reset() first", call, rank,
                               state.failure.message().c_str());
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

Status ExpertParallel::check_tokens(const char* call, int num_tokens, const void* pointer,
                                    const char* name) const {
  if (num_tokens < 0 || num_tokens > config_.max_tokens_per_rank)
    return invalid_argument("%s: num_tokens is %d; it must be 0..%d (max_tokens_per_rank)", call, num_tokens,
                            config_.max_tokens_per_rank);
  return num_tokens == 0 ? Status() : check_pointer(call, name, pointer);
}

// Peers write rows, and read expert output, in memory that all of them know.
Status ExpertParallel::check_rows(int rank, const char* call, const DispatchOutput& output) const {
  const RowBuffers own = ranks_[static_cast<size_t>(rank)]->memory.row_buffers(*sizes_);
  if (output.rows == nullptr && output.src_info == nullptr) return Status();
  if (output.rows != own.encoded_rows || output.src_info != own.src_info || output.max_rows != own.max_rows ||
      output.scales != own.scales)
    return invalid_argument(
        "%s: rows, scales, src_info and max_rows must be those of row_buffers(%d): the direct protocol "
        "writes there",
        call, rank);
  return Status();
}
Status ExpertParallel::check_expert_rows(int rank, const char* call, const void* expert_rows) const {
  const RowBuffers own = ranks_[static_cast<size_t>(rank)]->memory.row_buffers(*sizes_);
  if (expert_rows == nullptr) return Status();
  if (sizes_->has_encoded_outputs) {
    if (expert_rows == own.encoded_outputs) return Status();
    return invalid_argument(
        "%s: expert_rows must be the encoded_outputs of row_buffers(%d): the direct protocol's peers read "
        "fp8 there",
        call, rank);
  }
  if (expert_rows != own.expert_outputs && expert_rows != own.rows)
    return invalid_argument(
        "%s: expert_rows must be the expert_outputs or the rows of row_buffers(%d): the direct protocol's "
        "peers read there",
        call, rank);
  return Status();
}

Status ExpertParallel::launch_dispatch(DispatchKernels::Launch launch, int rank, const char* call,
                                       const DispatchInput* input, const DispatchOutput* output) {
  SWITCHYARD_RETURN_IF_ERROR(check_call(rank, call, input != nullptr ? Step::kIdle : Step::kDispatchSent));
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  DispatchArguments arguments = dispatch_arguments(rank);
  FormatTensors tensors{.max_rows = arguments.max_rows,
                        .tensor_scale = config_.input_scale,
                        .expert_scales = state.memory.expert_scales.as<float>()};
  arguments.num_tokens = state.num_tokens;
  if (input != nullptr) {
    SWITCHYARD_RETURN_IF_ERROR(check_tokens(call, input->num_tokens, input->topk_ids));
    if (input->num_tokens > 0) SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "tokens", input->tokens));
    arguments.num_tokens = input->num_tokens;
    arguments.input_tokens = input->tokens;
    arguments.topk_ids = input->topk_ids;
  }
  if (output != nullptr) {
    if (config_.protocol == Protocol::kDirect) {
      SWITCHYARD_RETURN_IF_ERROR(check_rows(rank, call, *output));
    } else {
      if (output->max_rows > 0) {
        SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "rows", output->rows));
        SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "src_info", output->src_info));
        if (sizes_->has_scales) SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "scales", output->scales));
      }
      arguments.max_rows = output->max_rows;
    }
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "row_offsets", output->row_offsets));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "expert_ids", output->expert_ids));
    if (output->scale_row_offsets != nullptr &&
        info_of(config_.dispatch_format).placement != ScalePlacement::kTiled)
      return invalid_argument("%s: scale_row_offsets must be null: format %s has no tiled scales", call,
                              to_string(config_.dispatch_format));
    if (output->scale_row_offsets != nullptr)
      SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "scale_row_offsets", output->scale_row_offsets));
    tensors.scale_row_offsets = output->scale_row_offsets;
    tensors.rows = static_cast<std::byte*>(output->rows);
    tensors.scales = static_cast<std::byte*>(output->scales);
    tensors.max_rows = arguments.max_rows;
    arguments.row_offsets = output->row_offsets;
    arguments.expert_ids = output->expert_ids;
    arguments.src_info = output->src_info;
  }
  arguments.shared_expert = shared_expert_tokens(rank, arguments.num_tokens);
  SWITCHYARD_RETURN_IF_ERROR(member(rank).launch(launch, launch_shape(), arguments, tensors));
  if (input != nullptr) state.num_tokens = input->num_tokens;
  state.step = output != nullptr ? Step::kDispatched : Step::kDispatchSent;
  return Status();
}

Status ExpertParallel::dispatch_async(int rank, const DispatchInput& input) {
  return launch_dispatch(dispatch_kernels().async, rank, "dispatch_async", &input, nullptr);
}
Status ExpertParallel::dispatch_wait(int rank, const DispatchOutput& output) {
  return launch_dispatch(dispatch_kernels().wait, rank, "dispatch_wait", nullptr, &output);
}
Status ExpertParallel::dispatch(int rank, const DispatchInput& input, const DispatchOutput& output) {
  return launch_dispatch(dispatch_kernels().fused, rank, "dispatch", &input, &output);
}

Status ExpertParallel::launch_combine(CombineKernels::Launch launch, int rank, const char* call,
                                      const CombineInput* input, const CombineOutput* output) {
  SWITCHYARD_RETURN_IF_ERROR(
      check_call(rank, call, input != nullptr ? Step::kDispatched : Step::kCombineSent));
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  CombineArguments arguments = combine_arguments(rank);
  CombineDestination destination;
  if (input != nullptr) {
    arguments.expert_rows = input->expert_rows;
    arguments.src_info = input->src_info;
    // A rank that received nothing may pass null; that it did is known on the device only.
    const bool has_shared_rows = shared_expert_tokens(rank, state.num_tokens).num_tokens > 0;
    if (input->expert_rows != nullptr || (has_shared_rows && config_.protocol == Protocol::kSlotted))
      SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "expert_rows", input->expert_rows));
    if (config_.protocol == Protocol::kSlotted && input->expert_rows != nullptr && max_recv_rows() > 0)
      SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "src_info", input->src_info));
    if (config_.protocol == Protocol::kDirect) {
      SWITCHYARD_RETURN_IF_ERROR(check_expert_rows(rank, call, input->expert_rows));
      if (input->expert_rows == nullptr) {
        const RowBuffers rows = state.memory.row_buffers(*sizes_);
        arguments.expert_rows = sizes_->has_encoded_outputs ? static_cast<const void*>(rows.encoded_outputs)
                                                            : rows.expert_outputs;
      }
    }
  } else {
    arguments.expert_rows = state.expert_rows;  // the shared expert's are among them
  }
  if (output != nullptr) {
    SWITCHYARD_RETURN_IF_ERROR(check_tokens(call, output->num_tokens, output->topk_ids));
    if (output->num_tokens != state.num_tokens)
      return invalid_argument("%s: num_tokens is %d; this step dispatched %d", call, output->num_tokens,
                              state.num_tokens);
    if (config_.shared_expert == SharedExpert::kFused &&
        output->destination.reduction == CombineReduction::kUnreduced)
      return invalid_argument("%s: with a shared expert there is no unreduced output", call);
    if (output->num_tokens > 0) {
      SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "output", output->destination.output));
      if (output->destination.reduction == CombineReduction::kWeighted)
        SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "topk_weights", output->topk_weights));
    }
    arguments.num_tokens = output->num_tokens;
    arguments.topk_ids = output->topk_ids;
    arguments.topk_weights = output->topk_weights;
    destination = output->destination;
  }
  arguments.shared_expert = shared_expert_tokens(rank, state.num_tokens);
  SWITCHYARD_RETURN_IF_ERROR(member(rank).launch(launch, launch_shape(), arguments, destination));
  state.expert_rows = arguments.expert_rows;
  state.step = output != nullptr ? Step::kIdle : Step::kCombineSent;
  return Status();
}

Status ExpertParallel::combine_async(int rank, const CombineInput& input) {
  return launch_combine(combine_kernels().async, rank, "combine_async", &input, nullptr);
}
Status ExpertParallel::combine_wait(int rank, const CombineOutput& output) {
  return launch_combine(combine_kernels().wait, rank, "combine_wait", nullptr, &output);
}
Status ExpertParallel::combine(int rank, const CombineInput& input, const CombineOutput& output) {
  return launch_combine(combine_kernels().fused, rank, "combine", &input, &output);
}

Status ExpertParallel::all_reduce(int rank, bf16* values, int num_tokens) {
  SWITCHYARD_RETURN_IF_ERROR(check_call(rank, "all_reduce", Step::kIdle));
  if (config_.routing != Routing::kSkipAllToAll)
    return failed_precondition("all_reduce: outputs are whole unless routing skips the all-to-all");
  SWITCHYARD_RETURN_IF_ERROR(check_tokens("all_reduce", num_tokens, values, "values"));
  const int num_dispatched = ranks_[static_cast<size_t>(rank)]->num_tokens;
  if (num_tokens != num_dispatched)
    return invalid_argument("all_reduce: num_tokens is %d; this step dispatched %d", num_tokens,
                            num_dispatched);
  AllReduceParams params{.layout = {n_ranks(), config_.max_tokens_per_rank, config_.hidden},
                         .my_rank = rank,
                         .signal_scope = signal_scope(),
                         .num_tokens = num_tokens,
                         .values = values,
                         .exchanged = {},
                         .cells = {},
                         .fault = wait_context(rank)};
  for (size_t peer = 0; peer < ranks_.size(); ++peer) {
    params.exchanged.of_rank[peer] = ranks_[peer]->memory.reduce_values.as<bf16>();
    params.cells.of_rank[peer] = ranks_[peer]->memory.reduce_cells.as<uint64_t>();
  }
  return member(rank).launch(kernels().all_reduce.launch, launch_shape(), params);
}

}  // namespace switchyard
