#include "host_memory.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>

#include "files/whole_number.hpp"

namespace switchyard::tools {

uint64_t host_memory_bytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
}

namespace {

// Reads the number behind a name in a file of lines "name number", or from a file that holds the number
// alone. A file or name that does not exist sets no limit.
uint64_t number_in(const std::string& path, const std::string& name = "") {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    uint64_t number = UINT64_MAX;
    if (name.empty() ? is_whole_number(word, number) : word == name && file >> number) return number;
    if (name.empty()) break;
  }
  return UINT64_MAX;
}

uint64_t less(uint64_t limit, uint64_t used) {
  return limit == UINT64_MAX ? limit : limit - std::min(limit, used);
}

uint64_t unused_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  const uint64_t num_pages = number_in("/proc/self/statm");
  return less(limit.rlim_cur, num_pages * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE)));
}

// The memory that a container may still allocate (cgroup v2). The kernel reclaims unused file pages when
// memory is needed.
uint64_t unused_of_cgroup() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::getline(file, line);
  if (line.rfind("0::", 0) != 0) return UINT64_MAX;
  const std::string folder = "/sys/fs/cgroup" + line.substr(3) + "/";
  const uint64_t used = number_in(folder + "memory.current"),
                 reclaimable = number_in(folder + "memory.stat", "inactive_file");
  return used == UINT64_MAX ? used : less(number_in(folder + "memory.max"), less(used, reclaimable));
}

}  // namespace

uint64_t available_memory_bytes() {
  const uint64_t available_kib = number_in("/proc/meminfo", "MemAvailable:");
  return std::min({available_kib == UINT64_MAX ? host_memory_bytes() : available_kib * 1024,
                   unused_address_space(), unused_of_cgroup()});
}

Status check_host_memory(double needed_bytes) {
  const double available = static_cast<double>(available_memory_bytes());
  if (needed_bytes <= available) return Status();
  return resource_exhausted("needs %.3f GiB of host memory, of which %.3f are available",
                            needed_bytes / (1 << 30), available / (1 << 30));
}

WorkloadBytes::WorkloadBytes(const Workload& workload) {
  const double num_tokens =
      std::accumulate(workload.tokens_per_rank.begin(), workload.tokens_per_rank.end(), 0.0);
  tokens = num_tokens * workload.hidden * sizeof(bf16);
  rows = tokens * workload.top_k;
  logits = num_tokens * workload.n_experts * sizeof(float);
}

}  // namespace switchyard::tools
