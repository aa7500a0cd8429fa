// The kernel in front of a combine that is reduced at the owner (reduce_at_owner): it sums up what the
// experts of this rank have made of a token of another rank, weighted, in fp32, in the order of k, and rounds
// once. The sum overwrites the first of these rows, which the token's rank pulls. A row without
// siblings stays as it is, and so do those of the rank's own tokens, which nobody pulls from afar.
#pragma once

#include "switchyard/detail/ep/row_sum.hpp"
#include "switchyard/detail/ep/sibling_rows.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct alignas(128) ReduceSiblingsShared {
  static constexpr int kMaxListed = 2048;

  ArrivedRows arrived;
  uint32_t num_listed;
  uint32_t num_taken;
  uint32_t first_rows[kMaxListed];  // of those that have siblings, in any order
  TokenSources sources;
  // Behind it: the stages of a RowSum.

  template <typename Rows>
  SWITCHYARD_HD static constexpr uint64_t bytes(int num_warps) {
    return sizeof(ReduceSiblingsShared) + static_cast<uint64_t>(num_warps) * RowSum<Rows>::kBytesPerWarp;
  }
};
static_assert(sizeof(ReduceSiblingsShared) % kRowSumAlignment == 0);

// Stores the sum of a token's rows, by a whole warp, over the first of them. Every warp has read the columns
// that it stores from all rows.
SWITCHYARD_DEVICE void store_sum(RowSum<BF16CombineRows>& row_sum, const TokenRows& rows, std::byte* sum,
                                 int worker_idx, int num_workers) {
  row_sum.run(rows, worker_idx, num_workers, [&](int column, const float(&sums)[kColumnsPerThread]) {
    target::st_16(reinterpret_cast<bf16*>(sum) + column, pack_bf16(sums));
  });
}
SWITCHYARD_DEVICE void store_sum(RowSum<FP8CombineRows>& row_sum, const TokenRows& rows, std::byte* sum,
                                 int worker_idx, int num_workers) {
  using Rows = FP8CombineRows;
  using Quantizer = Rows::Quantizer;
  static_assert(Rows::kColumns == kElementsPerLane);
  float* scales = GroupedMessageLayout<Quantizer>{rows.hidden}.scales(sum);
  row_sum.run_whole(rows, worker_idx, num_workers, [&](int column, float(&sums)[2][kColumnsPerThread]) {
    LaneFloats elements;
    SWITCHYARD_UNROLL
    for (int i = 0; i < Rows::kColumns; ++i)
      elements.values[i] = sums[i / kColumnsPerThread][i % kColumnsPerThread];
    const auto scale = Quantizer{}.scale_of(group_amax<Rows::kGroupSize>(elements));
    if (column >= rows.hidden) return;
    uint32_t words[kElementsPerLane * Quantizer::Element::kNumBits / 32];
    quantize<Quantizer::Element>(elements, scale.factor, words);
    store_words(sum + column, words);
    if (column % Rows::kGroupSize == 0) target::st(scales + column / Rows::kGroupSize, scale.stored);
  });
}

template <FixedShape Fixed, typename Rows>
struct ReduceSiblings {
  const ReduceSiblingsParams& params;
  const LinkedRows& linked = params.linked;
  const ShapeOf<Fixed> shape{linked.shape};
  const uint32_t row_bytes = Rows::row_bytes(shape.hidden());
  ReduceSiblingsShared& shared = target::shared_storage<ReduceSiblingsShared>();

