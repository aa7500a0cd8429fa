// Bulk copies, and the async proxy through which they and the matrix unit access memory.
#include "weak_lines.hpp"

namespace switchyard::emulator {
namespace {

// What a bulk copy does to the line `at` bytes from its beginning, in its source or its destination.
WeakAccess line_of(const BulkCopy& copy, const void* end, WordKind kind, uint64_t at) {
  return {static_cast<const std::byte*>(end) + at,
          kLineBytes,
          kind,
          Order::kRelaxed,
          Scope::kBlock,
          false,
          copy.where};
}

}  // namespace

// What comes before a bulk copy that the thread starts now, in this memory.
WeakMemory::View WeakMemory::bulk_view_of(Thread& self, const void* address) {
  const Knowledge& knowledge = actor_of(self).knowledge;
  const Clock& fenced = is_shared(self, address) ? knowledge.fenced_shared : knowledge.fenced;
  return {self.block->launch.knowledge.before, fenced, knowledge.seen, fenced};
}

WeakMemory::Actor& WeakMemory::bulk_actor_of(Actor& actor) {
  if (actor.bulk_actor == kNoActor) {
    Actor& added = add_actor(actor.stream_idx, actor.block_idx);
    added.begin_epoch();
    actor.bulk_actor = added.index;
  }
  return *actors_[actor.bulk_actor];
}

WeakMemory::Actor& WeakMemory::load_actor_of(const Thread& self, const uint64_t* barrier) {
  StreamState& state = state_of(self.block->launch.stream);
  const auto barrier_idx = static_cast<uint32_t>(barrier - reinterpret_cast<const uint64_t*>(self.shared));
  const auto [entry, is_new] =
      state.actors.try_emplace({self.block_idx, StreamState::kFirstBarrier + barrier_idx}, kNoActor);
  if (is_new) entry->second = add_actor(state.index, self.block_idx).index;
  return *actors_[entry->second];
}

// Checks a bulk copy when it starts; only its reads and writes may come later. Called while the copy owns
// nothing: if the check fails, the fiber is abandoned.
void WeakMemory::check_bulk_copy(Thread& self, const BulkCopy& copy) {
  for (uint64_t at = 0; at < copy.bytes; at += kLineBytes) {
    if (copy.src != nullptr) locate(self, line_of(copy, copy.src, WordKind::kLoad, at));
    const WeakAccess access = line_of(copy, copy.dst, WordKind::kStore, at);
    check_not_overtaking(bulk_view_of(self, access.address), self, access, locate(self, access));
  }
}

// The write has the epoch in which the copy was started: an actor that knows that the copy has completed
// knows the write.
void WeakMemory::make_bulk_copy(Thread& self, const BulkCopy& copy) {
  const View view{self.block->launch.knowledge.before, copy.fenced_src, copy.fenced_src, copy.fenced_src};
  for (uint64_t at = 0; at < copy.bytes; at += kLineBytes) {
    LineBytes bytes;
    if (copy.src != nullptr) {
      const Location location = locate(self, line_of(copy, copy.src, WordKind::kLoad, at));
      const uint64_t as_of = choose(view, location);
      bytes = location.line.compose(location.memory, as_of);
      // A write over the source of a pending store shows in what the store then writes.
      if (copy.barrier != nullptr)
        note_read(copy.actor, copy.epoch, location, as_of, Looking::kNow, copy.where);
    }
    const WeakAccess access = line_of(copy, copy.dst, WordKind::kStore, at);
    append(copy.actor, copy.epoch, access, locate(self, access), bytes.at(0), nullptr);
  }
}

void WeakMemory::bulk_store(Thread& self, BulkCopy store) {
  const Actor& bulk_actor = bulk_actor_of(actor_of(self));
  store.actor = bulk_actor.index;
  store.epoch = bulk_actor.epoch;
  check_bulk_copy(self, store);
  store.fenced_src = bulk_view_of(self, store.src).also_before;
  if (random_() % 2 == 0)
    self.unread_bulk_stores.push_back(std::move(store));
  else
    make_bulk_copy(self, store);
}

void WeakMemory::make_unread_bulk_stores(Thread& self, uint32_t up_to_epoch) {
  std::vector<BulkCopy>& unread = self.unread_bulk_stores;
  size_t num_made = 0;
  while (num_made < unread.size() && unread[num_made].epoch <= up_to_epoch)
    make_bulk_copy(self, unread[num_made++]);
  unread.erase(unread.begin(), unread.begin() + static_cast<ptrdiff_t>(num_made));
}

void WeakMemory::bulk_commit(Thread& self) {
  Actor& bulk_actor = bulk_actor_of(actor_of(self));
  self.bulk_groups.push_back(bulk_actor.epoch);
  bulk_actor.begin_epoch();
}

void WeakMemory::bulk_wait_read(Thread& self, uint32_t num_pending) {
  if (self.bulk_groups.size() <= num_pending) return;
  make_unread_bulk_stores(self, *(self.bulk_groups.end() - num_pending - 1));
}

void WeakMemory::bulk_wait(Thread& self, uint32_t num_pending, Where where) {
  if (self.bulk_groups.size() <= num_pending || is_mutant(WordKind::kBulkWait, where)) return;
  bulk_wait_read(self, num_pending);
  const auto end = self.bulk_groups.end() - num_pending;
  Actor& actor = actor_of(self);
  actor.knowledge.learn_completed(actor.bulk_actor, *(end - 1));
  self.bulk_groups.erase(self.bulk_groups.begin(), end);
}

// Each load has an epoch of its own, so that knowing this phase of a barrier does not include the next one's.
void WeakMemory::bulk_load(Thread& self, BulkCopy load) {
  Actor& actor = load_actor_of(self, load.barrier);
  actor.begin_epoch();
  load.actor = actor.index;
  load.epoch = actor.epoch;
  check_bulk_copy(self, load);
  if (load.src != nullptr) load.fenced_src = bulk_view_of(self, load.src).also_before;
  if (random_() % 2 == 0)
    self.block->unmade_bulk_loads.push_back(std::move(load));
  else
    make_bulk_load(self, load);
}

void WeakMemory::make_bulk_load(Thread& self, const BulkCopy& load) {
  make_bulk_copy(self, load);
  arrived_at(load.barrier).learn_completed(load.actor, load.epoch);
  transfer_complete(load.barrier, static_cast<uint32_t>(load.bytes));
}

void WeakMemory::make_bulk_loads(Thread& self, const uint64_t* barrier) {
  std::erase_if(self.block->unmade_bulk_loads, [&](const BulkCopy& load) {
    if (load.barrier != barrier) return false;
    make_bulk_load(self, load);
    return true;
  });
}

void WeakMemory::fence_proxy(Thread& self, FencedMemory memory, Where where) {
  if (is_mutant(WordKind::kProxyFence, where)) return;
  Actor& actor = actor_of(self);
  Knowledge& knowledge = actor.knowledge;
  join(knowledge.fenced_shared, knowledge.before);
  if (memory == FencedMemory::kAll) join(knowledge.fenced, knowledge.before);
  actor.begin_epoch();
}

void WeakMemory::matrix_load(Thread& self, const WeakAccess& access, void* value) {
  const Location location = locate(self, access);
  LineBytes bytes =
      location.line.compose(location.memory, choose(bulk_view_of(self, access.address), location));
  std::memcpy(value, bytes.at(location.offset), access.bytes);
}

}  // namespace switchyard::emulator
