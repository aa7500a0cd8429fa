// The wire between ranks of one process (target/wire.hpp). In fast mode a put copies at once. In weak memory
// puts and signals arrive later, when the seed says so (weak_memory.hpp).
#pragma once

#include <vector>

#include "switchyard/detail/target/host_wire.hpp"

namespace switchyard::emulator {

struct WireArena {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
};

class LocalWire : public WireEngine {
 public:
  explicit LocalWire(std::vector<WireArena> arena_of_rank) : arena_of_rank_(std::move(arena_of_rank)) {}

  int n_ranks() const { return static_cast<int>(arena_of_rank_.size()); }
  // What the kernels of this rank get; valid as long as this object.
  Wire of_rank(int rank) {
    return {.rank = rank, .engine = this, .arena = arena_of_rank_[static_cast<size_t>(rank)].base};
  }

  void put(int rank, int peer, void* dst, const void* src, uint64_t bytes, Where where) override;
  void settle(int rank, Where where) override;
  void signal(int rank, int peer, uint64_t* cell, uint64_t value, Where where) override;

 private:
  const WireArena& arena_of(const char* word, const char* argument, int rank, Where where) const;
  uint64_t offset_of(const char* word, const char* argument, int rank, const void* address, uint64_t bytes,
                     uint64_t alignment, Where where) const;

  const std::vector<WireArena> arena_of_rank_;  // of equal size
};

}  // namespace switchyard::emulator
