#include "weak_memory.hpp"

#include <cstring>
#include <string_view>

#include "weak_lines.hpp"

namespace switchyard::emulator {
namespace {

constexpr size_t kMaxWritesPerLine = 16;

bool acquires(Order order) { return order == Order::kAcquire || order == Order::kAcqRel; }
bool releases(Order order) { return order == Order::kRelease || order == Order::kAcqRel; }

bool matches(std::string_view name, std::string_view pattern) {
  for (;;) {
    const size_t star = pattern.find('*');
    const std::string_view piece = pattern.substr(0, star);
    const size_t found = name.find(piece);
    if (found == std::string_view::npos) return false;
    if (star == std::string_view::npos) return true;
    name.remove_prefix(found + piece.size());
    pattern.remove_prefix(star + 1);
  }
}

}  // namespace

// Streams, launches and blocks.

WeakMemory::StreamState& WeakMemory::state_of(const Stream* stream) {
  std::unique_ptr<StreamState>& state = streams_[stream];
  if (state == nullptr) {
    state = std::make_unique<StreamState>();
    state->index = static_cast<uint32_t>(streams_.size() - 1);
  }
  return *state;
}

WeakMemory::Actor& WeakMemory::add_actor(uint32_t stream_idx, uint32_t block_idx) {
  const uint32_t index = static_cast<uint32_t>(actors_.size());
  actors_.push_back(
      std::make_unique<Actor>(Actor{.index = index, .stream_idx = stream_idx, .block_idx = block_idx}));
  return *actors_.back();
}

WeakMemory::Actor& WeakMemory::actor_of(const Thread& thread) {
  return *actors_[thread.block->warps[thread.thread_idx / kWarpSize].actor];
}

void WeakMemory::on_enqueue(Launch& launch) {
  launch.knowledge = host_;
  state_of(launch.stream).is_known_to_host = false;
}

void WeakMemory::on_start(Launch& launch) { launch.knowledge.join(state_of(launch.stream).at_end); }

void WeakMemory::start_block(Block& block) {
  block.shared_generation = ++last_generation_;
  StreamState& state = state_of(block.launch.stream);
  const uint32_t block_idx = block.threads.front().block_idx;
  for (uint32_t warp_idx = 0; warp_idx < block.warps.size(); ++warp_idx) {
    const auto [entry, is_new] = state.actors.try_emplace({block_idx, warp_idx}, kNoActor);
    if (is_new) entry->second = add_actor(state.index, block_idx).index;
    block.warps[warp_idx].actor = entry->second;
    Actor& actor = *actors_[entry->second];
    actor.knowledge.clear();
    actor.knowledge.join(block.launch.knowledge);
    actor.begin_epoch();
    if (actor.bulk_actor != kNoActor) actors_[actor.bulk_actor]->begin_epoch();
  }
}

void WeakMemory::end_block(Block& block) {
  for (Thread& thread : block.threads) make_unread_bulk_stores(thread, UINT32_MAX);
  if (!block.unmade_bulk_loads.empty()) {
    const Where where = block.unmade_bulk_loads.front().where;
    block.executor.fail(internal_error("%s: block %u ends before the bulk load at %s:%u has completed",
                                       block.launch.name.c_str(), block.threads.front().block_idx,
                                       file_of(where), where.line()));
  }
  StreamState& state = state_of(block.launch.stream);
  const auto join_actor = [&](const Actor& actor) {
    join(state.at_end.before, actor.knowledge.before);
    join(state.at_end.seen, actor.knowledge.seen);
    join(state.at_end.over, actor.knowledge.over);
  };
  for (const Warp& warp : block.warps) {
    const Actor& actor = *actors_[warp.actor];
    join_actor(actor);
    if (actor.bulk_actor != kNoActor) join_actor(*actors_[actor.bulk_actor]);
  }
  const uint32_t block_idx = block.threads.front().block_idx;
  for (auto it = state.actors.lower_bound({block_idx, StreamState::kFirstBarrier});
       it != state.actors.end() && it->first.first == block_idx; ++it)
    join_actor(*actors_[it->second]);
}

void WeakMemory::on_synchronized(const Stream* stream) {
  bool all_known = true;
  for (const auto& [key, state] : streams_) {
    if (stream == nullptr || key == stream) {
      host_.join(state->at_end);
      state->is_known_to_host = true;
    }
    all_known &= state->is_known_to_host;
  }
  if (all_known) forget_all();
}

// Everything that was written comes before everything that will run.
void WeakMemory::forget_all() {
  generation_ = ++last_generation_;
  is_touched_ = false;
  transfers_.clear();
  forget_traffic_history();
}

void WeakMemory::forget(const void* memory, uint64_t bytes) {
  if (!is_touched_) return;
  const uintptr_t first = reinterpret_cast<uintptr_t>(memory) / kLineBytes;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(memory) + bytes + kLineBytes - 1) / kLineBytes;
  if (last - first > lines_->size()) {
    std::erase_if(*lines_, [&](const auto& entry) { return entry.first >= first && entry.first < last; });
    return;
  }
  for (uintptr_t key = first; key < last; ++key) lines_->erase(key);
}

