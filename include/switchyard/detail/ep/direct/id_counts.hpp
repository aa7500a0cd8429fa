// How many of a rank's ids name each expert: every block counts all of them, and those of tokens before its
// own separately.
#pragma once

#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The ids that a thread has in flight at once, by fours; padding where there is no whole four.
struct IdBatch {
  static constexpr int kFours = 4;
  Vec16 fours[kFours];

  SWITCHYARD_DEVICE static int first_of_four(int batch_idx, int i) {
    return 4 * ((batch_idx * kFours + i) * target::num_threads() + target::thread_idx());
  }
  SWITCHYARD_DEVICE static IdBatch load(const int32_t* ids, int num_ids, int batch_idx) {
    IdBatch batch;
    for (int i = 0; i < kFours; ++i) {
      const int id_idx = first_of_four(batch_idx, i);
      batch.fours[i] = id_idx + 4 <= num_ids ? target::ld_16(ids + id_idx)
                                             : Vec16{{UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    }
    return batch;
  }
};

template <FixedShape Fixed>
struct IdCounts {
  const ShapeOf<Fixed>& shape;
  const int32_t* ids;
  int num_ids;
  int first_id;             // of this block's tokens
  uint32_t* num_before;     // [expert], the result: ids before first_id
  uint32_t* num_from_here;  // [expert], the result: the other ids

  // Counts all ids; `batch` is the first batch. Returns the thread's largest id as unsigned, so that invalid
  // negative ids compare largest and -1 smallest: if the result is an id, all of them are.
  SWITCHYARD_DEVICE int count(IdBatch batch) const {
    uint32_t largest = 0;  // id + 1
    SWITCHYARD_ROLLED
    for (int batch_idx = 0; IdBatch::first_of_four(batch_idx, 0) < num_ids; ++batch_idx) {
      const IdBatch next = IdBatch::load(ids, num_ids, batch_idx + 1);
      count_batch(batch, batch_idx, largest);
      batch = next;
    }
    // The ids after the last whole four.
    const int id_idx = num_ids / 4 * 4 + target::thread_idx();
    if (id_idx < num_ids) {
      note_id(static_cast<uint32_t>(ids[id_idx]), largest);
      count_expert(shape.expert_of_id(ids[id_idx]), id_idx);
    }
    return static_cast<int>(largest - 1);
  }
  SWITCHYARD_DEVICE void count_batch(const IdBatch& batch, int batch_idx, uint32_t& largest) const {
    int experts[4 * IdBatch::kFours];
    for (int i = 0; i < 4 * IdBatch::kFours; ++i) {
      const uint32_t id = batch.fours[i / 4].words[i % 4];
      note_id(id, largest);
      experts[i] = static_cast<int>(id);
    }
    shape.find_experts(experts);
    for (int i = 0; i < 4 * IdBatch::kFours; ++i)
      count_expert(experts[i], IdBatch::first_of_four(batch_idx, i / 4) + i % 4);
  }
  SWITCHYARD_DEVICE static void note_id(uint32_t id, uint32_t& largest) {
    if (id + 1 > largest) largest = id + 1;
  }
  SWITCHYARD_DEVICE void count_expert(int expert_idx, int id_idx) const {
    const bool is_before = id_idx < mutate<Fixed, LogicMutant::kAssignedWithoutBlocksBefore>(first_id, 0);
    if (expert_idx >= 0)
      target::atomic_add_relaxed_block((is_before ? num_before : num_from_here) + expert_idx, 1u);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
