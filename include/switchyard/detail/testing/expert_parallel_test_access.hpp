// What tests and simulations may do to an ExpertParallel that an application may not.
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/status.hpp"

namespace switchyard {

class ExpertParallel;

// What a flight has a copy of its own of, on every rank.
enum class FlightMemory { kDispatchSlots, kDispatchCells, kCombineSlots, kCombineCells };

struct ExpertParallelTestAccess {
  // Overwrites what earlier steps left in all receive buffers. Between steps only.
  static Status poison_receive_buffers(ExpertParallel& ep, uint8_t value);
  // A mutant: from now on the kernels of a flight use the slots, or the cells, of another. Slots of the
  // direct protocol are rows.
  static void use_memory_of(ExpertParallel& flight, const ExpertParallel& other, FlightMemory memory);
  // Overwrites the table by which a rank's kernels find the seat of each expert.
  static Status overwrite_seat_table(ExpertParallel& ep, int rank, const std::vector<int32_t>& seats);
};

}  // namespace switchyard
