#include "host_memory.hpp"

#include <unistd.h>

#include <numeric>

namespace switchyard::tools {

uint64_t host_memory_bytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
}

Status check_host_memory(double needed_bytes) {
  const double present = static_cast<double>(host_memory_bytes());
  if (needed_bytes <= 0.8 * present) return Status();
  return resource_exhausted("needs %.1f GiB of host memory, of which there are %.1f",
                            needed_bytes / (1 << 30), present / (1 << 30));
}

WorkloadBytes::WorkloadBytes(const Workload& workload) {
  const double num_tokens =
      std::accumulate(workload.tokens_per_rank.begin(), workload.tokens_per_rank.end(), 0.0);
  tokens = num_tokens * workload.hidden * sizeof(bf16);
  rows = tokens * workload.top_k;
  logits = num_tokens * workload.n_experts * sizeof(float);
}

}  // namespace switchyard::tools