void WeakMemory::add_range(const void* memory, uint64_t bytes) {
  forget(memory, bytes);
  ranges_[reinterpret_cast<uintptr_t>(memory)] = reinterpret_cast<uintptr_t>(memory) + bytes;
}

void WeakMemory::remove_range(const void* memory) {
  const auto range = ranges_.find(reinterpret_cast<uintptr_t>(memory));
  if (range == ranges_.end()) return;
  drop_traffic(range->first, range->second);
  ranges_.erase(range);
}

// Barriers.

void WeakMemory::release(Thread& self, Knowledge& knowledge) {
  Actor& actor = actor_of(self);
  knowledge.join(actor.knowledge);
  actor.begin_epoch();
}

void WeakMemory::acquire(Thread& self, const Knowledge& knowledge) {
  actor_of(self).knowledge.join(knowledge);
}

void WeakMemory::transfer_init(const uint64_t* barrier) { transfers_.erase(barrier); }

// What the threads that have arrived in the current phase know.
Knowledge& WeakMemory::arrived_at(const uint64_t* barrier) {
  const uint32_t phase = transfer_phase(barrier);
  Transfer& transfer = transfers_[barrier];
  if (std::exchange(transfer.phase, phase) != phase) transfer.arrived[phase].clear();  // of two phases ago
  return transfer.arrived[phase];
}

void WeakMemory::transfer_release(Thread& self, const uint64_t* barrier) {
  release(self, arrived_at(barrier));
}

void WeakMemory::transfer_acquire(Thread& self, const uint64_t* barrier, uint32_t phase) {
  acquire(self, transfers_[barrier].arrived[phase]);
}

// Words.

bool WeakMemory::is_mutant(WordKind kind, Where where) {
  if (!mutant_ || mutant_->kind != kind) return false;
  const auto [entry, is_new] = is_mutant_.try_emplace(where.function_name(), false);
  if (is_new) entry->second = matches(where.function_name(), mutant_->function);
  return entry->second;
}

void WeakMemory::mutate(WeakAccess& access) {
  if (!is_mutant(access.kind, access.where)) return;
  access.order = mutant_->order;
  access.scope = mutant_->scope.value_or(access.scope);
}

void WeakMemory::check_range(Thread& self, const WeakAccess& access) {
  if (is_shared(self, access.address)) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(access.address);
  const auto after = ranges_.upper_bound(begin);
  if (ranges_.empty() || (after != ranges_.begin() && begin + access.bytes <= std::prev(after)->second))
    return;
  self.block->executor.fail_current(
      self, internal_error(
                "%s, block %u, thread %u: %s at %s:%u touches %p, which is no memory of the device",
                self.block->launch.name.c_str(), self.block_idx, self.thread_idx,
                access.where.function_name(), file_of(access.where), access.where.line(), access.address));
}

WeakMemory::Location WeakMemory::locate(Thread& self, const WeakAccess& access) {
  check_range(self, access);
  return location_of(access, is_shared(self, access.address) ? self.block->shared_generation : generation_);
}

WeakMemory::Location WeakMemory::location_of(const WeakAccess& access, uint64_t generation) {
  is_touched_ = true;
  const uintptr_t address = reinterpret_cast<uintptr_t>(access.address);
  Location location{.line = (*lines_)[address / kLineBytes],
                    .offset = static_cast<uint32_t>(address % kLineBytes),
                    .mask = static_cast<uint16_t>(((1u << access.bytes) - 1) << address % kLineBytes)};
  std::memcpy(location.memory.at(location.offset), access.address, access.bytes);
  // A line that the host, or a plain store of a kernel, has written since has no history.
  Line& line = location.line;
  if (line.generation != generation ||
      !line.compose(location.memory, kNewest).equals(location.memory, line.known_mask & location.mask)) {
    line.clear();
    line.generation = generation;
  }
  return location;
}

WeakMemory::View WeakMemory::view_of(Thread& self) {
  const Knowledge& knowledge = actor_of(self).knowledge;
  return {knowledge.before, knowledge.before, knowledge.seen, knowledge.over};
}

