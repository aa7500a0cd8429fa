// RowCompletion: for expert kernels of your own whose rows combine takes while they still run. A combine that
// is told so (ExpertOutputs) waits for each expert that its tokens went to, instead of for the launch in
// front of it. ExpertParallel::row_completion() returns what the kernel needs.
#pragma once

#include "switchyard/detail/ep/direct/step_signal.hpp"
#include "switchyard/detail/ep/params.hpp"

namespace switchyard {

// Pointers into the ranks' memory, passed to a kernel by value.
//
// Ownership: the ExpertParallel owns what the pointers point to. They stay valid until it is destroyed or
// reset with other ranks, so a graph may hold them.
// Stream: the kernel runs behind the step's dispatch, or dispatch_wait, on the same stream. It waits for no
// peer, so its blocks are not counted.
// Errors: a group that is not completed is a fault of the ranks that wait for it: they name its rank and
// expert at their deadline.
struct RowCompletion {
  RankPointers<uint64_t> cells;  // OutputCellLayout of every rank
  const int32_t* num_steps;      // how many dispatches have ended: the number of the current step
  uint32_t* num_parts_done;      // [num_groups]; 0 whenever no such kernel runs
  int32_t my_rank;
  int32_t n_ranks;
  int32_t n_experts;        // of all ranks: seats
  int32_t n_local_experts;  // the last groups of the rank; one in front of them is the shared expert
  int32_t num_groups;
  Scope signal_scope;  // of releases to peers: wide enough to reach them
};

}  // namespace switchyard

namespace switchyard::inline SWITCHYARD_TARGET {

// Called by a whole warp when its block has written a part of a group's rows, behind a barrier with the
// threads that wrote it; or, for a warp alone, behind a sync_warp. Whoever completes the last of the group's
// num_parts parts tells all ranks. A group without rows has no parts.
SWITCHYARD_DEVICE void complete_part(const RowCompletion& completion, uint32_t group_idx,
                                     uint32_t num_parts) {
  uint32_t num_before = 0;
  if (target::lane_idx() == 0) {
    // acq_rel MM-33: the part; pairs with the same increment by whoever completes the last one, which also
    // wraps the count to 0
    num_before = target::atomic_inc_wrap_acq_rel_device(completion.num_parts_done + group_idx, num_parts - 1);
  }
  if (target::shuffle(num_before, 0) != num_parts - 1) return;
  target::sync_warp();  // lane 0 has acquired the other parts
  const uint32_t step = static_cast<uint32_t>(target::ld(completion.num_steps));
  const OutputCellLayout layout{completion.n_ranks, completion.n_experts};
  const int num_in_front = completion.num_groups - completion.n_local_experts;
  const int local_idx = static_cast<int>(group_idx) - num_in_front;
  // What the shared expert made of this rank's tokens is this rank's alone.
  const int first_rank = local_idx < 0 ? completion.my_rank : 0,
            end_rank = local_idx < 0 ? completion.my_rank + 1 : completion.n_ranks;
  SWITCHYARD_ROLLED
  for (int rank = first_rank + target::lane_idx(); rank < end_rank; rank += kWarpSize) {
    uint64_t* cells = completion.cells.of_rank[rank];
    uint64_t* cell = local_idx < 0
                         ? layout.shared_expert(cells)
                         : layout.expert(cells, completion.my_rank * completion.n_local_experts + local_idx);
    // release MM-34: all parts of the group's rows; pairs with the acquire in the rank's combine
    PeerSignal{completion.signal_scope, cell}.publish(StepCell{step, 0}.pack());
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
