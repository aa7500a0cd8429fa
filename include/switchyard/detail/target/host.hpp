// The vocabulary on the CPU: each CUDA thread is a fiber of the emulator (emulator/machine.hpp).
// Every word that can block or be overtaken knows where it was called, so that a report can name the
// location.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>
#include <utility>

#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/detail/target/tensor_shape.hpp"
#include "switchyard/detail/target/vocabulary.hpp"
#include "switchyard/status.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard::emulator {

// What a fiber knows about itself. The emulator defines and updates it.
struct ThreadState {
  uint32_t thread_idx = 0;
  uint32_t num_threads = 0;
  uint32_t block_idx = 0;
  uint32_t num_blocks = 0;
  std::byte* shared = nullptr;
  uint64_t shared_bytes = 0;
  bool preemptible = false;  // simulated mode, and not inside a wait's predicate
  bool is_weak = false;      // simulated mode with a weak memory: the words go through it
  // What the thread waits for: poll(awaited) looks, on behalf of the thread, whether it can go on.
  bool (*poll)(void* awaited) = nullptr;
  void* awaited = nullptr;
};

using Where = std::source_location;

extern __thread ThreadState* current_thread;

void sync_block(Where where);
bool sync_block_any(bool value, Where where);
void named_barrier(uint32_t barrier_idx, uint32_t num_threads, bool wait, Where where);
// Waits for all lanes of this warp that have not exited, and returns the 32 values that they passed (0 for
// exited lanes). The values stay valid until this thread's next call.
const uint64_t* warp_collect(uint64_t value, const char* word, Where where);
void preempt(Where where);  // simulated mode: another thread may run here
// Lets other threads run, and returns when something may have changed. `looked_in_vain`: the thread has only
// polled since its last spin.
void spin(uint64_t deadline_ns, bool looked_in_vain, Where where);
uint64_t now_ns();
// A launch that has admitted the stream's next launch must not wait for a peer afterwards: on a GPU the two
// could hold the multiprocessors that the peer needs. The machine fails if it does.
void admit_successor();
void check_may_wait_for_peer(Where where);
void check_prefetch(const void* begin, uint32_t bytes, Where where);
void transfer_init(uint64_t* barrier, uint32_t num_arrivals);
void transfer_arrive(uint64_t* barrier, uint32_t expected_bytes);
void transfer_complete(uint64_t* barrier, uint32_t bytes);
uint32_t transfer_phase(const uint64_t* barrier);  // the current one
bool transfer_done(uint64_t* barrier, uint32_t parity);

// The words when memory is weak (emulator/weak_memory.hpp).
struct WeakAccess {
  const void* address;
  uint32_t bytes;  // within one aligned 16-byte line; weak_words.cpp splits larger accesses
  WordKind kind;
  Order order;
  Scope scope;
  bool is_atomic;  // if false, it neither releases nor acquires, whatever the order says
  Where where;
};
// Replaces the value in place by the new one. It returns false if memory must stay as it is.
using ModifyFunction = bool (*)(void* value, const void* operands);
void weak_load(const WeakAccess& access, void* value);
void weak_store(const WeakAccess& access, const void* value);
void weak_modify(const WeakAccess& access, void* old, ModifyFunction modify, const void* operands);
void weak_copy(void* dst, const void* src, uint64_t num_bytes, int lane_idx, int num_lanes, Where where);
// Writes zeros if `src` is null.
void weak_bulk_load(void* dst, const void* src, uint64_t num_bytes, uint64_t* barrier, Where where);
void weak_bulk_store(void* dst, const void* src, uint64_t num_bytes, Where where);
void weak_bulk_commit();
void weak_bulk_wait_read(uint32_t num_pending);
void weak_bulk_wait(uint32_t num_pending, Where where);
enum class FencedMemory { kAll, kShared };
void weak_fence_proxy(FencedMemory memory, Where where);
// A load of shared memory by the matrix unit, which reads through the async proxy, as bulk copies do.
void weak_matrix_load(const WeakAccess& access, void* value);

Status enqueue(StreamHandle stream, const char* name, const LaunchShape& shape, void (*body)(const void*),
               const void* arguments, size_t argument_bytes, size_t argument_alignment);

}  // namespace switchyard::emulator

