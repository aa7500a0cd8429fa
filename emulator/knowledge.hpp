// What an actor of the weak memory (weak_memory.hpp) knows of what the others did.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace switchyard::emulator {

// [actor]: the last epoch of it that is known; what lies beyond the end is 0.
using Clock = std::vector<uint32_t>;

inline void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

struct Knowledge {
  Clock before;  // what releases, acquires, barriers and streams put before us
  Clock seen;    // the same and what we only heard of, through a value that was read without order

  void join(const Knowledge& other) {
    emulator::join(before, other.before);
    emulator::join(seen, other.seen);
  }
  void clear() {
    before.clear();
    seen.clear();
  }
};

}  // namespace switchyard::emulator
