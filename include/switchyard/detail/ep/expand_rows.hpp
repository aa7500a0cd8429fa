// Rows per rank (RowLayout::kPerRank) on their way to the experts and back, for callers without kernels of
// their own for that: place_choices finds where the rows of each local expert lie, expand_rows copies each
// row to its experts, and sum_choices adds up what they made of it, weighted, in fp32, in the order of the
// choices, and rounds once.
#pragma once

#include "switchyard/detail/ep/expand_rows_params.hpp"
#include "switchyard/detail/ep/pair_table.hpp"
#include "switchyard/detail/ep/row_sum.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The rows of a rank: those of a shared expert, and those that have choices.
struct RowsToExpand {
  uint32_t num_shared;
  uint32_t first;
  uint32_t count;

  SWITCHYARD_DEVICE explicit RowsToExpand(const ExpandedRows& expanded)
      : num_shared(expanded.num_shared_groups > 0 ? target::ld(expanded.row_counts) : 0),
        first(target::ld(expanded.row_offsets + expanded.num_shared_groups)),
        count(target::ld(expanded.row_counts + expanded.num_shared_groups)) {}
};

struct PlaceChoicesShared {
  uint32_t first_row[kMaxExperts + 1];  // [local expert]
};

// One block; a warp has an expert at a time. An expert's rows are ordered as the choices are.
struct PlaceChoices {
  const ExpandedRows& expanded;
  const RowsToExpand rows{expanded};
  PlaceChoicesShared& shared = target::shared_storage<PlaceChoicesShared>();

  SWITCHYARD_DEVICE void run() const {
    for_each_expert([&](int expert_idx) {
      const uint32_t count = visit_choices(expert_idx, [](uint64_t, uint32_t) {});
      if (target::lane_idx() == 0) shared.first_row[expert_idx] = count;
    });
    target::sync_block();
    if (target::warp_idx() == 0) warp_exclusive_scan(shared.first_row, expanded.n_local_experts);
    target::sync_block();
    publish();
    for_each_expert([&](int expert_idx) {
      const uint32_t first = rows.num_shared + shared.first_row[expert_idx];
      visit_choices(expert_idx, [&](uint64_t choice_idx, uint32_t row_in_expert) {
        target::st(expanded.row_of_choice + choice_idx, first + row_in_expert);
      });
    });
  }

 private:
  template <typename Work>
  SWITCHYARD_DEVICE void for_each_expert(Work work) const {
    for (int expert_idx = target::warp_idx(); expert_idx < expanded.n_local_experts;
         expert_idx += target::num_warps())
      work(expert_idx);
  }
  // Calls visit(choice_idx, number among the expert's) for every choice of the expert; returns how many.
  template <typename Visit>
  SWITCHYARD_DEVICE uint32_t visit_choices(int expert_idx, Visit visit) const {
    const uint64_t top_k = static_cast<uint64_t>(expanded.top_k);
    const uint64_t begin = rows.first * top_k, end = begin + rows.count * top_k;
    uint32_t num_visited = 0;
    for (uint64_t first = begin; first < end; first += kWarpSize) {
      const uint64_t choice_idx = first + static_cast<uint64_t>(target::lane_idx());
      const bool is_chosen = choice_idx < end && target::ld(expanded.row_experts + choice_idx) == expert_idx;
      const uint32_t chosen = target::ballot(is_chosen);
      if (is_chosen)
        visit(choice_idx, num_visited + target::popcount(chosen & ((1u << target::lane_idx()) - 1)));
      num_visited += target::popcount(chosen);
    }
    return num_visited;
  }
  SWITCHYARD_DEVICE void publish() const {
    const int num_shared_groups = expanded.num_shared_groups;
    if (num_shared_groups > 0 && target::thread_idx() == 0) {
      target::st(expanded.group_offsets, 0u);
      target::st(expanded.group_counts, rows.num_shared);
    }
    for (int i = target::thread_idx(); i <= expanded.n_local_experts; i += target::num_threads()) {
      target::st(expanded.group_offsets + num_shared_groups + i, rows.num_shared + shared.first_row[i]);
      if (i < expanded.n_local_experts)
        target::st(expanded.group_counts + num_shared_groups + i,
                   shared.first_row[i + 1] - shared.first_row[i]);
    }
  }
};

