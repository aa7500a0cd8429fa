#include "fiber.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

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

// Sanitizers and unoptimised builds have larger frames.
#if defined(__SANITIZE_ADDRESS__) || defined(SWITCHYARD_TSAN) || !defined(__OPTIMIZE__)
constexpr size_t kStackBytes = 256 * 1024;
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif
// One page would do for code compiled with -fstack-clash-protection, which accesses every page of a large
// frame in order; the rest is for frames of other code.
constexpr size_t kGuardBytes = 64 * 1024;
// Stacks begin at different cache lines: at the same offset of a page, all of them would share a few sets of
// the cache.
constexpr size_t kColourBytes = 4096;
constexpr size_t kColourStep = 11 * 64;
constexpr size_t kMappingBytes = kGuardBytes + kStackBytes + kColourBytes;
constexpr size_t kMaxIdleFibers = 16384;

#if !defined(MADV_GUARD_INSTALL)
constexpr int MADV_GUARD_INSTALL = 102;  // Linux 6.13
#endif

// This guard needs no mapping of its own; the kernel limits a process to 65530 mappings by default.
bool guard(std::byte* memory, size_t bytes) {
  return madvise(memory, bytes, MADV_GUARD_INSTALL) == 0 || mprotect(memory, bytes, PROT_NONE) == 0;
}

__thread Fiber* running_fiber = nullptr;

}  // namespace

// Abandons the running fiber if it accessed the guard below its stack. Any other fault goes to the handler
// that was installed before.
struct OverflowHandler {
  static inline struct sigaction previous;

  static void install() {
    struct sigaction action = {};
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &previous);
  }

  static void on_fault(int signal, siginfo_t* info, void* context) {
    Fiber* fiber = running_fiber;
    const std::byte* address = static_cast<const std::byte*>(info->si_addr);
    if (fiber != nullptr && address >= fiber->mapping_ && address < fiber->stack_low() &&
        go_on_in(*static_cast<ucontext_t*>(context), *fiber))
      return;
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
      previous.sa_sigaction(signal, info, context);
    } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
      sigaction(SIGSEGV, &previous, nullptr);  // the access is repeated, and fails once more
      if (info->si_code <= 0) raise(signal);   // somebody has sent it: there is none
    } else {
      previous.sa_handler(signal);
    }
  }

  // The interrupted fiber continues in leave_overflowed(), at the top of its stack, whose contents are
  // abandoned.
  static bool go_on_in(ucontext_t& context, Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(fiber.stack_low(), kStackBytes + kColourBytes);
#endif
    const auto top = reinterpret_cast<uintptr_t>(fiber.stack_top()) / 16 * 16;
    const auto target = reinterpret_cast<uintptr_t>(&Fiber::leave_overflowed);
    const auto argument = reinterpret_cast<uintptr_t>(&fiber);
#if defined(__x86_64__)
    context.uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>(top - 8);  // as behind a call
    context.uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(target);
    context.uc_mcontext.gregs[REG_RDI] = static_cast<greg_t>(argument);
    return true;
#elif defined(__aarch64__)
    context.uc_mcontext.sp = top;
    context.uc_mcontext.pc = target;
    context.uc_mcontext.regs[0] = argument;
    return true;
#else
    static_cast<void>(context), static_cast<void>(top), static_cast<void>(target),
        static_cast<void>(argument);
    return false;
#endif
  }
};

namespace {

// The stack on which an OS thread handles a stack overflow. If the thread already has one (a sanitizer's, the
// application's), that one stays.
class SignalStack {
 public:
  SignalStack() {
    stack_t present = {};
    if (sigaltstack(nullptr, &present) == 0 && (present.ss_flags & SS_DISABLE) == 0) return;
    memory_ = std::make_unique<std::byte[]>(kBytes);
    stack_t ours = {};
    ours.ss_sp = memory_.get();
    ours.ss_size = kBytes;
    sigaltstack(&ours, nullptr);
  }
  ~SignalStack() {
    stack_t present = {};
    if (memory_ == nullptr || sigaltstack(nullptr, &present) != 0 || present.ss_sp != memory_.get()) return;
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }

