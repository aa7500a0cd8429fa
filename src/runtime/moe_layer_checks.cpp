#include "runtime/moe_layer_checks.hpp"

#include <cinttypes>
#include <utility>

#include "runtime/ep/call_checks.hpp"

namespace switchyard {

MatmulRows rows_of(const MoeLayerConfig& config) {
  return matmul_rows_of(config.ep.dispatch_format, config.weights);
}
MatmulElement element_of(const MoeLayerConfig& config) { return rows_of(config).element; }

const char* to_string(MoePart part) {
  switch (part) {
    case MoePart::kRoute:
      return "route";
    case MoePart::kDispatch:
      return "dispatch";
    case MoePart::kDispatchAsync:
      return "dispatch_async";
    case MoePart::kDispatchWait:
      return "dispatch_wait";
    case MoePart::kGateUp:
      return "gate_up";
    case MoePart::kDown:
      return "down";
    case MoePart::kCombine:
      return "combine";
    case MoePart::kCombineAsync:
      return "combine_async";
    case MoePart::kCombineWait:
      return "combine_wait";
    case MoePart::kAllReduce:
      return "all_reduce";
  }
  return "(no part)";
}

std::vector<MoePart> parts_of(const MoeLayerConfig& config) {
  const bool is_split = config.launches == StepLaunches::kSplit,
             is_early = config.gate_up_start == GateUpStart::kWithRows;
  std::vector<MoePart> parts = {MoePart::kRoute, is_split ? MoePart::kDispatchAsync : MoePart::kDispatch};
  if (is_split && !is_early) parts.push_back(MoePart::kDispatchWait);
  parts.push_back(MoePart::kGateUp);
  if (is_split && is_early) parts.push_back(MoePart::kDispatchWait);
  parts.push_back(MoePart::kDown);
  parts.push_back(is_split ? MoePart::kCombineAsync : MoePart::kCombine);
  if (is_split) parts.push_back(MoePart::kCombineWait);
  // Otherwise outputs are whole, or the caller's to add up.
  if (config.ep.routing == Routing::kSkipAllToAll && config.ep.allreduce_world_size != 1)
    parts.push_back(MoePart::kAllReduce);
  return parts;
}

namespace {

Status check_combine_start(const MoeLayerConfig& config) {
  if (config.ep.combine_start == CombineStart::kBehindExperts) return Status();
  if (config.launches != StepLaunches::kFused)
    return invalid_argument("combine_start: %s; launches must be fused", to_string(config.ep.combine_start));
  if (is_coded(config.weights))
    return invalid_argument("combine_start: %s; weights must be those of the rows' format, not %s",
                            to_string(config.ep.combine_start), to_string(config.weights));
  return Status();
}

}  // namespace

Status check_config(const MoeLayerConfig& config) {
  const TokenFormatKind format = config.ep.dispatch_format;
  if (config.ep.own_format != nullptr)
    return invalid_argument("own_format: must be null; a layer's matmuls read the library's formats");
  if (config.ep.row_layout == RowLayout::kPerRank)
    return invalid_argument(
        "row_layout: per-rank; a layer's matmuls take the rows of one expert after the other");
  if (config.activation == Activation::kNone)
    return invalid_argument("activation: none; gate and up must become one");
  const bool has_codes = is_coded(config.weights);
  if (has_codes && config.ep.hidden % inner_multiple_of(config.weights) != 0)
    return invalid_argument("hidden: %d must be a multiple of %d with weights %s", config.ep.hidden,
                            inner_multiple_of(config.weights), to_string(config.weights));
  if (has_codes && config.ep.combine_format != CombineFormat::kBF16 &&
      (config.ep.reduce_at_owner || config.ep.row_delivery == RowDelivery::kReceiver))
    return invalid_argument(
        "combine_format: %s with weights %s, whose matmuls write bf16, is encoded in the slotted protocol; "
        "reduce_at_owner and row_delivery receiver need the direct one",
        to_string(config.ep.combine_format), to_string(config.weights));
  const int multiple = has_codes                                   ? inner_multiple_of(config.weights)
                       : element_of(config) == MatmulElement::kFP8 ? kMatmulScaleGroup / 2
                                                                   : 8;
  constexpr int kMaxExpertWidth = 1 << 20;
  if (config.expert_width < multiple || config.expert_width % multiple != 0 ||
      config.expert_width > kMaxExpertWidth)
    return invalid_argument("expert_width: %d must be a positive multiple of %d, at most %d",
                            config.expert_width, multiple, kMaxExpertWidth);
  if (config.expected_tokens_per_rank < 0)
    return invalid_argument("expected_tokens_per_rank: %d must not be negative",
                            config.expected_tokens_per_rank);
  if (config.num_matmul_blocks < 0)
    return invalid_argument("num_matmul_blocks: %d must not be negative", config.num_matmul_blocks);
  if (config.prefetch_bytes < 0)
    return invalid_argument("prefetch_bytes: %" PRId64 " must not be negative", config.prefetch_bytes);
  if (config.gate_up_start == GateUpStart::kWithRows && format != TokenFormatKind::kBF16 &&
      format != TokenFormatKind::kFP8ByRow)
    return invalid_argument(
        "gate_up_start: with the rows; dispatch_format must be bf16 or fp8-by-row, not %s",
        to_string(format));
  if (config.gate_up_start == GateUpStart::kWithRows && config.ep.row_layout == RowLayout::kMasked)
    return invalid_argument(
        "gate_up_start: with the rows; row_layout must be ragged: the rows of a masked group are counted "
        "behind dispatch");
  if (config.gate_up_start == GateUpStart::kWithRows && has_codes)
    return invalid_argument("gate_up_start: with the rows; weights must be as-rows, not %s",
                            to_string(config.weights));
  return check_combine_start(config);
}

namespace {

Status check_weights(const MoeLayerConfig& config, const ExpertWeights& weights, int rank) {
  const bool has_codes = is_coded(config.weights),
             has_scales = has_codes || element_of(config) == MatmulElement::kFP8;
  struct Tensor {
    const char* name;
    const void* pointer;
    bool is_needed;
    size_t alignment;
  };
  const Tensor tensors[] = {
      {"gate_up", weights.gate_up, true, 16},
      {"down", weights.down, true, 16},
      {"gate_up_scales", weights.gate_up_scales, has_scales, 16},
      {"down_scales", weights.down_scales, has_scales, 16},
      {"gate_up_bias", weights.gate_up_bias, false, sizeof(float)},
      {"down_bias", weights.down_bias, false, sizeof(float)},
      {"gate_up_tensor_scales", weights.gate_up_tensor_scales, false, sizeof(float)},
      {"down_tensor_scales", weights.down_tensor_scales, false, sizeof(float)},
  };
  for (const Tensor& tensor : tensors) {
    if (tensor.is_needed && tensor.pointer == nullptr)
      return invalid_argument("weights: %s of rank %d must not be null", tensor.name, rank);
    if (reinterpret_cast<uintptr_t>(tensor.pointer) % tensor.alignment != 0)
      return invalid_argument("weights: %s of rank %d is %p; it must be aligned to %zu bytes", tensor.name,
                              rank, tensor.pointer, tensor.alignment);
  }
  if (!has_codes && (weights.gate_up_tensor_scales != nullptr || weights.down_tensor_scales != nullptr))
    return invalid_argument("weights: tensor scales of rank %d must be null with weights %s, which have none",
                            rank, to_string(config.weights));
  return Status();
}

}  // namespace

Status check_weights(const MoeLayerConfig& config, const std::vector<ExpertWeights>& weights,
                     const World& world) {
  if (weights.size() != static_cast<size_t>(world.n_ranks()))
    return invalid_argument("weights: there are %zu, and %d ranks", weights.size(), world.n_ranks());
  for (const int rank : world.local_ranks())
    SWITCHYARD_RETURN_IF_ERROR(check_weights(config, weights[static_cast<size_t>(rank)], rank));
  return Status();
}

namespace {

Status check_choices(const MoeLayerStep& step) {
  const bool has_router = step.logits != nullptr,
             has_ids = step.topk_ids != nullptr || step.topk_ids_64 != nullptr;
  if (has_router == (has_ids || step.topk_weights != nullptr))
    return invalid_argument("logits: a step has either logits or topk_ids and topk_weights");
  if (has_router) return check_pointer("run", "logits", step.logits);
  if (step.topk_ids != nullptr && step.topk_ids_64 != nullptr)
    return invalid_argument("topk_ids_64: must be null where topk_ids are given");
  SWITCHYARD_RETURN_IF_ERROR(step.topk_ids_64 != nullptr
                                 ? check_pointer("run", "topk_ids_64", step.topk_ids_64)
                                 : check_pointer("run", "topk_ids", step.topk_ids));
  return check_pointer("run", "topk_weights", step.topk_weights);
}

Status check_strides(const MoeLayerConfig& config, const MoeLayerStep& step) {
  const TokenFormatInfo format = info_of(config.ep.dispatch_format);
  const uint32_t token_bytes = static_cast<uint32_t>(config.ep.hidden) * uint32_t{sizeof(bf16)};
  const bool is_encoded = step.format == InputFormat::kEncoded;
  SWITCHYARD_RETURN_IF_ERROR(check_stride("run", "token_stride_bytes", step.token_stride_bytes,
                                          is_encoded ? format.row_bytes(config.ep.hidden) : token_bytes, 16));
  if (is_encoded)
    SWITCHYARD_RETURN_IF_ERROR(
        check_stride("run", "scales_stride_bytes", step.scales_stride_bytes,
                     static_cast<uint32_t>(format.num_scales(config.ep.hidden) * format.scale_bytes),
                     static_cast<uint32_t>(format.scale_bytes)));
  if (parts_of(config).back() == MoePart::kAllReduce && step.output_stride_bytes != 0)
    return invalid_argument("output_stride_bytes: %llu must be 0 where an all-reduce completes the output",
                            static_cast<unsigned long long>(step.output_stride_bytes));
  return check_stride("run", "output_stride_bytes", step.output_stride_bytes, token_bytes, 16);
}

Status check_tensors(const MoeLayerStep& step) {
  const bool is_encoded = step.format == InputFormat::kEncoded;
  SWITCHYARD_RETURN_IF_ERROR(check_pointer("run", "tokens", step.tokens));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer("run", "output", step.output));
  if (is_encoded != (step.scales != nullptr))
    return invalid_argument("scales: must%s be null where tokens are %s", is_encoded ? " not" : "",
                            to_string(step.format));
  return is_encoded ? check_pointer("run", "scales", step.scales) : Status();
}

}  // namespace