namespace switchyard::inline host_target::target {

using emulator::Where;

// Threads and blocks.
inline int thread_idx() { return static_cast<int>(emulator::current_thread->thread_idx); }
inline int num_threads() { return static_cast<int>(emulator::current_thread->num_threads); }
inline int block_idx() { return static_cast<int>(emulator::current_thread->block_idx); }
inline int num_blocks() { return static_cast<int>(emulator::current_thread->num_blocks); }

// The dynamic shared memory of this block as a T, which must fit into the launch's shared_bytes.
template <typename T>
T& shared_storage() {
  static_assert(std::is_trivially_destructible_v<T>);
  return *reinterpret_cast<T*>(emulator::current_thread->shared);
}

// The bytes of dynamic shared memory that the launch gave to each block.
inline uint64_t shared_bytes() { return emulator::current_thread->shared_bytes; }

// Barriers. They order memory among the threads that meet in them.
inline void sync_block(Where where = Where::current()) { emulator::sync_block(where); }
// As sync_block; returns true if any thread of the block passed true.
inline bool sync_block_any(bool value, Where where = Where::current()) {
  return emulator::sync_block_any(value, where);
}
inline void sync_warp(Where where = Where::current()) { emulator::warp_collect(0, "sync_warp", where); }
// Named barrier 1..15, complete after `num_threads` arrivals (a multiple of the warp size).
inline void named_barrier_sync(uint32_t barrier_idx, uint32_t num_threads, Where where = Where::current()) {
  emulator::named_barrier(barrier_idx, num_threads, /*wait=*/true, where);
}
inline void named_barrier_arrive(uint32_t barrier_idx, uint32_t num_threads, Where where = Where::current()) {
  emulator::named_barrier(barrier_idx, num_threads, /*wait=*/false, where);
}

// Warp collectives: all lanes of the warp must call them together.
namespace detail {
template <typename T>
uint64_t to_bits(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <typename T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
}  // namespace detail

template <typename T>
T shuffle(T value, int src_lane, Where where = Where::current()) {
  return detail::from_bits<T>(
      emulator::warp_collect(detail::to_bits(value), "shuffle", where)[src_lane % kWarpSize]);
}
template <typename T>
T shuffle_xor(T value, int lane_mask, Where where = Where::current()) {
  const int src_lane = (thread_idx() % kWarpSize) ^ lane_mask;
  return detail::from_bits<T>(emulator::warp_collect(detail::to_bits(value), "shuffle_xor", where)[src_lane]);
}
// Returns the value of the lane `delta` below; lanes below `delta` keep their own.
template <typename T>
T shuffle_up(T value, int delta, Where where = Where::current()) {
  const int lane_idx = thread_idx() % kWarpSize;
  const int src_lane = lane_idx >= delta ? lane_idx - delta : lane_idx;
  return detail::from_bits<T>(emulator::warp_collect(detail::to_bits(value), "shuffle_up", where)[src_lane]);
}
inline uint32_t ballot(bool value, Where where = Where::current()) {
  const uint64_t* values = emulator::warp_collect(value, "ballot", where);
  uint32_t mask = 0;
  for (int lane_idx = 0; lane_idx < kWarpSize; ++lane_idx)
    mask |= static_cast<uint32_t>(values[lane_idx]) << lane_idx;
  return mask;
}

// Returns the mask of the lanes that passed the same value.
inline uint32_t match_any(uint32_t value, Where where = Where::current()) {
  const uint64_t* values = emulator::warp_collect(value, "match_any", where);
  uint32_t mask = 0;
  for (int lane_idx = 0; lane_idx < kWarpSize; ++lane_idx)
    mask |= static_cast<uint32_t>(values[lane_idx] == value) << lane_idx;
  return mask;
}

inline int popcount(uint32_t mask) { return std::popcount(mask); }
// sum + a * b with both operations rounded, which gives the same bits on every target. (The library's CMake
// target adds -ffp-contract=off.)
inline float add_product(float sum, float a, float b) { return sum + a * b; }

// The quotient, rounded to nearest whatever the compiler's fast-math options.
inline float divide(float dividend, float divisor) { return dividend / divisor; }
// The maximum of the lower halves and the maximum of the upper halves, as unsigned numbers.
inline uint32_t max_u16x2(uint32_t a, uint32_t b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}
// a * b must be exact, so that one rounding is as good as two.
inline float add_exact_product(float sum, float a, float b) { return sum + a * b; }
// Neither argument may be NaN.
inline float min_f32(float a, float b) { return a < b ? a : b; }
// Byte i is byte `selector >> 4 * i & 7` of a (0..3) and b (4..7).
inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t picked = 0;
  for (int i = 0; i < 4; ++i)
    picked |= static_cast<uint32_t>(bytes >> (selector >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
  return picked;
}
// Converts to two codes, the first in the lower byte, with the same rounding as base/minifloat.hpp.
inline uint16_t to_e4m3x2(float first, float second) {
  return static_cast<uint16_t>(to_minifloat<e4m3>(first).bits | to_minifloat<e4m3>(second).bits << 8);
}
inline void from_e4m3x2(uint16_t codes, float& first, float& second) {
  first = to_float(e4m3{static_cast<uint8_t>(codes)});
  second = to_float(e4m3{static_cast<uint8_t>(codes >> 8)});
}
// Converts to two bf16, the first in the lower half, with the same rounding as to_bf16().
inline uint32_t to_bf16x2(float first, float second) {
  return to_bf16(first).bits | static_cast<uint32_t>(to_bf16(second).bits) << 16;
}
inline uint16_t to_e5m2x2(float first, float second) {
  return static_cast<uint16_t>(to_minifloat<e5m2>(first).bits | to_minifloat<e5m2>(second).bits << 8);
}

// The mask must not be 0.
inline int lowest_set_bit(uint32_t mask) { return std::countr_zero(mask); }

// Memory that several threads share. The scope is part of the contract: on the CPU all scopes are the same,
// but not in weak memory. These are compiler builtins because libc++ has no std::atomic_ref before version
// 19.
namespace detail {
constexpr int memory_order(Order order) {
  switch (order) {
    case Order::kRelaxed:
      return __ATOMIC_RELAXED;
    case Order::kAcquire:
      return __ATOMIC_ACQUIRE;
    case Order::kRelease:
      return __ATOMIC_RELEASE;
    case Order::kAcqRel:
      return __ATOMIC_ACQ_REL;
  }
  return __ATOMIC_SEQ_CST;
}
inline void preemption_point(Where where) {
  if (emulator::current_thread != nullptr && emulator::current_thread->preemptible) emulator::preempt(where);
}
inline bool is_weak() { return emulator::current_thread != nullptr && emulator::current_thread->is_weak; }
}  // namespace detail

template <Order kOrder, Scope kScope, typename T>
T load(const T* p, Where where = Where::current()) {
  detail::preemption_point(where);
  if (detail::is_weak()) [[unlikely]] {
    T value;
    emulator::weak_load({p, sizeof(T), WordKind::kLoad, kOrder, kScope, true, where}, &value);
    return value;
  }
  return __atomic_load_n(p, detail::memory_order(kOrder));
}
template <Order kOrder, Scope kScope, typename T>
void store(T* p, T value, Where where = Where::current()) {
  detail::preemption_point(where);
  if (detail::is_weak()) [[unlikely]]
    return emulator::weak_store({p, sizeof(T), WordKind::kStore, kOrder, kScope, true, where}, &value);
  __atomic_store_n(p, value, detail::memory_order(kOrder));
}
template <Order kOrder, Scope kScope, typename T>
T fetch_add(T* p, T value, Where where = Where::current()) {
  detail::preemption_point(where);
  if (detail::is_weak()) [[unlikely]] {
    T old;
    const auto add = [](void* sum, const void* operand) {
      *static_cast<T*>(sum) += *static_cast<const T*>(operand);
      return true;
    };
    emulator::weak_modify({p, sizeof(T), WordKind::kAdd, kOrder, kScope, true, where}, &old, add, &value);
    return old;
  }
  return __atomic_fetch_add(p, value, detail::memory_order(kOrder));
}
template <Order kOrder, Scope kScope, typename T>
bool compare_exchange(T* p, T expected, T desired, Where where = Where::current()) {
  detail::preemption_point(where);
  if (detail::is_weak()) [[unlikely]] {
    T old;
    const T operands[2] = {expected, desired};
    const auto exchange = [](void* value, const void* expected_and_desired) {
      const T* operand = static_cast<const T*>(expected_and_desired);
      return *static_cast<T*>(value) == operand[0] && (*static_cast<T*>(value) = operand[1], true);
    };
    emulator::weak_modify({p, sizeof(T), WordKind::kCompareExchange, kOrder, kScope, true, where}, &old,
                          exchange, operands);
    return old == expected;
  }
  return __atomic_compare_exchange_n(p, &expected, desired, /*weak=*/false, detail::memory_order(kOrder),
                                     __ATOMIC_ACQUIRE);
}
// Adds one, but wraps `last` and anything above it to 0; returns the old value.
template <Order kOrder, Scope kScope>
uint32_t fetch_inc_wrap(uint32_t* p, uint32_t last, Where where = Where::current()) {
  detail::preemption_point(where);
  if (detail::is_weak()) [[unlikely]] {
    uint32_t old;
    const auto increment = [](void* value, const void* operand) {
      uint32_t& word = *static_cast<uint32_t*>(value);
      word = word >= *static_cast<const uint32_t*>(operand) ? 0 : word + 1;
      return true;
    };
    emulator::weak_modify({p, sizeof(uint32_t), WordKind::kAdd, kOrder, kScope, true, where}, &old, increment,
                          &last);
    return old;
  }
  uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(p, &old, old >= last ? 0 : old + 1, /*weak=*/true,
                                      detail::memory_order(kOrder), __ATOMIC_RELAXED)) {
  }
  return old;
}

// Weak accesses: releases and acquires around them order them; they order nothing themselves.
template <typename T>
T ld(const T* p, Where where = Where::current()) {
  if (detail::is_weak()) [[unlikely]] {
    T value;
    emulator::weak_load({p, sizeof(T), WordKind::kLoad, Order::kRelaxed, Scope::kBlock, false, where},
                        &value);
    return value;
  }
  return *p;
}
template <typename T>
void st(T* p, T value, Where where = Where::current()) {
  if (detail::is_weak()) [[unlikely]]
    return emulator::weak_store(
        {p, sizeof(T), WordKind::kStore, Order::kRelaxed, Scope::kBlock, false, where}, &value);
  *p = value;
}
inline Vec16 ld_16(const void* p, Where where = Where::current()) {
  return ld(static_cast<const Vec16*>(p), where);
}
inline void st_16(void* p, Vec16 value, Where where = Where::current()) {
  st(static_cast<Vec16*>(p), value, where);
}

// Copies `num_bytes` (a multiple of 16). Each of `num_lanes` lanes calls it, with its own lane_idx.
inline void copy_row(void* dst, const void* src, uint64_t num_bytes, int lane_idx, int num_lanes,
                     Where where = Where::current()) {
  if (detail::is_weak()) [[unlikely]]
    return emulator::weak_copy(dst, src, num_bytes, lane_idx, num_lanes, where);
  const uint64_t num_vectors = num_bytes / sizeof(Vec16);
  for (uint64_t i = static_cast<uint64_t>(lane_idx); i < num_vectors; i += static_cast<uint64_t>(num_lanes))
    static_cast<Vec16*>(dst)[i] = static_cast<const Vec16*>(src)[i];
}

// Bulk copies between global and shared memory, 16-byte aligned and a multiple of 16 bytes long. One thread
// starts a copy. A load completes on a TransferBarrier; stores complete in committed groups.
struct TensorMap;  // host_matrix.hpp
class TransferBarrier {
 public:
  // One thread calls this, before a sync_block after which others may use the barrier.
  void init(uint32_t num_arrivals) { emulator::transfer_init(&word_, num_arrivals); }
  // Arrives, and announces bytes that bulk loads will write in this phase.
  void arrive_expect(uint32_t bytes) { emulator::transfer_arrive(&word_, bytes); }
  void arrive() { emulator::transfer_arrive(&word_, 0); }
  // Returns true once the phase of this parity (0 first, then alternating) is complete, and acquires what
  // its arrivals released and its loads wrote.
  bool done(uint32_t parity) { return emulator::transfer_done(&word_, parity); }

