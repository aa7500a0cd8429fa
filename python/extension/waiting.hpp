// Calls that wait. The GIL is released meanwhile. On Python's main thread, the only one that signals
// interrupt, a helper thread makes the call, and the main thread looks for signals every few milliseconds:
// Ctrl-C raises KeyboardInterrupt at once. The helper then goes on until the call's deadline, and is joined
// by a later call or at the interpreter's end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "errors.hpp"
#include "switchyard/detail/base/fork.hpp"

namespace switchyard::python {

// Threads do not survive a fork, so what was made before is of no use in the child, not even to be destroyed.
using switchyard::fork_generation;

template <typename T>
struct LeakedInFork {
  uint64_t generation = fork_generation();
  void operator()(T* object) const {
    if (generation == fork_generation()) delete object;
  }
};
// Owns an object in the process that made it; in a fork of that process the object is leaked.
template <typename T>
using Owned = std::unique_ptr<T, LeakedInFork<T>>;

// Releases the GIL for a scope. A thread that wanted it back after the interpreter has ended would be unwound
// by Python, through frames of C++ that cannot be: it is stopped instead, and ends with the process.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

// At the interpreter's end, with the GIL: from now on no other thread gets it back from a WithoutGil.
void stop_other_threads();

// Lets the work of a helper call Python functions on the thread that waits for it: that of the caller, as MPI
// and process groups want it.
class CallerThread {
 public:
  virtual ~CallerThread() = default;
  // Runs `function` with the GIL. Returns false if the caller no longer waits.
  virtual bool run(const std::function<void()>& function) = 0;
};

// Runs `work` without the GIL and returns its status. If a signal handler raises, so does this, after
// `on_interrupt`; `work`, and what it owns, lives on until it returns, and is destroyed with the GIL held.
Status wait_for(std::function<Status(CallerThread&)> work, const std::function<void()>& on_interrupt = {});

// Joins helpers whose callers were interrupted: those that have ended, or all.
void reap_helpers(bool wait_for_all);

void install_fork_handler();

}  // namespace switchyard::python