// Dispatch and combine check most of it as well, but with launches of the step in front of them.
Status check_step(const MoeLayerConfig& config, const MoeLayerStep& step) {
  if (step.num_tokens < 0 || step.num_tokens > config.ep.max_tokens_per_rank)
    return invalid_argument("num_tokens: %d must be 0..%d", step.num_tokens, config.ep.max_tokens_per_rank);
  const TokenFormatInfo format = info_of(config.ep.dispatch_format);
  if (step.format != InputFormat::kEncoded && step.format != InputFormat::kBF16)
    return invalid_argument("format: %s; tokens come in bf16 or encoded", to_string(step.format));
  if (step.format == InputFormat::kEncoded && format.scale == ScaleType::kNone)
    return invalid_argument("format: encoded; dispatch_format is %s, which has no scales", format.name);
  SWITCHYARD_RETURN_IF_ERROR(check_strides(config, step));
  if (step.input_scale != nullptr && config.ep.dispatch_format != TokenFormatKind::kNVFP4)
    return invalid_argument("input_scale: must be null; dispatch_format is %s, not nvfp4", format.name);
  if (reinterpret_cast<uintptr_t>(step.input_scale) % sizeof(float) != 0)
    return invalid_argument("input_scale: %p must be aligned to 4 bytes",
                            static_cast<const void*>(step.input_scale));
  if (step.num_tokens == 0) return Status();
  SWITCHYARD_RETURN_IF_ERROR(check_choices(step));
  return check_tensors(step);
}

}  // namespace switchyard