 private:
  static constexpr size_t kBytes = 64 * 1024;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace

void watch_for_overflows() {
  static const bool installed = (OverflowHandler::install(), true);
  static_cast<void>(installed);
  thread_local const SignalStack signal_stack;
  static_cast<void>(signal_stack);
}

Fiber::Fiber() {
  static std::atomic<size_t> num_made = 0;
  void* mapping = mmap(nullptr, kMappingBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  if (!guard(static_cast<std::byte*>(mapping), kGuardBytes)) {
    munmap(mapping, kMappingBytes);
    throw std::bad_alloc();
  }
  mapping_ = static_cast<std::byte*>(mapping);
  colour_bytes_ = num_made++ * kColourStep % kColourBytes;
  renew();
}

Fiber::~Fiber() {
#if defined(SWITCHYARD_TSAN)
  __tsan_destroy_fiber(tsan_fiber_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_low(), kStackBytes + kColourBytes);
#endif
  munmap(mapping_, kMappingBytes);
}

size_t Fiber::stack_bytes() { return kStackBytes; }
std::byte* Fiber::stack_low() const { return mapping_ + kGuardBytes; }
std::byte* Fiber::stack_top() const { return mapping_ + kMappingBytes - colour_bytes_; }

void Fiber::renew() {
  finished_ = true;
  overflowed_ = false;
  context_ = boost::context::detail::make_fcontext(
      stack_top(), static_cast<size_t>(stack_top() - stack_low()), &Fiber::enter);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_low(), kStackBytes + kColourBytes);
#endif
#if defined(SWITCHYARD_TSAN)
  if (tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
}

void Fiber::start(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
  finished_ = false;
}

__attribute__((noinline)) void Fiber::resume() {
  running_fiber = this;
#if defined(__SANITIZE_ADDRESS__)
  void* scheduler_fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, stack_low(), kStackBytes + kColourBytes);
#endif
#if defined(SWITCHYARD_TSAN)
  tsan_scheduler_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
  context_ = boost::context::detail::jump_fcontext(context_, this).fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
  running_fiber = nullptr;
}

__attribute__((noinline)) void Fiber::suspend() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&asan_fake_stack_, scheduler_stack_low_, scheduler_stack_bytes_);
#endif
#if defined(SWITCHYARD_TSAN)
  __tsan_switch_to_fiber(tsan_scheduler_, __tsan_switch_to_fiber_no_sync);
#endif
  scheduler_context_ = boost::context::detail::jump_fcontext(scheduler_context_, nullptr).fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(asan_fake_stack_, &scheduler_stack_low_, &scheduler_stack_bytes_);
#endif
}

void Fiber::order_before_caller() {
#if defined(SWITCHYARD_TSAN)
  void* const caller = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, __tsan_switch_to_fiber_no_sync);
  __tsan_release(this);
  __tsan_switch_to_fiber(caller, __tsan_switch_to_fiber_no_sync);
  __tsan_acquire(this);
#endif
}

void Fiber::enter(boost::context::detail::transfer_t from) {
  Fiber* self = static_cast<Fiber*>(from.data);
  self->scheduler_context_ = from.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->scheduler_stack_low_, &self->scheduler_stack_bytes_);
#endif
  for (;;) {
    self->body_(self->argument_);
    self->finished_ = true;
    self->suspend();
  }
}

void Fiber::leave_overflowed(Fiber* self) {
  self->overflowed_ = true;
  self->suspend();
  __builtin_unreachable();
}

FiberPool& FiberPool::of_process() {
  static constinit FiberPool pool;  // needs neither construction nor destruction: it is valid at any time
  return pool;
}

Fiber& FiberPool::take() {
  {
    std::lock_guard lock(mutex_);
    if (first_idle_ != nullptr) {
      --num_idle_;
      return *std::exchange(first_idle_, first_idle_->next_idle_);
    }
  }
  return *new Fiber;
}

void FiberPool::give_back(Fiber& fiber) {
  if (!fiber.finished_) fiber.renew();
  {
    std::lock_guard lock(mutex_);
    if (num_idle_ < kMaxIdleFibers) {
      ++num_idle_;
      fiber.next_idle_ = std::exchange(first_idle_, &fiber);
      return;
    }
  }
  delete &fiber;
}

#if defined(SWITCHYARD_TSAN)
void annotate_release(void* object) { __tsan_release(object); }
void annotate_acquire(void* object) { __tsan_acquire(object); }
#else
void annotate_release(void*) {}
void annotate_acquire(void*) {}
#endif

}  // namespace switchyard::emulator