  SWITCHYARD_DEVICE explicit ReduceSiblings(const ReduceSiblingsParams& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() const {
    const bool has_rows = find_linked_rows(shape, linked, shared.arrived, [&](int rank) {
      return mutate<Fixed, LogicMutant::kSumsOfOwnRankOnly>(rank != linked.my_rank, rank == linked.my_rank);
    });
    if (!has_rows) return;
    RowSum<Rows> row_sum(reinterpret_cast<std::byte*>(&shared + 1));
    const uint32_t num_rows = shared.arrived.total(shape);
    const uint32_t num_blocks = static_cast<uint32_t>(target::num_blocks());
    // This block has every num_blocks-th row; it lists those to be summed up, a part of its rows at a time.
    const uint32_t block_idx = static_cast<uint32_t>(target::block_idx());
    const uint32_t num_own = num_rows <= block_idx ? 0 : (num_rows - block_idx - 1) / num_blocks + 1;
    for (uint32_t first = 0; first < num_own; first += ReduceSiblingsShared::kMaxListed) {
      list_first_rows(first, num_own, block_idx, num_blocks);
      reduce_listed(row_sum);
    }
  }

 private:
  SWITCHYARD_DEVICE void list_first_rows(uint32_t first, uint32_t num_own, uint32_t block_idx,
                                         uint32_t num_blocks) const {
    target::sync_block();  // no warp needs the last list any more
    if (target::thread_idx() == 0) shared.num_listed = shared.num_taken = 0;
    target::sync_block();
    const uint32_t left = num_own - first;
    const uint32_t count = left < ReduceSiblingsShared::kMaxListed ? left : ReduceSiblingsShared::kMaxListed;
    for (uint32_t i = static_cast<uint32_t>(target::thread_idx()); i < count;
         i += static_cast<uint32_t>(target::num_threads())) {
      const uint32_t row = shared.arrived.row(shape, (first + i) * num_blocks + block_idx).row;
      const RowLink link = RowLink::unpack(target::ld(linked.links + row));
      if (link.is_first && link.next_row != RowLink::kNone)
        shared.first_rows[target::atomic_add_relaxed_block(&shared.num_listed, 1u)] = row;
    }
    target::sync_block();
  }

  // Warps take the rows of the list one by one; several share a row if there are few.
  SWITCHYARD_DEVICE void reduce_listed(RowSum<Rows>& row_sum) const {
    constexpr uint32_t kMaxWarpsPerRow = kEpKernelSizes.max_warps_per_row;
    const uint32_t num_listed = shared.num_listed, num_warps = static_cast<uint32_t>(target::num_warps());
    if (num_listed == 0) return;
    uint32_t warps_per_row = num_warps / num_listed;
    if (warps_per_row < 1) warps_per_row = 1;
    if (warps_per_row > kMaxWarpsPerRow) warps_per_row = kMaxWarpsPerRow;
    for (;;) {
      const uint32_t unit = take_unit();
      if (unit >= num_listed * warps_per_row) break;
      reduce(row_sum, shared.first_rows[unit % num_listed],
             static_cast<int>(unit / num_listed) * kWarpSize + target::lane_idx(),
             static_cast<int>(warps_per_row) * kWarpSize);
    }
  }
  SWITCHYARD_DEVICE uint32_t take_unit() const {
    const uint32_t taken =
        target::lane_idx() == 0 ? target::atomic_add_relaxed_block(&shared.num_taken, 1u) : 0;
    return target::shuffle(taken, 0);
  }

  SWITCHYARD_DEVICE void reduce(RowSum<Rows>& row_sum, uint32_t first_row, int worker_idx,
                                int num_workers) const {
    const SiblingRows siblings(linked.links, first_row);
    const int lane_idx = target::lane_idx();
    const uint32_t sibling = siblings.row(lane_idx == 0 ? 0 : lane_idx - 1);
    const uint32_t row = lane_idx == 0 ? first_row : sibling;
    const int last_lane = mutate<Fixed, LogicMutant::kSiblingLeftOut>(siblings.count, siblings.count - 1);
    TokenSource source{};
    if (lane_idx <= last_lane) source = {address_of(row), target::ld(params.row_weights + row)};
    const TokenSource again = mutate<Fixed, LogicMutant::kSiblingAddedTwice>(
        [] { return TokenSource{}; },
        [&] {
          return TokenSource{address_of(first_row), target::ld(params.row_weights + first_row)};
        });
    const int num_sources = shared.sources.gather(source, again);
    store_sum(row_sum, {shared.sources.of_warp[target::warp_idx()], num_sources, shape.hidden()},
              address_of(first_row), worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE std::byte* address_of(uint32_t row) const {
    return static_cast<std::byte*>(params.expert_rows) + uint64_t{row} * row_bytes;
  }
};

template <FixedShape Fixed, typename Rows>
SWITCHYARD_KERNEL void reduce_siblings_kernel(ReduceSiblingsParams params) {
  begin_kernel<Fixed>();
  ReduceSiblings<Fixed, Rows>{params}.run();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
