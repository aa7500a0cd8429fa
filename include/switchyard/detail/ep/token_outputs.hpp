// The last part of every combine_wait: the tokens' outputs, made from rows that have arrived.
#pragma once

#include <type_traits>

#include "switchyard/detail/ep/epilogue.hpp"
#include "switchyard/detail/ep/pair_table.hpp"
#include "switchyard/detail/ep/row_sum.hpp"
#include "switchyard/detail/sync/trace_slice.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Called by all threads of the launch. `stages` is what RowSum asks for; `wait` has
// reduce(row_sum, token_idx, worker_idx, num_workers) and, for StoreUnreduced, store_unreduced().
template <typename Epilogue, typename Rows, typename CombineWait>
SWITCHYARD_DEVICE void make_token_outputs(CombineWait& wait, std::byte* stages) {
  const TraceSlice slice(wait.params.wait_context.trace, Phase::kCombineWait, TraceName::kReduce);
  RowSum<Rows> row_sum(stages);
  for_each_row(static_cast<uint32_t>(wait.params.num_tokens),
               [&](uint32_t token_idx, int worker_idx, int num_workers) {
                 if constexpr (std::is_same_v<Epilogue, StoreUnreduced>)
                   wait.store_unreduced(static_cast<int>(token_idx), worker_idx, num_workers);
                 else
                   wait.reduce(row_sum, static_cast<int>(token_idx), worker_idx, num_workers);
               });
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
