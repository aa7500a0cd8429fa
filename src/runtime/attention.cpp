#include "switchyard/attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "attention_shape.hpp"
#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/schedule/check.hpp"
#include "switchyard/detail/schedule/one_thread.hpp"
#include "switchyard/detail/schedule/schedulers.hpp"

namespace switchyard {
namespace {

constexpr uint32_t kUnitsPerBlock = 8;  // decoding: splits are made until each block has so many, on average
constexpr uint32_t kMinSplitKeys = 512;
constexpr uint32_t kMinTilesForLpt = 8;  // in a sequence's length: shorter ones end evenly in any order
constexpr uint32_t kMaxSplits = 128;

TileSchedulerKind kind_of(SchedulerChoice choice) {
  return choice == SchedulerChoice::kTransient ? TileSchedulerKind::kTransient
         : choice == SchedulerChoice::kTile    ? TileSchedulerKind::kTile
                                               : TileSchedulerKind::kQueued;
}

MHASchedule order_of(OrderChoice choice) {
  return choice == OrderChoice::kRotate ? MHASchedule::PROMPT_ROTATE
         : choice == OrderChoice::kLpt  ? MHASchedule::LPT
                                        : MHASchedule::DEFAULT;
}

// The grid of a scheduler. Neither the order nor where it runs makes a difference.
GridDim grid_of(TileSchedulerKind kind, const MHATileShape& shape, uint32_t batch_size,
                uint32_t max_num_tiles) {
  constexpr MHASchedule kAnyOrder = MHASchedule::DEFAULT;
  switch (kind) {
    case TileSchedulerKind::kTransient:
      return TransientScheduler<kAnyOrder, OneThread>::grid_dim(batch_size, max_num_tiles, shape);
    case TileSchedulerKind::kTile:
      return TileScheduler<kAnyOrder, OneThread>::grid_dim(batch_size, max_num_tiles, shape);
    case TileSchedulerKind::kQueued:
      break;
  }
  return QueuedTileScheduler<kAnyOrder, OneThread>::grid_dim(batch_size, max_num_tiles, shape);
}

// A tensor without gaps. One without rows is told of as one row that nobody reads.
TensorShape tensor_of(const void* base, const void* stand_in, int num_heads, int head_dim, int64_t num_rows) {
  TensorShape shape;
  shape.base = num_rows > 0 ? base : stand_in;
  shape.columns = static_cast<uint32_t>(head_dim);
  shape.heads = static_cast<uint32_t>(num_heads);
  shape.rows = static_cast<uint32_t>(std::max<int64_t>(num_rows, 1));
  shape.head_stride_bytes = static_cast<uint64_t>(head_dim) * sizeof(bf16);
  shape.row_stride_bytes = shape.head_stride_bytes * shape.heads;
  return shape;
}

}  // namespace

const char* to_string(TileSchedulerKind kind) {
  return kind == TileSchedulerKind::kTransient ? "transient"
         : kind == TileSchedulerKind::kTile    ? "tile"
                                               : "queued";
}

Attention::Attention(Rank& rank, const AttentionShape& shape)
    : rank_(rank), shape_(shape), kernels_(attention_kernels(rank.device().target())) {}

Result<std::unique_ptr<Attention>> Attention::create(Rank& rank, const AttentionShape& shape) {
  SWITCHYARD_RETURN_IF_ERROR(check_attention_shape(shape));
  const DeviceScope active = rank.device().activate();
  SWITCHYARD_RETURN_IF_ERROR(active.status());
  std::unique_ptr<Attention> attention(new Attention(rank, shape));
  attention->choose();
  SWITCHYARD_RETURN_IF_ERROR(check_tile_counts(
      attention->tile_shape_, static_cast<uint64_t>(shape.batch_size),
      static_cast<uint64_t>(shape.max_query_len), static_cast<uint64_t>(shape.num_query_rows)));
  SWITCHYARD_RETURN_IF_ERROR(attention->allocate());
  SWITCHYARD_RETURN_IF_ERROR(attention->kernels_.at(shape.head_dim, attention->choice_.kind).load());
  SWITCHYARD_RETURN_IF_ERROR(attention->kernels_.load());
  return attention;
}

// What runs, from the shape alone.
void Attention::choose() {
  const bool is_banded = shape_.causal || shape_.window > 0;
  const uint32_t group = static_cast<uint32_t>(shape_.num_heads / shape_.num_kv_heads);
  choice_.kind = kind_of_attention(shape_.head_dim, shape_.max_query_len, shape_.max_key_len, is_banded);
  const AttentionKernel& kernel = kernels_.at(shape_.head_dim, choice_.kind);
  choice_.tile_rows = kernel.tile_rows;
  if (choice_.kind == AttentionKind::kDecode) {
    heads_per_tile_ = group;
    while (heads_per_tile_ > kernel.tile_rows || group % heads_per_tile_ != 0) --heads_per_tile_;
    choice_.tile_rows = kernel.tile_rows / heads_per_tile_;
  }
  max_num_tiles_ = ceil_div(static_cast<uint32_t>(shape_.max_query_len), choice_.tile_rows);
  uint32_t num_ctas = max_num_blocks();
  if (shape_.num_blocks == 0) num_ctas *= kernel.blocks_per_multiprocessor;
  choose_splits(num_ctas);

  choice_.scheduler = kind_of(shape_.scheduler);
  choice_.order = order_of(shape_.order);
  choice_.reason = "as asked";
  const bool is_even = choice_.kind == AttentionKind::kFull && shape_.page_size == 0 &&
                       int64_t{shape_.batch_size} * shape_.max_query_len == shape_.num_query_rows &&
                       int64_t{shape_.batch_size} * shape_.max_key_len == shape_.num_key_rows;
  if (shape_.scheduler == SchedulerChoice::kAuto) {
    choice_.scheduler = is_even ? TileSchedulerKind::kTile : TileSchedulerKind::kQueued;
    choice_.reason = is_even ? "all tiles cost the same: blocks stride through them"
                     : choice_.kind == AttentionKind::kDecode
                         ? "few queries: blocks take parts of the keys from a queue"
                         : "tiles differ in cost: blocks take them from a queue";
  }
  if (shape_.order == OrderChoice::kAuto && choice_.kind != AttentionKind::kDecode && !is_even) {
    const int longest = std::max(shape_.max_query_len, shape_.max_key_len);
    const bool is_short = ceil_div(static_cast<uint32_t>(longest), choice_.tile_rows) < kMinTilesForLpt;
    choice_.order = is_short ? MHASchedule::DEFAULT : MHASchedule::LPT;
    if (shape_.scheduler == SchedulerChoice::kAuto)
      choice_.reason += is_short ? ", in order: all are short" : ", the longest first";
  }
  const uint64_t kv_row_bytes = static_cast<uint64_t>(shape_.head_dim) * 2 * sizeof(bf16);
  // To the scheduler the heads that share a tile are one, and each split is one: a K/V head is shared by what
  // is left.
  const uint32_t num_parts = choice_.num_splits;
  tile_shape_ = {choice_.tile_rows, static_cast<uint32_t>(shape_.num_heads) / heads_per_tile_ * num_parts,
                 num_ctas, static_cast<uint32_t>(kernels_.l2_bytes() / kv_row_bytes),
                 group / heads_per_tile_ * num_parts};
  choice_.num_blocks =
      grid_of(choice_.scheduler, tile_shape_, static_cast<uint32_t>(shape_.batch_size), max_num_tiles_)
          .num_blocks();
}

// The shape does not tell whether sequences have keys of their own number.
bool Attention::takes_queue_for_keys(const AttentionTensors& tensors) const {
  return shape_.scheduler == SchedulerChoice::kAuto && tensors.key_lengths != nullptr &&
         choice_.scheduler != TileSchedulerKind::kQueued;
}

AttentionChoice Attention::choice(const AttentionTensors& tensors) const {
  AttentionChoice choice = choice_;
  if (takes_queue_for_keys(tensors)) {
    choice.scheduler = TileSchedulerKind::kQueued;
    choice.reason = "sequences have keys of their own number: blocks take tiles from a queue";
  }
  return choice;
}

uint32_t Attention::max_num_blocks() const {
  return static_cast<uint32_t>(shape_.num_blocks > 0 ? shape_.num_blocks
                                                     : rank_.device().num_multiprocessors());
}

// Enough parts of the keys that all blocks have work, and about the same.
void Attention::choose_splits(uint32_t num_ctas) {
  const AttentionKernel& kernel = kernels_.at(shape_.head_dim, choice_.kind);
  split_keys_ = static_cast<uint32_t>(shape_.max_key_len);
  const uint64_t num_units = static_cast<uint64_t>(shape_.batch_size) *
                             static_cast<uint64_t>(shape_.num_heads) / heads_per_tile_ * max_num_tiles_;
  if (choice_.kind != AttentionKind::kDecode || num_units == 0) return;
  const uint64_t num_wanted = ceil_div<uint64_t>(uint64_t{num_ctas} * kUnitsPerBlock, num_units);
  const uint64_t num_useful = ceil_div<uint64_t>(split_keys_, kMinSplitKeys);
  const uint64_t num_splits = std::min({num_wanted, num_useful, uint64_t{kMaxSplits}});
  if (num_splits <= 1) return;
  split_keys_ = align_up(ceil_div(split_keys_, static_cast<uint32_t>(num_splits)), kernel.tile_keys);
  choice_.num_splits = ceil_div(static_cast<uint32_t>(shape_.max_key_len), split_keys_);
  const uint32_t num_places = static_cast<uint32_t>(shape_.num_query_rows * shape_.num_heads);
  choice_.num_combine_blocks = std::min(ceil_div(num_places, combine_warps(num_places)), max_num_blocks());
}

// Few warps, so that few places still spread over all blocks; more where there are not blocks enough.
uint32_t Attention::combine_warps(uint32_t num_places) const {
  constexpr uint32_t kMinWarps = 4, kMaxWarps = 16;
  return std::clamp(ceil_div(num_places, max_num_blocks()), kMinWarps, kMaxWarps);
}

uint64_t Attention::num_places() const {
  return static_cast<uint64_t>(shape_.batch_size) * tile_shape_.num_heads * max_num_tiles_;
}

Status Attention::allocate() {
  const size_t batch_size = static_cast<size_t>(shape_.batch_size);
  Result<Buffer<uint32_t>> queue = rank_.allocate<uint32_t>(1),
                           plan = rank_.allocate<uint32_t>(3 * batch_size + 1);
  for (const Result<Buffer<uint32_t>>* buffer : {&queue, &plan})
    if (!buffer->ok()) return buffer->status();
  queue_ = std::move(queue).value();
  plan_ = std::move(plan).value();
  if (choice_.num_splits == 1) return Status();
  const size_t num_places =
      static_cast<size_t>(shape_.num_query_rows) * static_cast<size_t>(shape_.num_heads);
  Result<Buffer<float>> output = rank_.allocate<float>(choice_.num_splits * num_places *
                                                       static_cast<size_t>(shape_.head_dim)),
                        lse = rank_.allocate<float>(choice_.num_splits * num_places);
  for (const Result<Buffer<float>>* buffer : {&output, &lse})
    if (!buffer->ok()) return buffer->status();
  partial_output_ = std::move(output).value();
  partial_lse_ = std::move(lse).value();
  return Status();
}

Status Attention::run(const AttentionTensors& tensors) {
  SWITCHYARD_RETURN_IF_ERROR(check_attention_tensors(shape_, tensors));
  if (num_places() == 0) return Status();
  const DeviceScope active = rank_.device().activate();
  SWITCHYARD_RETURN_IF_ERROR(active.status());
  if (tensors.query_offsets != nullptr) SWITCHYARD_RETURN_IF_ERROR(launch_plan(tensors));
  AttentionTensorShapes shapes;
  shapes.queries =
      tensor_of(tensors.queries, nullptr, shape_.num_heads, shape_.head_dim, shape_.num_query_rows);
  shapes.keys =
      tensor_of(tensors.keys, tensors.queries, shape_.num_kv_heads, shape_.head_dim, shape_.num_key_rows);
  shapes.values =
      tensor_of(tensors.values, tensors.queries, shape_.num_kv_heads, shape_.head_dim, shape_.num_key_rows);
  SWITCHYARD_RETURN_IF_ERROR(kernels_.at(shape_.head_dim, choice_.kind)
                                 .launch(choice_.num_blocks, rank_.stream(), shapes, numbers_of(tensors)));
  return choice_.num_splits > 1 ? launch_combine(tensors) : Status();
}

MHATilePlan Attention::tile_plan() const {
  const uint32_t batch_size = static_cast<uint32_t>(shape_.batch_size);
  return {plan_.data(), plan_.data() + batch_size, plan_.data() + 2 * batch_size + 1};
}

KeyPlaces Attention::keys_of(const AttentionTensors& tensors) const {
  const uint32_t tile_keys = kernels_.at(shape_.head_dim, choice_.kind).tile_keys;
  KeyPlaces keys{.row_offsets = tensors.key_offsets,
                 .lengths = tensors.key_lengths,
                 .max_seq_len = static_cast<uint32_t>(shape_.max_key_len),
                 .page_table = tensors.page_table,
                 .pages_per_sequence = static_cast<uint32_t>(shape_.pages_per_sequence),
                 .box_rows = tile_keys};
  if (shape_.page_size > 0) {
    keys.page_rows_log2 = static_cast<uint32_t>(std::countr_zero(static_cast<unsigned>(shape_.page_size)));
    keys.box_rows = std::gcd(tile_keys, static_cast<uint32_t>(shape_.page_size));
  }
  return keys;
}

AttentionNumbers Attention::numbers_of(const AttentionTensors& tensors) const {
  AttentionNumbers numbers;
  numbers.order = {choice_.scheduler,
                   choice_.order,
                   tile_shape_,
                   queue_.data(),
                   tensors.query_offsets,
                   {},
                   static_cast<uint32_t>(shape_.batch_size),
                   max_num_tiles_,
                   static_cast<uint32_t>(shape_.max_query_len),
                   static_cast<uint32_t>(shape_.max_key_len)};
  if (tensors.query_offsets != nullptr) numbers.order.plan = tile_plan();
  if (takes_queue_for_keys(tensors)) numbers.order.kind = TileSchedulerKind::kQueued;
  numbers.keys = keys_of(tensors);
  numbers.num_heads = static_cast<uint32_t>(shape_.num_heads);
  numbers.heads_per_kv_head = static_cast<uint32_t>(shape_.num_heads / shape_.num_kv_heads);
  numbers.heads_per_tile = heads_per_tile_;
  numbers.tokens_per_tile = choice_.tile_rows;
  if (shape_.window > 0) numbers.window_left = numbers.window_right = shape_.window - 1;
  if (shape_.causal) numbers.window_right = 0;
  numbers.num_splits = choice_.num_splits;
  numbers.split_keys = split_keys_;
  const double scale =
      shape_.scale > 0 ? shape_.scale : 1.0 / std::sqrt(static_cast<double>(shape_.head_dim));
  numbers.scale_log2 = static_cast<float>(scale * 1.4426950408889634);
  numbers.output = tensors.output;
  numbers.lse = tensors.lse;
  numbers.partial_output = partial_output_.data();
  numbers.partial_lse = partial_lse_.data();
  numbers.num_rows = static_cast<uint32_t>(shape_.num_query_rows);
  numbers.tile_times = tensors.tile_times;
  return numbers;
}

Status Attention::launch_plan(const AttentionTensors& tensors) {
  constexpr uint32_t kNumThreads = 128;
  const uint32_t batch_size = static_cast<uint32_t>(shape_.batch_size);
  return kernels_.plan_tiles({.num_blocks = std::min(ceil_div(batch_size, kNumThreads), max_num_blocks()),
                              .num_threads = kNumThreads,
                              .programmatic_dependent = true},
                             rank_.stream(),
                             PlanTilesParams{tensors.query_offsets, batch_size, choice_.tile_rows,
                                             choice_.order, tile_plan(), keys_of(tensors)});
}

Status Attention::launch_combine(const AttentionTensors& tensors) {
  const uint32_t num_heads = static_cast<uint32_t>(shape_.num_heads);
  const uint32_t num_places = static_cast<uint32_t>(shape_.num_query_rows) * num_heads;
  return kernels_.combine_splits(
      {.num_blocks = choice_.num_combine_blocks,
       .num_threads = combine_warps(num_places) * kWarpSize,
       .programmatic_dependent = true},
      rank_.stream(),
      CombineSplitsParams{partial_output_.data(), partial_lse_.data(), tensors.output, tensors.lse,
                          tensors.query_offsets, static_cast<uint32_t>(shape_.batch_size), num_heads,
                          choice_.num_splits, num_places, static_cast<uint32_t>(shape_.head_dim)});
}

}  // namespace switchyard
