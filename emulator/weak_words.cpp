// The words of target/host.hpp when memory is weak. Atomics in shared memory are sequentially consistent: no
// bulk copy accesses the same memory.
#include <cstring>

#include "weak_lines.hpp"

namespace switchyard::emulator {
namespace {

Thread& self() { return *static_cast<Thread*>(current_thread); }
WeakMemory& memory_of(const Thread& thread) { return *thread.block->executor.weak_memory; }

// Calls visit(access, offset) for each part of the access that lies within one line.
template <typename Visit>
void for_each_line(const WeakAccess& access, Visit visit) {
  for (uint32_t at = 0; at < access.bytes;) {
    WeakAccess part = access;
    part.address = static_cast<const std::byte*>(access.address) + at;
    const auto offset = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(part.address) % sizeof(Vec16));
    part.bytes = std::min(access.bytes - at, static_cast<uint32_t>(sizeof(Vec16)) - offset);
    visit(part, at);
    at += part.bytes;
  }
}

}  // namespace

void weak_load(const WeakAccess& access, void* value) {
  for_each_line(access, [&](const WeakAccess& part, uint32_t at) {
    memory_of(self()).load(self(), part, static_cast<std::byte*>(value) + at);
  });
}

void weak_store(const WeakAccess& access, const void* value) {
  for_each_line(access, [&](const WeakAccess& part, uint32_t at) {
    memory_of(self()).store(self(), part, static_cast<const std::byte*>(value) + at);
  });
}

void weak_modify(const WeakAccess& access, void* old, ModifyFunction modify, const void* operands) {
  if (!is_shared(self(), access.address))
    return memory_of(self()).modify(self(), access, old, modify, operands);
  std::memcpy(old, access.address, access.bytes);
  modify(const_cast<void*>(access.address), operands);
}

void weak_copy(void* dst, const void* src, uint64_t num_bytes, int lane_idx, int num_lanes, Where where) {
  const uint64_t stride = static_cast<uint64_t>(num_lanes) * sizeof(Vec16);
  WeakAccess access{nullptr, sizeof(Vec16), WordKind::kLoad, Order::kRelaxed, Scope::kBlock, false, where};
  for (uint64_t at = static_cast<uint64_t>(lane_idx) * sizeof(Vec16); at < num_bytes; at += stride) {
    Vec16 value;
    access.kind = WordKind::kLoad;
    access.address = static_cast<const std::byte*>(src) + at;
    weak_load(access, &value);
    access.kind = WordKind::kStore;
    access.address = static_cast<std::byte*>(dst) + at;
    weak_store(access, &value);
  }
}

void weak_bulk_load(void* dst, const void* src, uint64_t num_bytes, uint64_t* barrier, Where where) {
  memory_of(self()).bulk_load(self(), {dst, src, num_bytes, barrier, where});
}
void weak_bulk_store(void* dst, const void* src, uint64_t num_bytes, Where where) {
  memory_of(self()).bulk_store(self(), {dst, src, num_bytes, nullptr, where});
}

void weak_bulk_commit() { memory_of(self()).bulk_commit(self()); }
void weak_bulk_wait_read(uint32_t num_pending) { memory_of(self()).bulk_wait_read(self(), num_pending); }
void weak_bulk_wait(uint32_t num_pending, Where where) {
  memory_of(self()).bulk_wait(self(), num_pending, where);
}
void weak_fence_proxy(FencedMemory memory, Where where) {
  memory_of(self()).fence_proxy(self(), memory, where);
}
void weak_matrix_load(const WeakAccess& access, void* value) {
  memory_of(self()).matrix_load(self(), access, value);
}

}  // namespace switchyard::emulator
