// The memory of this machine, and whether it suffices.
#pragma once

#include <cstdint>

#include "switchyard/status.hpp"
#include "workload.hpp"

namespace switchyard::tools {

uint64_t host_memory_bytes();
// The memory that this process may still allocate: what the machine has free, within the limits of the
// process and its container.
uint64_t available_memory_bytes();

// The system overcommits memory and kills a process that uses more than there is, so this is checked
// beforehand. Returns kResourceExhausted if the available memory does not suffice.
Status check_host_memory(double needed_bytes);

// The bytes of a workload's data: all tokens, and a row for every choice of every token.
struct WorkloadBytes {
  double tokens;
  double rows;
  double logits;

  explicit WorkloadBytes(const Workload& workload);
};

}  // namespace switchyard::tools
