// The kernel in front of a combine that is reduced at the owner (reduce_at_owner): it sums up what the
// experts of this rank have made of a token, weighted, in fp32, in the order of k, and rounds once. The sum
// takes the place of the first of these rows, which the token's rank pulls. A row without siblings stays as
// it is.
#pragma once

#include "switchyard/detail/ep/combine_rows.hpp"
#include "switchyard/detail/ep/sibling_rows.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed>
struct ReduceSiblings {
  const ReduceSiblingsParams& params;
  const LinkedRows& linked = params.linked;
  const ShapeOf<Fixed> shape{linked.shape};
  const uint32_t row_bytes = BF16CombineRows::row_bytes(shape.hidden());
  ArrivedRows& arrived = target::shared_storage<ArrivedRows>();

  SWITCHYARD_DEVICE explicit ReduceSiblings(const ReduceSiblingsParams& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() const {
    const bool has_rows = find_linked_rows(shape, linked, arrived, [&](int rank) {
      return mutate<Fixed, LogicMutant::kSumsOfOwnRankOnly>(true, rank == linked.my_rank);
    });
    if (!has_rows) return;
    for_each_row(arrived.total(shape), [&](uint32_t item_idx, int worker_idx, int num_workers) {
      reduce(arrived.row(shape, item_idx).row, worker_idx, num_workers);
    });
  }

 private:
  // A row of the sum, and its weight.
  struct Source {
    uint32_t row;
    float weight;

    // That of lane i.
    SWITCHYARD_DEVICE Source of_lane(int i) const {
      return {target::shuffle(row, i), target::shuffle(weight, i)};
    }
  };

  // Of this lane: the first row in lane 0, and in lane i the sibling behind that of lane i - 1.
  SWITCHYARD_DEVICE Source source_of_lane(uint32_t first_row, const SiblingRows& siblings) const {
    const int lane_idx = target::lane_idx();
    const uint32_t sibling = siblings.row(lane_idx == 0 ? 0 : lane_idx - 1);
    const uint32_t row = lane_idx == 0 ? first_row : sibling;
    return {row, lane_idx <= siblings.count ? target::ld(params.row_weights + row) : 0.0f};
  }

  // Threads that share a row have columns of their own, which each has loaded from all siblings when it
  // stores them. Loads of two rows are in flight at once: there are at least two.
  SWITCHYARD_DEVICE void reduce(uint32_t first_row, int worker_idx, int num_workers) const {
    constexpr int kVectors = 2, kRows = 2;
    const SiblingRows siblings(linked.links, first_row);
    if (siblings.count == 0) return;
    const int num_rows = siblings.count + 1;
    const int num_added = mutate<Fixed, LogicMutant::kSiblingAddedTwice>(
        mutate<Fixed, LogicMutant::kSiblingLeftOut>(num_rows, num_rows - 1), num_rows + 1);
    const Source sources = source_of_lane(first_row, siblings);
    const uint32_t stride = static_cast<uint32_t>(num_workers) * static_cast<uint32_t>(sizeof(Vec16));
    const uint32_t lane_offset =
        static_cast<uint32_t>(target::lane_idx()) * static_cast<uint32_t>(sizeof(Vec16));
    for (uint32_t first =
             static_cast<uint32_t>(worker_idx) * static_cast<uint32_t>(sizeof(Vec16)) - lane_offset;
         first < row_bytes; first += kVectors * stride) {
      const auto offset_of = [&](int i) { return first + lane_offset + static_cast<uint32_t>(i) * stride; };
      float sums[kVectors][kColumnsPerThread] = {};
      for (int row_idx = 0; row_idx < num_added; row_idx += kRows) {
        Vec16 loaded[kRows][kVectors] = {};
        float weights[kRows];
        SWITCHYARD_UNROLL
        for (int j = 0; j < kRows; ++j) {
          const Source source = sources.of_lane(row_idx + j < num_rows ? row_idx + j : 0);
          const bool is_added = row_idx + j < num_added;
          weights[j] = source.weight;
          SWITCHYARD_UNROLL
          for (int i = 0; i < kVectors; ++i)
            if (is_added && offset_of(i) < row_bytes)
              loaded[j][i] = target::ld_16(address_of(source.row) + offset_of(i));
        }
        SWITCHYARD_UNROLL
        for (int j = 0; j < kRows; ++j) {
          if (row_idx + j >= num_added) break;
          SWITCHYARD_UNROLL
          for (int i = 0; i < kVectors; ++i) accumulate(sums[i], loaded[j][i], weights[j]);
        }
      }
      SWITCHYARD_UNROLL
      for (int i = 0; i < kVectors; ++i)
        if (offset_of(i) < row_bytes) target::st_16(address_of(first_row) + offset_of(i), pack_bf16(sums[i]));
    }
  }
  SWITCHYARD_DEVICE std::byte* address_of(uint32_t row) const {
    return static_cast<std::byte*>(params.expert_rows) + uint64_t{row} * row_bytes;
  }
};

template <FixedShape Fixed>
SWITCHYARD_KERNEL void reduce_siblings_kernel(ReduceSiblingsParams params) {
  begin_kernel<Fixed>();
  ReduceSiblings<Fixed>{params}.run();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
