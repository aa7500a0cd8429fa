// A block of one thread on the host as the environment of a tile scheduler. One thread runs all blocks in
// turn, so the queue is a word like any other.
#pragma once

#include "switchyard/types/tile_scheduler.hpp"

namespace switchyard {

struct OneThread {
  uint32_t idx = 0;

  uint32_t block_idx() const { return idx; }
  bool is_producer_leader() const { return true; }
  uint32_t increment_wrapping(uint32_t* word, uint32_t last) const {
    const uint32_t old = *word;
    *word = old >= last ? 0 : old + 1;
    return old;
  }
  void publish(uint32_t* mailbox, uint32_t value) const { *mailbox = value; }
  uint32_t receive(const uint32_t* mailbox) const { return *mailbox; }
  void sync_producer() const {}
  void sync_all() const {}
};
static_assert(TileEnvironment<OneThread>);

}  // namespace switchyard
