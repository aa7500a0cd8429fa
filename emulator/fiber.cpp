#include "fiber.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
// This file is compiled without ThreadSanitizer's instrumentation (CMake defines the word instead): it
// switches between TSan's threads, and its own bookkeeping is shared by all fibers of one OS thread without a
// race.
#if defined(SWITCHYARD_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace switchyard::emulator {
namespace {

constexpr size_t kStacksPerSlab = 64;
constexpr uint64_t kCanary = 0x57a11ed5eed0c0deull;
constexpr size_t kCanaryWords = 8;

}  // namespace

StackPool::StackPool(size_t stack_bytes) : stack_bytes_(stack_bytes) {}

StackPool::~StackPool() {
  for (std::byte* slab : slabs_) munmap(slab, kStacksPerSlab * stack_bytes_);
}

Stack StackPool::take() {
  if (free_.empty()) {
    void* slab = mmap(nullptr, kStacksPerSlab * stack_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED) throw std::bad_alloc();
    slabs_.push_back(static_cast<std::byte*>(slab));
    for (size_t i = 0; i < kStacksPerSlab; ++i)
      free_.push_back(Stack{slabs_.back() + i * stack_bytes_, stack_bytes_});
  }
  const Stack stack = free_.back();
  free_.pop_back();
  return stack;
}

void StackPool::give_back(Stack stack) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack.low, stack.bytes);
#endif
  free_.push_back(stack);
}

void Fiber::prepare(Stack stack, void (*body)(void*), void* argument) {
  stack_ = stack;
  body_ = body;
  argument_ = argument;
  finished_ = false;
  for (size_t i = 0; i < kCanaryWords; ++i)
    std::memcpy(stack.low + i * sizeof(kCanary), &kCanary, sizeof(kCanary));
  context_ = boost::context::detail::make_fcontext(stack.low + stack.bytes, stack.bytes, &Fiber::enter);
#if defined(SWITCHYARD_TSAN)
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
}

bool Fiber::overflowed() const {
  for (size_t i = 0; i < kCanaryWords; ++i)
    if (std::memcmp(stack_.low + i * sizeof(kCanary), &kCanary, sizeof(kCanary)) != 0) return true;
  return false;
}

__attribute__((noinline)) void Fiber::resume() {
#if defined(__SANITIZE_ADDRESS__)
  void* scheduler_fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, stack_.low, stack_.bytes);
#endif
#if defined(SWITCHYARD_TSAN)
  tsan_scheduler_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
  context_ = boost::context::detail::jump_fcontext(context_, this).fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
}

__attribute__((noinline)) void Fiber::suspend() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(finished_ ? nullptr : &asan_fake_stack_, scheduler_stack_low_,
                                 scheduler_stack_bytes_);
#endif
#if defined(SWITCHYARD_TSAN)
  __tsan_switch_to_fiber(tsan_scheduler_, __tsan_switch_to_fiber_no_sync);
#endif
  scheduler_context_ = boost::context::detail::jump_fcontext(scheduler_context_, nullptr).fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(asan_fake_stack_, &scheduler_stack_low_, &scheduler_stack_bytes_);
#endif
}

void Fiber::enter(boost::context::detail::transfer_t from) {
  Fiber* self = static_cast<Fiber*>(from.data);
  self->scheduler_context_ = from.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->scheduler_stack_low_, &self->scheduler_stack_bytes_);
#endif
  self->body_(self->argument_);
  self->finished_ = true;
  self->suspend();
  __builtin_unreachable();
}

Stack Fiber::release() {
#if defined(SWITCHYARD_TSAN)
  __tsan_destroy_fiber(tsan_fiber_);
#endif
  return stack_;
}

#if defined(SWITCHYARD_TSAN)
void annotate_release(void* object) { __tsan_release(object); }
void annotate_acquire(void* object) { __tsan_acquire(object); }
#else
void annotate_release(void*) {}
void annotate_acquire(void*) {}
#endif

}  // namespace switchyard::emulator
