// What the parts of the weak memory share: its actors, and the writes and reads of each line. weak_memory.hpp
// says what they mean.
#pragma once

#include <array>
#include <cstring>

#include "weak_memory.hpp"

namespace switchyard::emulator {

inline constexpr uint64_t kLineBytes = 16;
inline constexpr uint64_t kNewest = UINT64_MAX;
inline constexpr uint32_t kNoActor = UINT32_MAX;

// [mask of 8 bytes]: 0xff where the bit is set.
inline constexpr std::array<uint64_t, 256> kBytesOfMask = [] {
  std::array<uint64_t, 256> table{};
  for (uint32_t mask = 0; mask < 256; ++mask)
    for (uint32_t byte = 0; byte < 8; ++byte)
      if ((mask >> byte & 1u) != 0) table[mask] |= 0xffull << 8 * byte;
  return table;
}();

// The bytes of a line, or some of them.
struct LineBytes {
  uint64_t half[2] = {0, 0};

  void overlay(const LineBytes& other, uint16_t mask) {
    for (uint32_t i = 0; i < 2; ++i) {
      const uint64_t bytes = kBytesOfMask[mask >> 8 * i & 0xffu];
      half[i] = (half[i] & ~bytes) | (other.half[i] & bytes);
    }
  }
  bool equals(const LineBytes& other, uint16_t mask) const {
    uint64_t differing = 0;
    for (uint32_t i = 0; i < 2; ++i)
      differing |= (half[i] ^ other.half[i]) & kBytesOfMask[mask >> 8 * i & 0xffu];
    return differing == 0;
  }
  std::byte* at(uint32_t offset) { return reinterpret_cast<std::byte*>(half) + offset; }
};

// Not a string: the fiber that fails is abandoned, and what it owns is never freed.
inline const char* file_of(Where where) {
  const char* slash = std::strrchr(where.file_name(), '/');
  return slash == nullptr ? where.file_name() : slash + 1;
}

inline bool is_shared(const Thread& thread, const void* address) {
  const std::byte* byte = static_cast<const std::byte*>(address);
  return byte >= thread.shared && byte < thread.shared + thread.shared_bytes;
}

struct WeakMemory::Actor {
  uint32_t index;
  uint32_t stream_idx;
  uint32_t block_idx;
  uint32_t epoch = 0;
  uint32_t bulk_actor = kNoActor;
  Knowledge knowledge;

  // What the actor did so far may be known to others; what it does from now on is not.
  void begin_epoch() {
    ++epoch;
    learn(knowledge.before, index, epoch);
    learn(knowledge.seen, index, epoch);
  }
};

// What comes before an access.
struct WeakMemory::View {
  const Clock& before;
  const Clock& also_before;
  const Clock& seen;
  const Clock& over;

  bool knows(uint32_t actor, uint32_t epoch) const {
    return known_epoch(before, actor) >= epoch || known_epoch(also_before, actor) >= epoch;
  }
  bool is_over(uint32_t actor, uint32_t epoch) const {
    return knows(actor, epoch) || known_epoch(over, actor) >= epoch;
  }
  bool has_heard_of(uint32_t actor, uint32_t epoch) const { return known_epoch(seen, actor) >= epoch; }
};

struct WeakMemory::StreamState {
  // The transfer barriers of a block follow its warps, by their offset in shared memory.
  static constexpr uint32_t kFirstBarrier = 1024 / kWarpSize;

  uint32_t index;
  bool is_known_to_host = true;
  Knowledge at_end;  // of its launches so far
  std::map<std::pair<uint32_t, uint32_t>, uint32_t>
      actors;  // (block, warp or barrier) -> actor, for all launches
};

// What an atomic write passes on to an actor that reads it.
struct WeakMemory::Published {
  // The releases it makes visible: its own, and those of the chain of read-modify-writes that it continues.
  struct Release {
    uint32_t actor;
    Scope scope;
    Clock before;
    Clock over;
  };
  std::vector<Release> releases;
  Clock seen;
};

struct WeakMemory::Write {
  uint64_t sequence;
  uint32_t actor;
  uint32_t epoch;
  uint16_t mask;
  LineBytes bytes;
  std::shared_ptr<const Published> published;  // null: a weak store
  Where where;
};

// The latest read of these bytes by an actor.
struct WeakMemory::Read {
  uint32_t actor;
  uint16_t mask;
  uint64_t sequence;            // of the newest write it returned
  uint32_t epoch;               // in which it first did
  uint32_t checked_epoch = 0;   // of the last read that is neither part of a wait nor relaxed
  uint32_t any_time_epoch = 0;  // of the last relaxed one, which a signal of the wire may overtake
  Where where;
};

struct WeakMemory::Line {
  uint64_t generation = 0;
  uint16_t known_mask = 0;  // bytes that `base` or a write has
  // Bytes that were compared and exchanged: several may want to store there, and whoever does will do.
  uint16_t contested_mask = 0;
  LineBytes base;             // what was there before the oldest write
  std::vector<Write> writes;  // oldest first
  std::vector<Read> reads;

  void clear() {
    known_mask = contested_mask = 0;
    writes.clear();
    reads.clear();
  }
  // The bytes as they were after write `as_of`; those of `memory` where nothing is known.
  LineBytes compose(LineBytes memory, uint64_t as_of) const {
    memory.overlay(base, known_mask);
    for (const Write& write : writes) {
      if (write.sequence > as_of) break;
      memory.overlay(write.bytes, write.mask);
    }
    return memory;
  }
  const Write* newest(uint16_t mask, uint64_t as_of) const {
    for (size_t i = writes.size(); i-- > 0;)
      if (writes[i].sequence <= as_of && (writes[i].mask & mask) != 0) return &writes[i];
    return nullptr;
  }
};

// By address / kLineBytes; never iterated, so that addresses decide nothing.
struct WeakMemory::Lines : std::unordered_map<uintptr_t, Line> {};

// Where an access goes.
struct WeakMemory::Location {
  Line& line;
  uint32_t offset;
  uint16_t mask;
  LineBytes memory;  // the accessed bytes as they are now
};

}  // namespace switchyard::emulator
