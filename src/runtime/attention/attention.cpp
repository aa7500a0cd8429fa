#include "switchyard/attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "attention_choice.hpp"
#include "attention_shape.hpp"
#include "switchyard/detail/attention/tuning.hpp"
#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/launch/attention_kernels.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/detail/schedule/check.hpp"

namespace switchyard {
namespace {

// Describes a tensor without gaps. One without rows is described as one row that is never read.
// Two codes count as one column.
TensorShape tensor_of(const void* base, const void* stand_in, int num_heads, int num_columns,
                      int64_t num_rows) {
  TensorShape shape;
  shape.base = num_rows > 0 ? base : stand_in;
  shape.columns = static_cast<uint32_t>(num_columns);
  shape.heads = static_cast<uint32_t>(num_heads);
  shape.rows = static_cast<uint32_t>(std::max<int64_t>(num_rows, 1));
  shape.head_stride_bytes = static_cast<uint64_t>(num_columns) * sizeof(bf16);
  shape.row_stride_bytes = shape.head_stride_bytes * shape.heads;
  return shape;
}

}  // namespace

struct Attention::Impl {
  Impl(Rank& on_rank, const AttentionShape& of_shape);

  const AttentionChoice& choice(const AttentionTensors& tensors) const {
    return choices[tensors.key_lengths != nullptr];
  }
  // Kernel, tiles and splits follow from the shape, whatever the tensors hold.
  const AttentionChoice& any_choice() const { return choices[0]; }
  // Only the library's plain kernels have other candidates than the first.
  int candidate(ScoreKind scores) const {
    return shape.own_kernels == nullptr && scores == ScoreKind::kPlain ? any_choice().candidate : 0;
  }
  const AttentionKernel& kernel(ScoreKind scores) const {
    const AttentionKind kind = any_choice().kind;
    return shape.own_kernels != nullptr
               ? shape.own_kernels->kernels.kernels[static_cast<int>(kind)][0]
               : kernels.at(shape.head_dim, kind, scores, shape.kv_format, candidate(scores));
  }
  ScoreKind scores_of(const AttentionTensors& tensors) const {
    return shape.soft_cap > 0 || tensors.sinks != nullptr ? ScoreKind::kAdjusted : ScoreKind::kPlain;
  }
  AttentionTuning tuning(const AttentionTensors& tensors) const {
    return attention_tuning(shape.head_dim, any_choice().kind, candidate(scores_of(tensors)),
                            shape.kv_format);
  }
  uint32_t num_outputs() const { return static_cast<uint32_t>(shape.num_query_rows * shape.num_heads); }
  int value_dim() const { return shape.value_dim > 0 ? shape.value_dim : shape.head_dim; }
  uint64_t num_tile_times() const {
    return static_cast<uint64_t>(shape.batch_size) * any_choice().tile_shape.num_heads *
           any_choice().max_num_tiles;
  }
  Status allocate();
  MHATilePlan tile_plan() const;
  KeyLayout keys_of(const AttentionTensors& tensors) const;
  TileOrderParams order_of(const AttentionTensors& tensors) const;
  AttentionSettings settings_of(const AttentionTensors& tensors) const;
  Status launch_plan(const AttentionTensors& tensors, StreamHandle stream);
  Status launch_attention(const AttentionTensors& tensors, StreamHandle stream);

