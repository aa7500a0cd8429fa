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

inline uint32_t known_epoch(const Clock& clock, uint32_t actor) {
  return actor < clock.size() ? clock[actor] : 0;
}

inline void learn(Clock& clock, uint32_t actor, uint32_t epoch) {
  if (clock.size() <= actor) clock.resize(actor + 1);
  clock[actor] = std::max(clock[actor], epoch);
}

struct Knowledge {
  Clock before;  // what releases, acquires, barriers and streams put before us
  Clock seen;    // the same and what we only heard of, through a value that was read without order
  // What comes before the bulk copies that our block starts, in all of memory and in its shared memory: what
  // proxy fences of the block have put there, and copies of the block that it has waited for. What came
  // before the launch does, too, and is not in here.
  Clock fenced, fenced_shared;

  void join(const Knowledge& other) {
    emulator::join(before, other.before);
    emulator::join(seen, other.seen);
    emulator::join(fenced, other.fenced);
    emulator::join(fenced_shared, other.fenced_shared);
  }
  // A bulk copy of our block has completed; that is a proxy fence for what it did.
  void learn_completed(uint32_t actor, uint32_t epoch) {
    for (Clock* clock : {&before, &seen, &fenced, &fenced_shared}) learn(*clock, actor, epoch);
  }
  void clear() {
    for (Clock* clock : {&before, &seen, &fenced, &fenced_shared}) clock->clear();
  }
};

}  // namespace switchyard::emulator