// The oldest write that an access may read: the newest one that comes before the access, or that a read that
// comes before the access has returned.
uint64_t WeakMemory::floor_of(const View& view, const Location& location) const {
  uint64_t floor = 0;
  for (size_t i = location.line.writes.size(); i-- > 0;) {
    const Write& write = location.line.writes[i];
    if ((write.mask & location.mask) == 0 || !view.knows(write.actor, write.epoch)) continue;
    floor = write.sequence;
    break;
  }
  for (const Read& read : location.line.reads)
    if ((read.mask & location.mask) != 0 && read.sequence > floor && view.knows(read.actor, read.epoch))
      floor = read.sequence;
  return floor;
}

// The write as of which a load reads: the newest, or with probability 1/2 any that it may.
uint64_t WeakMemory::choose(const View& view, const Location& location) {
  const std::vector<Write>& writes = location.line.writes;
  if (writes.empty()) return kNewest;
  const uint64_t floor = floor_of(view, location);
  uint32_t num_newer = 0;
  for (const Write& write : writes) num_newer += write.sequence > floor && (write.mask & location.mask) != 0;
  if (num_newer == 0) return kNewest;
  const uint64_t drawn = random_();
  const uint64_t chosen = (drawn & 1u) != 0 ? num_newer : (drawn >> 1) % (num_newer + 1);
  trace_hash_ = (trace_hash_ ^ (chosen + 1)) * 0x100000001b3ull;
  if (chosen == 0) return floor;
  uint64_t num_left = chosen;
  for (const Write& write : writes)
    if (write.sequence > floor && (write.mask & location.mask) != 0 && --num_left == 0) return write.sequence;
  return kNewest;
}

bool WeakMemory::are_mutual(const Actor& writer, Scope writer_scope, const Actor& reader,
                            Scope reader_scope) const {
  switch (std::min(writer_scope, reader_scope)) {
    case Scope::kBlock:
      return writer.stream_idx == reader.stream_idx && writer.block_idx == reader.block_idx;
    case Scope::kDevice:
      return writer.stream_idx == reader.stream_idx;
    case Scope::kSystem:
      return true;
  }
  return false;
}

// Joins what the write carries to the actor's clock, and records the read.
void WeakMemory::observe(Actor& actor, const WeakAccess& access, const Location& location, uint64_t as_of,
                         Looking looking) {
  const Write* write = location.line.newest(location.mask, as_of);
  if (write != nullptr && write->published != nullptr) {
    join(actor.knowledge.seen, write->published->seen);
    if (access.is_atomic && acquires(access.order))
      for (const Published::Release& release : write->published->releases)
        if (are_mutual(*actors_[release.actor], release.scope, actor, access.scope)) {
          join(actor.knowledge.before, release.before);
          join(actor.knowledge.over, release.over);
        }
  }
  note_read(actor.index, actor.epoch, location, as_of, looking, access.where);
}

void WeakMemory::note_read(uint32_t actor, uint32_t epoch, const Location& location, uint64_t as_of,
                           Looking looking, Where where) {
  const Write* write = location.line.newest(location.mask, as_of);
  const uint64_t sequence = write == nullptr ? 0 : write->sequence;
  Read* read = nullptr;
  for (Read& earlier : location.line.reads)
    if (earlier.actor == actor && earlier.mask == location.mask) read = &earlier;
  if (read == nullptr)
    read = &location.line.reads.emplace_back(
        Read{.actor = actor, .mask = location.mask, .sequence = sequence, .epoch = epoch, .where = where});
  if (sequence > read->sequence) {
    read->sequence = sequence;
    read->epoch = epoch;
  }
  if (looking == Looking::kInAWait) return;
  (looking == Looking::kNow ? read->checked_epoch : read->any_time_epoch) = epoch;
  read->where = where;
}