  Rank& rank;
  const AttentionShape shape;
  const AttentionKernels& kernels;
  const AttentionDevice device;
  const AttentionChoice choices[2];  // without and with key_lengths
  Buffer<uint32_t> queue, plan, num_splits_done;
  Buffer<float> partial_output, partial_lse;
  bool uses_callers_streams = false;
};

Attention::Impl::Impl(Rank& on_rank, const AttentionShape& of_shape)
    : rank(on_rank),
      shape(of_shape),
      kernels(attention_kernels(device_of(rank).target())),
      device{static_cast<uint32_t>(device_of(rank).num_multiprocessors()), kernels.l2_bytes()},
      choices{choose_attention(shape, false, device), choose_attention(shape, true, device)} {}

Attention::Attention(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Attention::~Attention() {
  // What is freed now may be in use on streams that the rank does not know.
  if (impl_->uses_callers_streams) device_of(impl_->rank).drain_all();
}

Result<std::unique_ptr<Attention>> Attention::create(Rank& rank, const AttentionShape& shape) {
  SWITCHYARD_RETURN_IF_ERROR(check_attention_shape(shape));
  if (shape.own_kernels != nullptr && shape.own_kernels->target != device_of(rank).target())
    return invalid_argument("own_kernels are compiled for %s; the rank's target is %s",
                            to_string(shape.own_kernels->target), to_string(device_of(rank).target()));
  SWITCHYARD_RETURN_IF_ERROR(device_of(rank).check_matrix_unit());
  const DeviceScope active = device_of(rank).activate();
  SWITCHYARD_RETURN_IF_ERROR(active.status());
  auto impl = std::make_unique<Impl>(rank, shape);
  SWITCHYARD_RETURN_IF_ERROR(check_tile_counts(
      impl->any_choice().tile_shape, static_cast<uint64_t>(shape.batch_size),
      static_cast<uint64_t>(shape.max_query_len), static_cast<uint64_t>(shape.num_query_rows)));
  SWITCHYARD_RETURN_IF_ERROR(impl->allocate());
  for (const ScoreKind scores : {ScoreKind::kPlain, ScoreKind::kAdjusted})
    SWITCHYARD_RETURN_IF_ERROR(impl->kernel(scores).load());
  SWITCHYARD_RETURN_IF_ERROR(impl->kernels.load());
  return std::unique_ptr<Attention>(new Attention(std::move(impl)));
}

const AttentionShape& Attention::shape() const { return impl_->shape; }
const AttentionChoice& Attention::choice(const AttentionTensors& tensors) const {
  return impl_->choice(tensors);
}
uint64_t Attention::num_tile_times() const { return impl_->num_tile_times(); }

Status Attention::run(const AttentionTensors& tensors, Stream stream) {
  SWITCHYARD_RETURN_IF_ERROR(check_attention_tensors(impl_->shape, tensors));
  if (num_tile_times() == 0) return Status();
  const Result<StreamHandle> handle = impl_->rank.handle_of(stream);
  if (!handle.ok()) return handle.status();
  impl_->uses_callers_streams |= stream.is_callers();
  const DeviceScope active = device_of(impl_->rank).activate();
  SWITCHYARD_RETURN_IF_ERROR(active.status());
  if (tensors.query_offsets != nullptr)
    SWITCHYARD_RETURN_IF_ERROR(impl_->launch_plan(tensors, handle.value()));
  return impl_->launch_attention(tensors, handle.value());
}

Status Attention::Impl::allocate() {
  const auto take = [&]<typename T>(Buffer<T>& buffer, size_t size) {
    Result<Buffer<T>> allocated = rank.allocate<T>(size);
    if (allocated.ok()) buffer = std::move(allocated).value();
    return allocated.status();
  };
  SWITCHYARD_RETURN_IF_ERROR(take(queue, 1));
  SWITCHYARD_RETURN_IF_ERROR(take(plan, 3 * static_cast<size_t>(shape.batch_size) + 1));
  const size_t num_splits = any_choice().num_splits;
  if (num_splits == 1) return Status();
  SWITCHYARD_RETURN_IF_ERROR(take(num_splits_done, num_outputs()));
  const size_t num_partial = num_splits * num_outputs();
  SWITCHYARD_RETURN_IF_ERROR(take(partial_output, num_partial * static_cast<size_t>(value_dim())));
  return take(partial_lse, num_partial);
}

MHATilePlan Attention::Impl::tile_plan() const {
  const uint32_t batch_size = static_cast<uint32_t>(shape.batch_size);
  return {plan.data(), plan.data() + batch_size, plan.data() + 2 * batch_size + 1};
}

KeyLayout Attention::Impl::keys_of(const AttentionTensors& tensors) const {
  const uint32_t tile_keys = static_cast<uint32_t>(tuning(tensors).tile_keys);
  KeyLayout keys{.row_offsets = tensors.key_offsets,
                 .lengths = tensors.key_lengths,
                 .max_seq_len = static_cast<uint32_t>(shape.max_key_len),
                 .page_table = tensors.page_table,
                 .pages_per_sequence = static_cast<uint32_t>(shape.pages_per_sequence),
                 .box_rows = tile_keys};
  if (shape.page_size > 0) {
    keys.page_rows_log2 = static_cast<uint32_t>(std::countr_zero(static_cast<unsigned>(shape.page_size)));
    keys.box_rows = std::gcd(tile_keys, static_cast<uint32_t>(shape.page_size));
  }
  return keys;
}

TileOrderParams Attention::Impl::order_of(const AttentionTensors& tensors) const {
  const AttentionChoice& chosen = choice(tensors);
  return {.kind = chosen.scheduler,
          .order = chosen.order,
          .shape = chosen.tile_shape,
          .queue = queue.data(),
          .row_offsets = tensors.query_offsets,
          .plan = tensors.query_offsets != nullptr ? tile_plan() : MHATilePlan{},
          .batch_size = static_cast<uint32_t>(shape.batch_size),
          .max_num_prompt_tiles = chosen.max_num_tiles,
          .max_seq_len = static_cast<uint32_t>(shape.max_query_len),
          .max_num_keys = static_cast<uint32_t>(shape.max_key_len)};
}

AttentionSettings Attention::Impl::settings_of(const AttentionTensors& tensors) const {
  const AttentionChoice& chosen = choice(tensors);
  AttentionSettings settings;
  settings.order = order_of(tensors);
  settings.keys = keys_of(tensors);
  settings.num_heads = static_cast<uint32_t>(shape.num_heads);
  settings.heads_per_kv_head = static_cast<uint32_t>(shape.num_heads / shape.num_kv_heads);
  settings.heads_per_tile = chosen.heads_per_tile;
  settings.tokens_per_tile = chosen.tile_rows;
  if (shape.window > 0) settings.window_left = settings.window_right = shape.window - 1;
  if (shape.causal) settings.window_right = 0;
  settings.num_splits = chosen.num_splits;
  settings.split_keys = chosen.split_keys;
  const double scale = shape.scale > 0 ? shape.scale : 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  constexpr double kLog2E = 1.4426950408889634;
  settings.scale_log2 = static_cast<float>((shape.soft_cap > 0 ? shape.soft_cap : scale) * kLog2E);
  if (shape.soft_cap > 0) settings.cap_factor = static_cast<float>(2 * kLog2E * scale / shape.soft_cap);
  settings.sinks = tensors.sinks;
  settings.key_scales = tensors.key_scales;
  settings.value_scales = tensors.value_scales;
  settings.output = tensors.output;
  settings.lse = tensors.lse;
  settings.partial_output = partial_output.data();
  settings.partial_lse = partial_lse.data();
  settings.num_splits_done = num_splits_done.data();
  settings.num_rows = static_cast<uint32_t>(shape.num_query_rows);
  settings.tile_times = tensors.tile_times;
  return settings;
}

Status Attention::Impl::launch_plan(const AttentionTensors& tensors, StreamHandle stream) {
  constexpr uint32_t kNumThreads = static_cast<uint32_t>(kAttentionLimits.num_plan_threads);
  const uint32_t batch_size = static_cast<uint32_t>(shape.batch_size);
  const uint32_t max_blocks =
      shape.num_blocks > 0 ? static_cast<uint32_t>(shape.num_blocks) : device.num_multiprocessors;
  return kernels.plan_tiles({.num_blocks = std::min(ceil_div(batch_size, kNumThreads), max_blocks),
                             .num_threads = kNumThreads,
                             .programmatic_dependent = true},
                            stream,
                            PlanTilesParams{tensors.query_offsets, batch_size, any_choice().tile_rows,
                                            any_choice().order, tile_plan(), keys_of(tensors)});
}

Status Attention::Impl::launch_attention(const AttentionTensors& tensors, StreamHandle stream) {
  const bool has_codes = shape.kv_format == KvFormat::kFP8;
  const auto rows_of_keys = [&](const bf16* numbers, const uint8_t* codes) {
    return tensor_of(has_codes ? static_cast<const void*>(codes) : numbers, tensors.queries,
                     shape.num_kv_heads, has_codes ? shape.head_dim / 2 : shape.head_dim, shape.num_key_rows);
  };
  AttentionTensorShapes shapes{
      tensor_of(tensors.queries, tensors.queries, shape.num_heads, shape.head_dim, shape.num_query_rows),
      rows_of_keys(tensors.keys, tensors.key_codes),
      rows_of_keys(shape.value_dim > 0 ? tensors.keys : tensors.values, tensors.value_codes)};
  // When decoding, nobody else reads what a tile reads; larger fetches of the L2 only get into each other's
  // way. More queries have not been timed.
  if (any_choice().kind == AttentionKind::kDecode) shapes.keys.l2_bytes = shapes.values.l2_bytes = 128;
  return kernel(scores_of(tensors)).launch(choice(tensors).num_blocks, stream, shapes, settings_of(tensors));
}

}  // namespace switchyard
