// What an actor of the weak memory (weak_memory.hpp) knows of what other actors did.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace switchyard::emulator {

// A vector clock: [actor] is the last known epoch of the actor; entries past the end are 0.
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
  Clock before;  // what releases, acquires, barriers and streams order before this actor
  Clock seen;    // the same, and what it only knows through values that were read without order
  // What is over, but not visible: what came before signals of the wire, in the ranks that sent them. A store
  // cannot overtake it, and a load need not see it.
  Clock over;
  // What comes before the bulk copies that this block starts, in all of memory and in its shared memory: what
  // proxy fences of the block have added, and copies of the block that it has waited for. What came before
  // the launch comes before them, too, but is not in here.
  Clock fenced, fenced_shared;

  void join(const Knowledge& other) {
    emulator::join(before, other.before);
    emulator::join(seen, other.seen);
    emulator::join(over, other.over);
    emulator::join(fenced, other.fenced);
    emulator::join(fenced_shared, other.fenced_shared);
  }
  // A bulk copy of this block has completed, which is a proxy fence for what it did.
  void learn_completed(uint32_t actor, uint32_t epoch) {
    for (Clock* clock : {&before, &seen, &fenced, &fenced_shared}) learn(*clock, actor, epoch);
  }
  void clear() {
    for (Clock* clock : {&before, &seen, &over, &fenced, &fenced_shared}) clock->clear();
  }
};

}  // namespace switchyard::emulator