// A store that is ordered after earlier accesses only through values read without order may overtake them: an
// earlier load may return it, an earlier store may land on top of it. The simulation cannot continue with
// such a value.
void WeakMemory::check_not_overtaking(const View& view, Thread& self, const WeakAccess& access,
                                      const Location& location, bool is_signal) {
  if (mutant_ && !mutant_->stops_at_overtaking) return;
  const char* what = nullptr;
  uint32_t overtaken = 0;
  Where where;
  for (const Read& read : location.line.reads) {
    const uint32_t epoch = is_signal ? read.checked_epoch : std::max(read.checked_epoch, read.any_time_epoch);
    if ((read.mask & location.mask) == 0 || epoch == 0 || view.is_over(read.actor, epoch) ||
        !view.has_heard_of(read.actor, epoch))
      continue;
    what = "load", overtaken = read.actor, where = read.where;
  }
  const bool is_contested = (location.line.contested_mask & location.mask) == location.mask;
  const Write* newest = is_contested ? nullptr : location.line.newest(location.mask, kNewest);
  if (newest != nullptr && !view.is_over(newest->actor, newest->epoch) &&
      view.has_heard_of(newest->actor, newest->epoch) && floor_of(view, location) < newest->sequence)
    what = "store", overtaken = newest->actor, where = newest->where;
  if (what == nullptr) return;
  const Actor& other = *actors_[overtaken];
  self.block->executor.fail_current(
      self, internal_error(
                "%s, block %u, thread %u: the store at %s:%u may overtake the %s at %s:%u of block %u of "
                "stream %u: nothing orders them",
                self.block->launch.name.c_str(), self.block_idx, self.thread_idx, file_of(access.where),
                access.where.line(), what, file_of(where), where.line(), other.block_idx, other.stream_idx));
}

std::shared_ptr<const WeakMemory::Published> WeakMemory::publish(Actor& actor, const WeakAccess& access,
                                                                 const Write* continued) {
  if (!access.is_atomic) return nullptr;
  auto published = std::make_shared<Published>();
  published->seen = actor.knowledge.seen;
  if (continued != nullptr && continued->published != nullptr)
    published->releases = continued->published->releases;
  if (releases(access.order)) {
    std::erase_if(published->releases, [&](const Published::Release& release) {
      return release.actor == actor.index && release.scope <= access.scope;
    });
    published->releases.push_back({actor.index, access.scope, actor.knowledge.before, actor.knowledge.over});
  }
  return published;
}

void WeakMemory::append(uint32_t actor, uint32_t epoch, const WeakAccess& access, const Location& location,
                        const void* value, std::shared_ptr<const Published> published) {
  Line& line = location.line;
  line.base.overlay(location.memory, location.mask & ~line.known_mask);
  line.known_mask |= location.mask;
  if (line.writes.size() == kMaxWritesPerLine) {
    line.base.overlay(line.writes.front().bytes, line.writes.front().mask);
    line.writes.erase(line.writes.begin());
  }
  Write write{.sequence = next_sequence_++,
              .actor = actor,
              .epoch = epoch,
              .mask = location.mask,
              .published = std::move(published),
              .where = access.where};
  std::memcpy(write.bytes.at(location.offset), value, access.bytes);
  std::memcpy(const_cast<void*>(access.address), value, access.bytes);
  line.writes.push_back(std::move(write));
}

void WeakMemory::load(Thread& self, WeakAccess access, void* value) {
  // The kernel says itself that it wants no order, as where it looks for poison.
  const bool may_be_any = access.is_atomic && access.order == Order::kRelaxed;
  mutate(access);
  Actor& actor = actor_of(self);
  const Location location = locate(self, access);
  // A wait's predicate reads the newest value: waiting longer would show nothing new, and the wait must end.
  const bool is_polling = !self.preemptible;
  const uint64_t as_of = is_polling ? kNewest : choose(view_of(self), location);
  LineBytes bytes = location.line.compose(location.memory, as_of);
  std::memcpy(value, bytes.at(location.offset), access.bytes);
  observe(actor, access, location, as_of,
          is_polling   ? Looking::kInAWait
          : may_be_any ? Looking::kAnyTime
                       : Looking::kNow);
}

void WeakMemory::store(Thread& self, WeakAccess access, const void* value) {
  mutate(access);
  Actor& actor = actor_of(self);
  const Location location = locate(self, access);
  check_not_overtaking(view_of(self), self, access, location);
  append(actor.index, actor.epoch, access, location, value, publish(actor, access, nullptr));
  if (access.is_atomic) actor.begin_epoch();
}

void WeakMemory::modify(Thread& self, WeakAccess access, void* old, ModifyFunction modify,
                        const void* operands) {
  mutate(access);
  Actor& actor = actor_of(self);
  const Location location = locate(self, access);
  if (access.kind == WordKind::kCompareExchange) location.line.contested_mask |= location.mask;
  std::memcpy(old, access.address, access.bytes);
  alignas(16) std::byte value[kLineBytes];
  std::memcpy(value, old, access.bytes);
  const bool is_modified = modify(value, operands);
  observe(actor, access, location, kNewest, Looking::kInAWait);
  if (!is_modified) return;
  append(actor.index, actor.epoch, access, location, value,
         publish(actor, access, location.line.newest(location.mask, kNewest)));
  if (access.is_atomic) actor.begin_epoch();
}

}  // namespace switchyard::emulator
