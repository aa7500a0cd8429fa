// The wire in the weak memory: what is put arrives in pieces, in any order, at any time that the signals
// allow.
#include <algorithm>
#include <tuple>

#include "weak_lines.hpp"

namespace switchyard::emulator {

struct WeakMemory::WireTraffic {
  // The puts of one warp to one peer. Each is an epoch of their actor: who knows an epoch knows the puts
  // before it, since whatever orders a put of the warp orders the ones before it, too.
  struct Route {
    uint32_t actor;
    std::vector<std::pair<uint32_t, uint32_t>> puts;  // (epoch of the warp, epoch of the put), oldest first
  };
  // A settle, and the puts that it covers, by the actors of their routes. A later settle of the same warp
  // covers at least the same puts.
  struct Settle {
    uint32_t epoch;  // of the warp
    Clock puts;
  };
  struct Piece {
    std::byte* dst;
    const std::byte* src;
    uint64_t bytes;
    uint32_t actor, epoch;                // of the put
    std::shared_ptr<const Clock> before;  // what came before the put, and so before its read of the source
    Where where;
  };
  struct Signal {
    uint64_t* cell;
    uint64_t value;
    Clock settled;     // the puts that arrive first, and that the signal makes known
    Clock seen, over;  // what the warp that sent it passes on besides
    Where where;
  };

  std::map<std::tuple<int, int, uint32_t>, Route> routes;  // (rank, peer, the warp's actor)
  std::map<uint32_t, std::vector<Settle>> settles;         // [the warp's actor], oldest first
  std::vector<Piece> pieces;                               // in flight, in no order
  std::vector<Signal> signals;                             // the same
  uint32_t signal_actor = kNoActor;                        // nobody learns its epoch
  uint64_t steps_per_delivery = 1;

  bool may_arrive(const Signal& signal) const {
    return std::none_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
      return known_epoch(signal.settled, piece.actor) >= piece.epoch;
    });
  }
};

namespace {

constexpr uint64_t kMaxPieces = 4;  // of a put

// The part of [address, address + bytes) that lies in the first line.
uint32_t bytes_in_line(const void* address, uint64_t bytes) {
  return static_cast<uint32_t>(
      std::min(bytes, kLineBytes - reinterpret_cast<uintptr_t>(address) % kLineBytes));
}

WeakAccess line_access(const void* address, uint64_t bytes, WordKind kind, Where where) {
  return {address, bytes_in_line(address, bytes), kind, Order::kRelaxed, Scope::kSystem, false, where};
}

// Calls visit(access, offset) for each line of the memory.
template <typename Visit>
void for_each_line(const void* memory, uint64_t bytes, WordKind kind, Where where, Visit visit) {
  for (uint64_t at = 0; at < bytes;) {
    const WeakAccess access =
        line_access(static_cast<const std::byte*>(memory) + at, bytes - at, kind, where);
    visit(access, at);
    at += access.bytes;
  }
}

template <typename Item>
Item take(std::vector<Item>& items, size_t index) {
  std::swap(items[index], items.back());
  Item item = std::move(items.back());
  items.pop_back();
  return item;
}

}  // namespace

WeakMemory::WeakMemory(uint64_t seed, std::optional<OrderMutant> mutant)
    : random_{seed ^ 0x7765616bull},
      mutant_(std::move(mutant)),
      lines_(std::make_unique<Lines>()),
      wire_(std::make_unique<WireTraffic>()) {
  // From a wire as fast as the threads to one on which nothing arrives before all of them wait.
  Random wire_random{seed ^ 0x77697265ull};
  wire_->steps_per_delivery = uint64_t{1} << wire_random() % 5 * 4;
}
WeakMemory::~WeakMemory() = default;

void WeakMemory::wire_put(Thread& self, int rank, int peer, void* peer_dst, const void* src, uint64_t bytes,
                          Where where) {
  Actor& warp = actor_of(self);
  for_each_line(src, bytes, WordKind::kLoad, where,
                [&](const WeakAccess& access, uint64_t) { locate(self, access); });
  for_each_line(peer_dst, bytes, WordKind::kStore, where, [&](const WeakAccess& access, uint64_t) {
    check_not_overtaking(view_of(self), self, access, locate(self, access));
  });
  const auto [entry, is_new] = wire_->routes.try_emplace({rank, peer, warp.index});
  WireTraffic::Route& route = entry->second;
  if (is_new) route.actor = add_actor(warp.stream_idx, warp.block_idx).index;
  Actor& put = *actors_[route.actor];
  put.begin_epoch();
  route.puts.emplace_back(warp.epoch, put.epoch);
  const auto before = std::make_shared<const Clock>(warp.knowledge.before);
  const uint64_t num_pieces = 1 + random_() % kMaxPieces;
  for (uint64_t at = 0, i = 1; at < bytes; ++i) {
    const uint64_t left = bytes - at;
    const uint64_t size = i == num_pieces ? left : 1 + random_() % left;
    wire_->pieces.push_back({static_cast<std::byte*>(peer_dst) + at, static_cast<const std::byte*>(src) + at,
                             size, put.index, put.epoch, before, where});
    at += size;
  }
}

void WeakMemory::wire_settle(Thread& self, int rank, Where where) {
  const bool is_wrong = is_mutant(WordKind::kWireSettle, where);
  if (is_wrong && mutant_->order == Order::kRelaxed) return;
  const bool is_of_block = is_wrong && mutant_->scope == Scope::kBlock;
  const Actor& warp = actor_of(self);
  Clock covered;
  for (const auto& [key, route] : wire_->routes) {
    const auto& [route_rank, peer, putter] = key;
    if (route_rank != rank) continue;
    if (is_of_block && !are_mutual(*actors_[putter], Scope::kBlock, warp, Scope::kBlock)) continue;
    const uint32_t known = known_epoch(warp.knowledge.before, putter);
    const auto last = std::find_if(route.puts.rbegin(), route.puts.rend(),
                                   [&](const auto& put) { return put.first <= known; });
    if (last != route.puts.rend()) learn(covered, route.actor, last->second);
  }
  wire_->settles[warp.index].push_back({warp.epoch, std::move(covered)});
}

