// The words of target/host.hpp when memory is weak. Shared memory is not: barriers order it, and
// ThreadSanitizer watches them.
#include <cstring>

#include "weak_memory.hpp"

namespace switchyard::emulator {
namespace {

Thread& self() { return *static_cast<Thread*>(current_thread); }
WeakMemory& memory_of(const Thread& thread) { return *thread.block->executor.weak_memory; }

bool is_shared(const Thread& thread, const void* address) {
  const std::byte* byte = static_cast<const std::byte*>(address);
  return byte >= thread.shared && byte < thread.shared + thread.shared_bytes;
}

}  // namespace
// them.

void weak_load(const WeakAccess& access, void* value) {
  if (is_shared(self(), access.address))
    std::memcpy(value, access.address, access.bytes);
  else
    memory_of(self()).load(self(), access, value);
}

void weak_store(const WeakAccess& access, const void* value) {
  if (is_shared(self(), access.address))
    std::memcpy(const_cast<void*>(access.address), value, access.bytes);
  else
    memory_of(self()).store(self(), access, value);
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

void weak_bulk_store(void* dst, const void* src, uint64_t num_bytes, Where where) {
  memory_of(self()).bulk_store(self(), {dst, src, num_bytes, 0, where});
}

void weak_bulk_commit() { memory_of(self()).bulk_commit(self()); }
void weak_bulk_wait_read(uint32_t num_pending) { memory_of(self()).bulk_wait_read(self(), num_pending); }
void weak_bulk_wait(uint32_t num_pending, Where where) {
  memory_of(self()).bulk_wait(self(), num_pending, where);
}

}  // namespace switchyard::emulator
