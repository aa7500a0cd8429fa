// The memory of this machine, and whether it suffices.
#pragma once

#include <cstdint>

#include "switchyard/status.hpp"
#include "workload.hpp"

namespace switchyard::tools {

uint64_t host_memory_bytes();
// That this process may still take: what the machine has free, within the limits of the process and its
// container.
uint64_t available_memory_bytes();

// Memory of a process is promised whether it is there or not, and who touches more than there is gets killed:
// it has to be asked for beforehand. kResourceExhausted if what is available would not do.
Status check_host_memory(double needed_bytes);

// What a workload's data take: all tokens, and a row for every choice of every token.
struct WorkloadBytes {
  double tokens;
  double rows;
  double logits;

  explicit WorkloadBytes(const Workload& workload);
};

}  // namespace switchyard::tools
