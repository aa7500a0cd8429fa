// Whose turn it is to launch. If threads of one process launch on one GPU at the same time, a kernel may stay
// behind another stream's, although there are hardware queues for both; if it is a peer's that waits for it,
// neither ends (docs/architecture.md, "Residency and queues"). So where ranks of a process share a device,
// one thread launches at a time.
#pragma once

#include <mutex>

namespace switchyard {

class LaunchTurn {
 public:
  // Waits for the turn, but not for ever: a launch whose queue is full waits for kernels, which may wait for
  // the launch of another thread.
  LaunchTurn();
  LaunchTurn(const LaunchTurn&) = delete;
  LaunchTurn& operator=(const LaunchTurn&) = delete;

  // From now on threads of this process take turns.
  static void require();

 private:
  std::unique_lock<std::timed_mutex> lock_;
};

}  // namespace switchyard
