#include "attention_shape.hpp"

#include <bit>
#include <cmath>

#include "switchyard/detail/launch/attention_kernels.hpp"

namespace switchyard {
namespace {

Status check_counts(const AttentionShape& shape) {
  const struct {
    const char* name;
    int64_t value, least;
  } counts[] = {{"num_heads", shape.num_heads, 1},       {"num_kv_heads", shape.num_kv_heads, 1},
                {"batch_size", shape.batch_size, 0},     {"max_query_len", shape.max_query_len, 0},
                {"max_key_len", shape.max_key_len, 0},   {"num_query_rows", shape.num_query_rows, 0},
                {"num_key_rows", shape.num_key_rows, 0}, {"window", shape.window, 0},
                {"page_size", shape.page_size, 0},       {"pages_per_sequence", shape.pages_per_sequence, 0},
                {"num_blocks", shape.num_blocks, 0}};
  constexpr int64_t kMost =
      INT32_MAX / 4;  // positions and rows are 32-bit numbers, and sums of a few of them
  for (const auto& count : counts)
    if (count.value < count.least || count.value > kMost)
      return invalid_argument("%s is %lld; it must be %lld to %lld", count.name,
                              static_cast<long long>(count.value), static_cast<long long>(count.least),
                              static_cast<long long>(kMost));
  return Status();
}

Status check_pages(const AttentionShape& shape) {
  if (shape.page_size == 0) return Status();
  if (shape.page_size < 16 || shape.page_size > 256 ||
      !std::has_single_bit(static_cast<unsigned>(shape.page_size)))
    return invalid_argument("page_size is %d; it must be 16, 32, 64, 128 or 256", shape.page_size);
  if (shape.num_key_rows % shape.page_size != 0)
    return invalid_argument("num_key_rows is %lld; with pages it must be a multiple of page_size %d",
                            static_cast<long long>(shape.num_key_rows), shape.page_size);
  if (int64_t{shape.pages_per_sequence} * shape.page_size < shape.max_key_len)
    return invalid_argument("pages_per_sequence %d of page_size %d hold fewer than max_key_len %d rows",
                            shape.pages_per_sequence, shape.page_size, shape.max_key_len);
  return Status();
}

Status check_candidate(const AttentionShape& shape) {
  const AttentionKind kind = kind_of_attention(shape.head_dim, shape.max_query_len, shape.max_key_len,
                                               shape.causal || shape.window > 0, shape.kv_format);
  const int count = num_candidates(shape.head_dim, kind, shape.kv_format);
  if (shape.candidate < count) return Status();
  return invalid_argument("candidate is %d; head_dim %d has %d kernels of kind %s", shape.candidate,
                          shape.head_dim, count, to_string(kind));
}

// Kernels with the application's own scheduler determine the whole order of tiles.
Status check_own_kernels(const AttentionShape& shape) {
  const OwnAttentionKernels* own = shape.own_kernels;
  if (own == nullptr) return Status();
  if (own->head_dim != shape.head_dim)
    return invalid_argument("head_dim is %d; own_kernels are of head_dim %d", shape.head_dim, own->head_dim);
  if (shape.scheduler != TileSchedulerKind::kAutomatic)
    return invalid_argument("scheduler is %s; it must be automatic with own_kernels, which have %s",
                            to_string(shape.scheduler), own->scheduler_name);
  if (shape.order != MHASchedule::AUTOMATIC && shape.order != own->order)
    return invalid_argument("order is %s; it must be automatic or %s with own_kernels of that order",
                            to_string(shape.order), to_string(own->order));
  if (shape.soft_cap > 0)
    return invalid_argument("soft_cap is %g; it must be 0 with own_kernels, which have none", shape.soft_cap);
  return Status();
}

// Multi-head latent attention has one kernel.
Status check_latents(const AttentionShape& shape) {
  if (shape.head_dim != kLatentDim || shape.value_dim != kLatentValueDim)
    return invalid_argument("value_dim is %d and head_dim is %d; they must be 512 and 576, or value_dim 0",
                            shape.value_dim, shape.head_dim);
  if (shape.num_kv_heads != 1)
    return invalid_argument("num_kv_heads is %d; it must be 1 with value_dim: all heads share the latents",
                            shape.num_kv_heads);
  if (!(shape.scale > 0))
    return invalid_argument(
        "scale is %g; it must be given with value_dim: queries are absorbed, so head_dim "
        "does not say it",
        shape.scale);
  if (shape.soft_cap > 0)
    return invalid_argument("soft_cap is %g; it must be 0 with value_dim", shape.soft_cap);
  return shape.own_kernels == nullptr
             ? Status()
             : invalid_argument("own_kernels is given; it must be null with value_dim");
}

// Codes have kernels of their own.
Status check_codes(const AttentionShape& shape) {
  if (shape.kv_format != KvFormat::kFP8)
    return invalid_argument("kv_format is %d; it must be one of KvFormat", static_cast<int>(shape.kv_format));
  if (shape.value_dim != 0)
    return invalid_argument("kv_format is fp8; it must be bf16 with value_dim %d", shape.value_dim);
  return shape.own_kernels == nullptr
             ? Status()
             : invalid_argument("own_kernels is given; it must be null with kv_format fp8");
}

Status check_pointer(const char* name, const void* pointer, bool is_needed) {
  if (pointer == nullptr && is_needed) return invalid_argument("%s is null", name);
  if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0)
    return invalid_argument("%s is not 16-byte aligned", name);
  return Status();
}

}  // namespace