void WeakMemory::wire_signal(Thread& self, int rank, int peer, uint64_t* peer_cell, uint64_t value,
                             Where where) {
  Actor& warp = actor_of(self);
  const WeakAccess access = line_access(peer_cell, sizeof(value), WordKind::kStore, where);
  check_not_overtaking(view_of(self), self, access, locate(self, access), /*is_signal=*/true);
  Clock settled, settled_towards_peer;
  for (const auto& [settler, settles] : wire_->settles) {
    const uint32_t known = known_epoch(warp.knowledge.before, settler);
    const auto last = std::find_if(settles.rbegin(), settles.rend(),
                                   [&](const auto& settle) { return settle.epoch <= known; });
    if (last != settles.rend()) join(settled, last->puts);
  }
  if (is_mutant(WordKind::kWireSignal, where)) settled.clear();
  for (const auto& [key, route] : wire_->routes)
    if (std::get<0>(key) == rank && std::get<1>(key) == peer)
      learn(settled_towards_peer, route.actor, known_epoch(settled, route.actor));
  Clock over = warp.knowledge.before;
  join(over, warp.knowledge.over);
  wire_->signals.push_back(
      {peer_cell, value, std::move(settled_towards_peer), warp.knowledge.seen, std::move(over), where});
  warp.begin_epoch();
}

void WeakMemory::deliver_piece(size_t index) {
  const WireTraffic::Piece piece = take(wire_->pieces, index);
  const View view{*piece.before, *piece.before, *piece.before, *piece.before};
  const auto read_source = [&](uint64_t at, uint32_t num_bytes, std::byte* value) {
    const auto read_line = [&](const WeakAccess& load, uint64_t offset) {
      const Location location = location_of(load, generation_);
      LineBytes bytes = location.line.compose(location.memory, choose(view, location));
      std::memcpy(value + offset, bytes.at(location.offset), load.bytes);
    };
    for_each_line(piece.src + at, num_bytes, WordKind::kLoad, piece.where, read_line);
  };
  const auto write_line = [&](const WeakAccess& store, uint64_t at) {
    std::byte value[kLineBytes] = {};
    read_source(at, store.bytes, value);
    append(piece.actor, piece.epoch, store, location_of(store, generation_), value, nullptr);
  };
  for_each_line(piece.dst, piece.bytes, WordKind::kStore, piece.where, write_line);
}

void WeakMemory::deliver_signal(size_t index) {
  if (wire_->signal_actor == kNoActor)
    wire_->signal_actor = add_actor(/*stream_idx=*/kNoActor, /*block_idx=*/0).index;
  WireTraffic::Signal signal = take(wire_->signals, index);
  auto published = std::make_shared<Published>();
  published->seen = std::move(signal.seen);
  join(published->seen, signal.settled);
  published->releases.push_back(
      {wire_->signal_actor, Scope::kSystem, std::move(signal.settled), std::move(signal.over)});
  const WeakAccess access = line_access(signal.cell, sizeof(signal.value), WordKind::kStore, signal.where);
  append(wire_->signal_actor, /*epoch=*/1, access, location_of(access, generation_), &signal.value,
         std::move(published));
}

// Draws one of what is in flight, and delivers it unless it is a signal that must wait.
bool WeakMemory::deliver_one() {
  const size_t num_pieces = wire_->pieces.size();
  const size_t drawn = random_() % (num_pieces + wire_->signals.size());
  const bool is_piece = drawn < num_pieces;
  if (!is_piece && !wire_->may_arrive(wire_->signals[drawn - num_pieces])) return false;
  trace_hash_ = (trace_hash_ ^ (drawn + 1)) * 0x100000001b3ull;
  if (is_piece)
    deliver_piece(drawn);
  else
    deliver_signal(drawn - num_pieces);
  return true;
}

bool WeakMemory::deliver_by_chance() {
  if (wire_->pieces.empty() && wire_->signals.empty()) return false;
  return random_() % wire_->steps_per_delivery == 0 && deliver_one();
}

bool WeakMemory::deliver_some() {
  const size_t num_in_flight = wire_->pieces.size() + wire_->signals.size();
  if (num_in_flight == 0) return false;
  for (uint64_t num_left = 1 + random_() % num_in_flight; num_left > 0;) num_left -= deliver_one();
  return true;
}

void WeakMemory::deliver_all() {
  while (deliver_some()) {
  }
}

// Every launch to come knows every epoch so far: the last put of a route and the last settle of a warp are
// enough.
void WeakMemory::forget_traffic_history() {
  const auto keep_last = [](auto& items) {
    if (items.size() > 1) items.erase(items.begin(), items.end() - 1);
  };
  for (auto& [key, route] : wire_->routes) keep_last(route.puts);
  for (auto& [settler, settles] : wire_->settles) keep_last(settles);
}

// The memory is freed while what is in flight to or from it may still arrive, as after a step that failed.
void WeakMemory::drop_traffic(uintptr_t begin, uintptr_t end) {
  const auto is_inside = [&](const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    return at >= begin && at < end;
  };
  std::erase_if(wire_->pieces,
                [&](const auto& piece) { return is_inside(piece.dst) || is_inside(piece.src); });
  std::erase_if(wire_->signals, [&](const auto& signal) { return is_inside(signal.cell); });
}

}  // namespace switchyard::emulator
