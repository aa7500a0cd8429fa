#include "switchyard/detail/base/fork.hpp"

#include <pthread.h>

#include <atomic>

namespace switchyard {
namespace {

std::atomic<uint64_t> g_num_forks = 0;
[[maybe_unused]] const int g_registered =
    pthread_atfork(nullptr, nullptr, [] { g_num_forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint64_t fork_generation() { return g_num_forks.load(std::memory_order_relaxed); }

Status ProcessMark::check(const char* call) const {
  if (!is_of_parent()) return Status();
  return failed_precondition(
      "%s: this process is a fork of the one that made the world, and has none of its threads; make or "
      "join a world here",
      call);
}

}  // namespace switchyard
