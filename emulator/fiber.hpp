// One fiber: a stack and a context to resume. Boost.Context switches; this file tells the sanitizers. Below
// every stack is a guard that no code may access, so that an overflow is detected where it happens and harms
// no other stack.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <mutex>

namespace switchyard::emulator {

class Fiber {
 public:
  Fiber();  // throws std::bad_alloc if there is no memory for a stack
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  static size_t stack_bytes();

  // `body(argument)` runs on the next resume().
  void start(void (*body)(void*), void* argument);
  // Runs the fiber until it suspends or its body returns. Called by the scheduler, on an OS thread for which
  // watch_for_overflows() was called.
  void resume();
  // Returns to the scheduler. Called by the fiber.
  void suspend();

  // Tells ThreadSanitizer that everything the suspended fiber did happened before what the caller does next:
  // the fiber will never resume.
  void order_before_caller();

  bool finished() const { return finished_; }
  // Returns whether the body accessed the guard below its stack, and was abandoned there.
  bool overflowed() const { return overflowed_; }

 private:
  friend class FiberPool;
  friend struct OverflowHandler;

  static void enter(boost::context::detail::transfer_t from);
  static void leave_overflowed(Fiber* self);
  void renew();  // makes the fiber ready for a new body, however the last one ended
  std::byte* stack_low() const;
  std::byte* stack_top() const;

  std::byte* mapping_ = nullptr;  // guard, stack, and slack so that stacks begin at different lines
  size_t colour_bytes_ = 0;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  boost::context::detail::fcontext_t context_ = nullptr;
  boost::context::detail::fcontext_t scheduler_context_ = nullptr;
  bool finished_ = true;
  bool overflowed_ = false;
  Fiber* next_idle_ = nullptr;  // in FiberPool
  // What the sanitizers need on each switch; unused in plain builds.
  void* tsan_fiber_ = nullptr;
  void* tsan_scheduler_ = nullptr;
  void* asan_fake_stack_ = nullptr;
  const void* scheduler_stack_low_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
};

// The idle fibers of the process. Making a fiber costs system calls and page faults, and most of a
// millisecond under ThreadSanitizer, for which it is a thread.
class FiberPool {
 public:
  static FiberPool& of_process();

  Fiber& take();  // throws std::bad_alloc
  // A body that has not returned is abandoned.
  void give_back(Fiber& fiber);

 private:
  std::mutex mutex_;
  Fiber* first_idle_ = nullptr;  // the one that ran last, whose stack is still in the caches
  size_t num_idle_ = 0;
};

// Called once per OS thread that resumes fibers.
void watch_for_overflows();

// Tells ThreadSanitizer that everything before a release of `object` happened before an acquire of it.
void annotate_release(void* object);
void annotate_acquire(void* object);

}  // namespace switchyard::emulator