struct ExpandRows {
  const ExpandRowsParams& params;
  const ExpandedRows& expanded = params.expanded;
  const RowsToExpand rows{expanded};

  SWITCHYARD_DEVICE void run() const {
    for_each_row(rows.num_shared, [&](uint32_t row, int worker_idx, int num_workers) {
      copy(row, row, worker_idx, num_workers);
    });
    for_each_row(rows.count, [&](uint32_t i, int worker_idx, int num_workers) {
      const uint64_t row = rows.first + i;
      for (int k = 0; k < expanded.top_k; ++k) {
        const uint64_t choice_idx = row * static_cast<uint64_t>(expanded.top_k) + static_cast<uint64_t>(k);
        if (target::ld(expanded.row_experts + choice_idx) >= 0)
          copy(row, target::ld(expanded.row_of_choice + choice_idx), worker_idx, num_workers);
      }
    });
  }

 private:
  SWITCHYARD_DEVICE void copy(uint64_t from, uint64_t to, int worker_idx, int num_workers) const {
    const uint64_t hidden = static_cast<uint64_t>(expanded.hidden);
    target::copy_row(params.expert_rows + to * hidden, params.rows + from * hidden,
                     BF16CombineRows::row_bytes(expanded.hidden), worker_idx, num_workers);
  }
};

// The sum of a row that has no choices is zero.
struct SumChoices {
  const SumChoicesParams& params;
  const ExpandedRows& expanded = params.expanded;
  const RowsToExpand rows{expanded};
  TokenSources& sources = target::shared_storage<TokenSources>();

  SWITCHYARD_DEVICE void run() const {
    RowSum<BF16CombineRows> row_sum(nullptr);
    for_each_row(rows.num_shared, [&](uint32_t row, int worker_idx, int num_workers) {
      target::copy_row(output(row), row_of(row), BF16CombineRows::row_bytes(expanded.hidden), worker_idx,
                       num_workers);
    });
    for_each_row(rows.count, [&](uint32_t i, int worker_idx, int num_workers) {
      const uint64_t row = rows.first + i;
      const int num_sources = sources.gather(source_of_lane(row), {});
      row_sum.run({sources.of_warp[target::warp_idx()], num_sources, expanded.hidden}, worker_idx,
                  num_workers, [&](int column, const float(&sums)[kColumnsPerThread]) {
                    target::st_16(output(row) + column, pack_bf16(sums));
                  });
    });
  }

 private:
  SWITCHYARD_DEVICE TokenSource source_of_lane(uint64_t row) const {
    const int k = target::lane_idx();
    const uint64_t choice_idx = row * static_cast<uint64_t>(expanded.top_k) + static_cast<uint64_t>(k);
    if (k >= expanded.top_k || target::ld(expanded.row_experts + choice_idx) < 0) return {};
    return {reinterpret_cast<const std::byte*>(row_of(target::ld(expanded.row_of_choice + choice_idx))),
            target::ld(expanded.row_weights + choice_idx)};
  }
  SWITCHYARD_DEVICE const bf16* row_of(uint64_t row) const {
    return params.expert_rows + row * static_cast<uint64_t>(expanded.hidden);
  }
  SWITCHYARD_DEVICE bf16* output(uint64_t row) const {
    return params.output + row * static_cast<uint64_t>(expanded.hidden);
  }
};

SWITCHYARD_KERNEL void place_choices_kernel(ExpandedRows params) { PlaceChoices{params}.run(); }
SWITCHYARD_KERNEL void expand_rows_kernel(ExpandRowsParams params) { ExpandRows{params}.run(); }
SWITCHYARD_KERNEL void sum_choices_kernel(SumChoicesParams params) { SumChoices{params}.run(); }

}  // namespace switchyard::inline SWITCHYARD_TARGET
