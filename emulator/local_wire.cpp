#include "local_wire.hpp"

#include <cstring>

#include "weak_lines.hpp"

namespace switchyard::emulator {
namespace {

Thread& self() { return *static_cast<Thread*>(current_thread); }
WeakMemory* weak_memory() { return self().block->executor.weak_memory; }

}  // namespace

const WireArena& LocalWire::arena_of(const char* word, const char* argument, int rank, Where where) const {
  const auto n_ranks = static_cast<int>(arena_of_rank_.size());
  if (rank < 0 || rank >= n_ranks)
    self().block->executor.fail_current(
        self(), invalid_argument("%s, block %u, thread %u: %s at %s:%u: %s is %d, but must be 0..%d",
                                 self().block->launch.name.c_str(), self().block_idx, self().thread_idx, word,
                                 file_of(where), where.line(), argument, rank, n_ranks - 1));
  return arena_of_rank_[static_cast<size_t>(rank)];
}

// The offset in the rank's arena, in which all bytes must lie.
uint64_t LocalWire::offset_of(const char* word, const char* argument, int rank, const void* address,
                              uint64_t bytes, uint64_t alignment, Where where) const {
  const WireArena& arena = arena_of(word, "rank", rank, where);
  const auto offset =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(arena.base));
  const bool is_inside = offset >= 0 && static_cast<uint64_t>(offset) <= arena.bytes &&
                         bytes <= arena.bytes - static_cast<uint64_t>(offset);
  if (!is_inside || reinterpret_cast<uintptr_t>(address) % alignment != 0)
    self().block->executor.fail_current(
        self(),
        invalid_argument(
            "%s, block %u, thread %u: %s at %s:%u: %s is %lld bytes behind the beginning of rank %d's "
            "arena, for %llu bytes; it must lie in the arena's %llu bytes and be a multiple of %llu",
            self().block->launch.name.c_str(), self().block_idx, self().thread_idx, word, file_of(where),
            where.line(), argument, static_cast<long long>(offset), rank,
            static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(arena.bytes),
            static_cast<unsigned long long>(alignment)));
  return static_cast<uint64_t>(offset);
}

void LocalWire::put(int rank, int peer, void* dst, const void* src, uint64_t bytes, Where where) {
  const WireArena& peer_arena = arena_of("wire_put", "peer", peer, where);
  offset_of("wire_put", "src", rank, src, bytes, /*alignment=*/1, where);
  const uint64_t offset = offset_of("wire_put", "dst", rank, dst, bytes, /*alignment=*/1, where);
  if (weak_memory() != nullptr)
    return weak_memory()->wire_put(self(), rank, peer, peer_arena.base + offset, src, bytes, where);
  std::memcpy(peer_arena.base + offset, src, bytes);  // ThreadSanitizer sees it, even from the emulator
}

void LocalWire::settle(int rank, Where where) {
  if (weak_memory() != nullptr) weak_memory()->wire_settle(self(), rank, where);
}

void LocalWire::signal(int rank, int peer, uint64_t* cell, uint64_t value, Where where) {
  const WireArena& peer_arena = arena_of("wire_signal", "peer", peer, where);
  const uint64_t offset =
      offset_of("wire_signal", "cell", rank, cell, sizeof(value), alignof(uint64_t), where);
  auto* peer_cell = reinterpret_cast<uint64_t*>(peer_arena.base + offset);
  if (weak_memory() != nullptr)
    return weak_memory()->wire_signal(self(), rank, peer, peer_cell, value, where);
  annotate_release(peer_cell);  // for ThreadSanitizer, which does not watch the emulator's own atomics
  __atomic_store_n(peer_cell, value, __ATOMIC_RELEASE);
}

}  // namespace switchyard::emulator