Status check_attention_shape(const AttentionShape& shape) {
  if (shape.value_dim == 0 && shape.head_dim != 64 && shape.head_dim != 128 && shape.head_dim != 256)
    return invalid_argument("head_dim is %d; it must be 64, 128 or 256", shape.head_dim);
  SWITCHYARD_RETURN_IF_ERROR(check_counts(shape));
  if (shape.num_heads % shape.num_kv_heads != 0)
    return invalid_argument("num_heads %d is not a multiple of num_kv_heads %d", shape.num_heads,
                            shape.num_kv_heads);
  if (const int kind = static_cast<int>(shape.scheduler);
      kind < 0 || shape.scheduler > TileSchedulerKind::kAutomatic)
    return invalid_argument("scheduler is %d; it must be one of TileSchedulerKind", kind);
  if (const int order = static_cast<int>(shape.order); order < 0 || shape.order > MHASchedule::AUTOMATIC)
    return invalid_argument("order is %d; it must be one of MHASchedule", order);
  if (!(shape.scale >= 0) || !std::isfinite(shape.scale))
    return invalid_argument("scale is %g; it must be positive, or 0 for the usual one", shape.scale);
  // What the tangent is rounded by is multiplied by the cap.
  constexpr float kMaxSoftCap = 1000;
  if (!(shape.soft_cap >= 0 && shape.soft_cap <= kMaxSoftCap))
    return invalid_argument("soft_cap is %g; it must be positive and at most %g, or 0 for none",
                            shape.soft_cap, kMaxSoftCap);
  if (shape.max_query_len > shape.num_query_rows)
    return invalid_argument("max_query_len %d exceeds num_query_rows %lld", shape.max_query_len,
                            static_cast<long long>(shape.num_query_rows));
  if (shape.page_size == 0 && shape.max_key_len > shape.num_key_rows)
    return invalid_argument("max_key_len %d exceeds num_key_rows %lld", shape.max_key_len,
                            static_cast<long long>(shape.num_key_rows));
  SWITCHYARD_RETURN_IF_ERROR(check_candidate(shape));
  SWITCHYARD_RETURN_IF_ERROR(check_own_kernels(shape));
  if (shape.value_dim != 0) SWITCHYARD_RETURN_IF_ERROR(check_latents(shape));
  if (shape.kv_format != KvFormat::kBF16) SWITCHYARD_RETURN_IF_ERROR(check_codes(shape));
  return check_pages(shape);
}

Status check_attention_tensors(const AttentionShape& shape, const AttentionTensors& tensors) {
  const bool has_queries = shape.num_query_rows > 0, has_keys = shape.num_key_rows > 0;
  SWITCHYARD_RETURN_IF_ERROR(check_pointer("queries", tensors.queries, has_queries));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer("output", tensors.output, has_queries));
  const bool has_codes = shape.kv_format == KvFormat::kFP8;
  SWITCHYARD_RETURN_IF_ERROR(check_pointer("keys", tensors.keys, has_keys && !has_codes));
  SWITCHYARD_RETURN_IF_ERROR(
      check_pointer("values", tensors.values, has_keys && !has_codes && shape.value_dim == 0));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer("key_codes", tensors.key_codes, has_keys && has_codes));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer("value_codes", tensors.value_codes, has_keys && has_codes));
  if (has_codes && (tensors.key_scales == nullptr || tensors.value_scales == nullptr))
    return invalid_argument("%s is null; kv_format is fp8",
                            tensors.key_scales == nullptr ? "key_scales" : "value_scales");
  if (shape.value_dim != 0 && tensors.values != nullptr)
    return invalid_argument(
        "values is given; it must be null with value_dim: values are columns of the keys");
  if (shape.value_dim != 0 && tensors.sinks != nullptr)
    return invalid_argument("sinks is given; it must be null with value_dim");
  if (tensors.sinks != nullptr && shape.own_kernels != nullptr)
    return invalid_argument("sinks is given; it must be null with own_kernels, which have none");
  if (tensors.query_offsets == nullptr &&
      int64_t{shape.batch_size} * shape.max_query_len != shape.num_query_rows)
    return invalid_argument(
        "query_offsets is null, so num_query_rows must be batch_size %d times max_query_len %d, not %lld",
        shape.batch_size, shape.max_query_len, static_cast<long long>(shape.num_query_rows));
  if (shape.page_size != 0) {
    if (tensors.key_offsets != nullptr)
      return invalid_argument("key_offsets is given, but keys are in pages");
    if (tensors.key_lengths == nullptr) return invalid_argument("key_lengths is null; pages need it");
    return tensors.page_table == nullptr
               ? invalid_argument("page_table is null; page_size is %d", shape.page_size)
               : Status();
  }
  if (tensors.page_table != nullptr) return invalid_argument("page_table is given, but page_size is 0");
  if (tensors.key_offsets != nullptr && tensors.key_lengths != nullptr)
    return invalid_argument(
        "key_offsets and key_lengths are both given; one of them says how long a sequence is");
  if (tensors.key_offsets == nullptr && int64_t{shape.batch_size} * shape.max_key_len != shape.num_key_rows)
    return invalid_argument(
        "key_offsets is null, so num_key_rows must be batch_size %d times max_key_len %d, not %lld",
        shape.batch_size, shape.max_key_len, static_cast<long long>(shape.num_key_rows));
  return Status();
}

}  // namespace switchyard
