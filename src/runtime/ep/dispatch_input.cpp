// What a dispatch is given: tokens and ids as the caller has them.
#include "call_checks.hpp"
#include "expert_parallel_impl.hpp"

namespace switchyard {
namespace {

uint32_t stride_of(uint64_t stride_bytes, uint32_t row_bytes) {
  return stride_bytes == 0 ? row_bytes : static_cast<uint32_t>(stride_bytes);
}

}  // namespace

const char* to_string(InputFormat format) {
  switch (format) {
    case InputFormat::kBF16:
      return "bf16";
    case InputFormat::kEncoded:
      return "encoded";
    case InputFormat::kFP16:
      return "fp16";
  }
  return "unknown";
}

Status ExpertParallel::Impl::check_input(const char* call, const DispatchInput& input) const {
  if (input.topk_ids != nullptr && input.topk_ids_64 != nullptr)
    return invalid_argument("%s: topk_ids and topk_ids_64 are given; one of them must be null", call);
  const bool is_wide = input.topk_ids_64 != nullptr;
  SWITCHYARD_RETURN_IF_ERROR(check_tokens(
      call, input.num_tokens, is_wide ? static_cast<const void*>(input.topk_ids_64) : input.topk_ids,
      is_wide ? "topk_ids_64" : "topk_ids"));
  SWITCHYARD_RETURN_IF_ERROR(check_choices(call, input));
  if (input.row_set < 0 || input.row_set >= config.row_sets)
    return invalid_argument("%s: row_set is %d; it must be 0..%d (row_sets)", call, input.row_set,
                            config.row_sets - 1);
  SWITCHYARD_RETURN_IF_ERROR(check_token_format(call, input));
  SWITCHYARD_RETURN_IF_ERROR(check_rank_waits(call, input.rank_wait_ns));
  if (input.input_scale != nullptr) {
    if (config.dispatch_format != TokenFormatKind::kNVFP4)
      return invalid_argument("%s: input_scale must be null: dispatch_format is %s, not nvfp4", call,
                              format_layout(config).name);
    if (reinterpret_cast<uintptr_t>(input.input_scale) % sizeof(float) != 0)
      return invalid_argument("%s: input_scale is %p; it must be aligned to 4 bytes", call,
                              static_cast<const void*>(input.input_scale));
  }
  return input.num_tokens > 0 ? check_pointer(call, "tokens", input.tokens) : Status();
}

Status ExpertParallel::Impl::check_rank_waits(const char* call, const uint64_t* rank_wait_ns) const {
  if (rank_wait_ns == nullptr) return Status();
  if (config.routing == Routing::kSkipAllToAll)
    return invalid_argument(
        "%s: rank_wait_ns must be null: ranks that skip the all-to-all do not wait for each other", call);
  return check_pointer(call, "rank_wait_ns", rank_wait_ns);
}

// What the tokens come as, and how far apart.
Status ExpertParallel::Impl::check_token_format(const char* call, const DispatchInput& input) const {
  const FormatLayout format = format_layout(config);
  const bool is_encoded = input.format == InputFormat::kEncoded;
  if (!is_encoded && input.format != InputFormat::kBF16)
    return invalid_argument(
        "%s: tokens are %s; dispatch takes bf16, or tokens encoded in dispatch_format (%s)", call,
        to_string(input.format), format.name);
  SWITCHYARD_RETURN_IF_ERROR(check_stride(call, "token_stride_bytes", input.token_stride_bytes,
                                          is_encoded ? format.row_bytes : token_bytes(config), 16));
  if (!is_encoded) {
    if (input.scales == nullptr) return Status();
    return invalid_argument("%s: scales must be null unless tokens are encoded", call);
  }
  if (config.own_format != nullptr || format.scales_bytes == 0 || format.encodes_by_expert)
    return invalid_argument(
        "%s: tokens are encoded; dispatch_format is %s, and must be one of the library's that has scales and "
        "encodes a token once for all experts",
        call, format.name);
  const uint32_t scale_bytes = static_cast<uint32_t>(info_of(config.dispatch_format).scale_bytes);
  SWITCHYARD_RETURN_IF_ERROR(
      check_stride(call, "scales_stride_bytes", input.scales_stride_bytes, format.scales_bytes, scale_bytes));
  return input.num_tokens > 0 ? check_pointer(call, "scales", input.scales) : Status();
}

void ExpertParallel::Impl::fill_in(int rank, const DispatchInput& input, DispatchCall& call) const {
  const FormatLayout format = format_layout(config);
  const bool is_encoded = input.format == InputFormat::kEncoded;
  call.step.input_tokens = input.tokens;
  call.step.token_stride =
      stride_of(input.token_stride_bytes, is_encoded ? format.row_bytes : token_bytes(config));
  call.step.input_scales = static_cast<const std::byte*>(input.scales);
  call.step.scales_stride = stride_of(input.scales_stride_bytes, format.scales_bytes);
  if (!is_per_rank()) call.step.topk_ids = ids_of(rank, input);
  if (config.reduce_at_owner) std::get<DirectDispatchPart>(call.parts).topk_weights = input.topk_weights;
  call.tensors.device_tensor_scale = input.input_scale;
  call.step.rank_wait_ns = input.rank_wait_ns;
}

const int32_t* ExpertParallel::Impl::ids_of(int rank, const DispatchInput& input) const {
  return input.topk_ids_64 == nullptr ? input.topk_ids : state(rank).memory.at<int32_t>(layout.narrowed_ids);
}

Status ExpertParallel::Impl::prepare_ids(int rank, const DispatchInput& input, Stream stream) const {
  SWITCHYARD_RETURN_IF_ERROR(narrow_ids(rank, input, stream));
  return choose_ranks(rank, input, stream);
}

Status ExpertParallel::Impl::narrow_ids(int rank, const DispatchInput& input, Stream stream) const {
  state(rank).has_narrowed_ids = input.topk_ids_64 != nullptr;
  if (!state(rank).has_narrowed_ids || input.num_tokens == 0) return Status();
  LaunchShape shape = launch_shape();
  shape.programmatic_dependent = false;
  const Rank& here = member(rank);
  return here.launch_on(stream, kernel_table(here).narrow_ids, shape,
                        NarrowIdsParams{.num_ids = input.num_tokens * config.top_k,
                                        .ids = input.topk_ids_64,
                                        .narrowed = state(rank).memory.at<int32_t>(layout.narrowed_ids)});
}

}  // namespace switchyard