 private:
  friend void bulk_load(void*, const void*, uint32_t, TransferBarrier&, Where);
  friend void tensor_load_first(void*, const TensorMap&, int, int, int, uint32_t, TransferBarrier&, CacheHint,
                                Where);
  uint64_t word_;
};

inline void bulk_load(void* shared_dst, const void* global_src, uint32_t bytes, TransferBarrier& barrier,
                      Where where = Where::current()) {
  if (detail::is_weak()) [[unlikely]]
    return emulator::weak_bulk_load(shared_dst, global_src, bytes, &barrier.word_, where);
  copy_row(shared_dst, global_src, bytes, 0, 1, where);
  emulator::transfer_complete(&barrier.word_, bytes);
}
inline void bulk_store(void* global_dst, const void* shared_src, uint32_t bytes,
                       Where where = Where::current()) {
  if (detail::is_weak()) [[unlikely]]
    return emulator::weak_bulk_store(global_dst, shared_src, bytes, where);
  copy_row(global_dst, shared_src, bytes, 0, 1, where);
}
inline void bulk_commit() {
  if (detail::is_weak()) [[unlikely]]
    emulator::weak_bulk_commit();
}
// Wait until at most kPending committed groups still read shared memory (bulk_wait_read), or are not yet
// visible (bulk_wait).
template <int kPending>
void bulk_wait_read() {
  if (detail::is_weak()) [[unlikely]]
    emulator::weak_bulk_wait_read(kPending);
}
template <int kPending>
void bulk_wait(Where where = Where::current()) {
  if (detail::is_weak()) [[unlikely]]
    emulator::weak_bulk_wait(kPending, where);
}
// Orders ordinary accesses of memory before later bulk copies of the same memory.
inline void fence_proxy_async(Where where = Where::current()) {
  if (detail::is_weak()) [[unlikely]]
    emulator::weak_fence_proxy(emulator::FencedMemory::kAll, where);
}
// The same for this block's shared memory only.
inline void fence_proxy_async_shared(Where where = Where::current()) {
  if (detail::is_weak()) [[unlikely]]
    emulator::weak_fence_proxy(emulator::FencedMemory::kShared, where);
}

// Asks for memory to be brought into the L2, 16-byte aligned and a multiple of 16 bytes long. Here there is
// none: the machine fails if the memory is not so, and looks at both of its ends.
inline void prefetch_to_l2(const void* begin, uint32_t bytes, Where where = Where::current()) {
  emulator::check_prefetch(begin, bytes, where);
}

// The first admits the dependent launch behind this one; the second waits for the writes of the launch before
// this one.
inline void grid_dependency_launch() { emulator::admit_successor(); }
inline void grid_dependency_wait() {}
// Called before a wait for another rank.
inline void check_may_wait_for_peer(Where where = Where::current()) {
  emulator::check_may_wait_for_peer(where);
}

// Time and waiting.
inline uint64_t now_ns() { return emulator::now_ns(); }

// Waits until `ready()` holds. Returns false if the deadline (on the clock of now_ns) passed first. `ready`
// must only read.
template <typename Ready>
bool wait_until(Ready&& ready, uint64_t deadline_ns, Where where = Where::current()) {
  emulator::ThreadState& self = *emulator::current_thread;
  self.poll = [](void* awaited) -> bool {
    return (*static_cast<std::remove_reference_t<Ready>*>(awaited))();
  };
  self.awaited = const_cast<std::remove_cv_t<std::remove_reference_t<Ready>>*>(&ready);
  for (bool looked_in_vain = false;; looked_in_vain = true) {
    const bool preemptible = std::exchange(self.preemptible, false);
    const bool is_ready = ready();
    self.preemptible = preemptible;
    if (is_ready) return true;
    if (deadline_ns != kNoDeadline && now_ns() >= deadline_ns) return false;
    emulator::spin(deadline_ns, looked_in_vain, where);
  }
}

// Launches `kernel(parameters)` on a stream of this target.
template <typename Parameters>
Status launch(const char* name, void (*kernel)(Parameters), const LaunchShape& shape, StreamHandle stream,
              const Parameters& parameters) {
  struct Call {
    void (*kernel)(Parameters);
    Parameters parameters;
  };
  static_assert(std::is_trivially_copyable_v<Call>);
  const Call call{kernel, parameters};
  return emulator::enqueue(
      stream, name, shape,
      [](const void* bytes) {
        const Call& c = *static_cast<const Call*>(bytes);
        c.kernel(c.parameters);
      },
      &call, sizeof(call), alignof(Call));
}

}  // namespace switchyard::inline host_target::target

#include "switchyard/detail/target/words.hpp"
