// One fiber: a stack and a place to go on from. Boost.Context does the switch; this file tells the
// sanitizers.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <vector>

namespace switchyard::emulator {

struct Stack {
  std::byte* low = nullptr;  // lowest address; the stack grows down towards it
  size_t bytes = 0;
};

// Hands out stacks and takes them back. Not thread-safe: one pool per executor.
class StackPool {
 public:
  explicit StackPool(size_t stack_bytes);
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  Stack take();
  void give_back(Stack stack);

 private:
  size_t stack_bytes_;
  std::vector<Stack> free_;
  std::vector<std::byte*> slabs_;
};

class Fiber {
 public:
  // `body(argument)` runs on the first resume().
  void prepare(Stack stack, void (*body)(void*), void* argument);
  // Runs the fiber until it suspends or its body returns. Called by the scheduler.
  void resume();
  // Back to the scheduler. Called by the fiber.
  void suspend();
  // Ends the fiber, finished or not, and returns its stack. An unfinished body is abandoned where it stands.
  Stack release();

  bool finished() const { return finished_; }
  bool overflowed() const;

 private:
  static void enter(boost::context::detail::transfer_t from);

  Stack stack_;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  boost::context::detail::fcontext_t context_ = nullptr;
  boost::context::detail::fcontext_t scheduler_context_ = nullptr;
  bool finished_ = false;
  // What the sanitizers want to know on each switch; unused in plain builds.
  void* tsan_fiber_ = nullptr;
  void* tsan_scheduler_ = nullptr;
  void* asan_fake_stack_ = nullptr;
  const void* scheduler_stack_low_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
};

// Tells ThreadSanitizer that everything before a release of `object` happened before an acquire of it.
void annotate_release(void* object);
void annotate_acquire(void* object);

}  // namespace switchyard::emulator
