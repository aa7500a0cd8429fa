// The wire thread: the only thread of a process that calls SHMEM. Others leave their requests in one queue,
// which it works off in order; while there are none it lets the puts of other PEs arrive.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "switchyard/detail/transport/shmem_api.hpp"
#include "switchyard/status.hpp"
#include "transport/deadline.hpp"

namespace switchyard {

// Any thread may call it. One queue gives the order that target/wire.hpp promises: what happened before a
// call is in the queue before it, whichever threads made the calls.
class WireThread {
 public:
  // Starts the thread, and SHMEM in it. If SHMEM does not start by the deadline, the thread is left alone.
  static Result<std::unique_ptr<WireThread>> start(const ShmemApi& api, const ShmemRequirements& requirements,
                                                   const Deadline& deadline);
  // Ends the thread, but not SHMEM; a thread that is stuck in a call of SHMEM is left alone.
  ~WireThread();
  WireThread(const WireThread&) = delete;
  WireThread& operator=(const WireThread&) = delete;

  // A put reads its source when the thread gets to it, or later.
  void put(int pe, void* dst, const void* src, uint64_t bytes);
  void settle();
  void signal(int pe, uint64_t* cell, uint64_t value);

  // Calls `function` in the thread, behind everything that is in the queue, and waits for it; false: the
  // deadline has passed, and the call may still be made.
  bool call(std::function<void()> function, const Deadline& deadline);
  // Ends SHMEM. Collective; false: not all PEs have done so by the deadline. Only the destructor may follow.
  bool end_shmem(const Deadline& deadline);

 private:
  struct Shared;  // with the thread, which may outlive this object

  explicit WireThread(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  std::shared_ptr<Shared> shared_;
};

}  // namespace switchyard
