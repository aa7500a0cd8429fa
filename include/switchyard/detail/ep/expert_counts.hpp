// How many rows a rank has sent to each expert since the counts were cleared, for those who balance loads.
#pragma once

#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Called once per expert and step, by the thread that tells the expert's owner how many rows there are; the
// launches of a rank follow each other, so nobody else touches the count meanwhile.
template <FixedShape Fixed>
SWITCHYARD_DEVICE void add_to_expert_count(const DispatchStep& step, int expert_idx, uint32_t num_rows) {
  if (step.expert_counts == nullptr) return;
  int64_t* count = step.expert_counts + expert_idx;
  target::st(count, mutate<Fixed, LogicMutant::kExpertCountsOfOneStep>(target::ld(count), int64_t{0}) +
                        static_cast<int64_t>(num_rows));
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
