#include "switchyard/detail/target/launch_turn.hpp"

#include <atomic>
#include <chrono>

namespace switchyard {
namespace {

constexpr std::chrono::milliseconds kPatience{2};
std::timed_mutex turn;
std::atomic<bool> is_required = false;

}  // namespace

LaunchTurn::LaunchTurn() : lock_(turn, std::defer_lock) {
  if (is_required.load(std::memory_order_relaxed)) (void)lock_.try_lock_for(kPatience);
}

void LaunchTurn::require() { is_required.store(true, std::memory_order_relaxed); }

}  // namespace switchyard
