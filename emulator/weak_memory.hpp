// The weak memory of the simulated mode: a load may return any value that the kernels' releases, acquires and
// barriers do not forbid, drawn from the seed. docs/memory-model.md, "Simulating it", says what that shows
// and what it cannot.
//
// An actor is a warp of a block of a stream, the bulk stores of a warp, the bulk loads that complete on one
// transfer barrier, or the puts of a warp to a peer. The clock of a warp says, for every actor, up to which
// epoch it knows what that actor did. Memory itself always holds the newest value; in addition, each 16-byte
// line that kernels have accessed keeps its latest writes, with their actors and epochs. A write comes before
// an actor if the actor's clock covers its epoch. Fewer writes come before bulk copies and the matrix unit,
// which take another path to memory than loads and stores (PTX: the async and the generic proxy): View says
// which.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "executor.hpp"
#include "switchyard/detail/testing/order_mutant.hpp"

namespace switchyard::emulator {

class WeakMemory {
 public:
  WeakMemory(uint64_t seed, std::optional<OrderMutant> mutant);
  ~WeakMemory();

  // A launch starts with what the host knew when it enqueued the launch, and what the stream's previous
  // launch knew at its end.
  void on_enqueue(Launch& launch);
  void on_start(Launch& launch);
  void start_block(Block& block);
  void end_block(Block& block);
  // The host has waited for the stream; all streams if null.
  void on_synchronized(const Stream* stream);

  // Barriers: a thread adds what it knows to `knowledge`, and later learns what is in it.
  void release(Thread& self, Knowledge& knowledge);
  void acquire(Thread& self, const Knowledge& knowledge);
  void transfer_init(const uint64_t* barrier);
  void transfer_release(Thread& self, const uint64_t* barrier);
  void transfer_acquire(Thread& self, const uint64_t* barrier, uint32_t phase);

  void load(Thread& self, WeakAccess access, void* value);
  void store(Thread& self, WeakAccess access, const void* value);
  // Reads the newest value into `old` and stores what `modify` makes of it, unless `modify` returns false.
  void modify(Thread& self, WeakAccess access, void* old, ModifyFunction modify, const void* operands);
  // A warp joins the clock of the actor of its bulk stores when it waits for the group. The stores read their
  // source when they start, or as late as the thread's wait for that.
  void bulk_store(Thread& self, BulkCopy store);
  void bulk_commit(Thread& self);
  void bulk_wait_read(Thread& self, uint32_t num_pending);
  void bulk_wait(Thread& self, uint32_t num_pending, Where where);
  // Bulk loads are performed when they start, or when a thread next polls their barrier.
  void bulk_load(Thread& self, BulkCopy load);
  void make_bulk_loads(Thread& self, const uint64_t* barrier);
  void fence_proxy(Thread& self, FencedMemory memory, Where where);
  void matrix_load(Thread& self, const WeakAccess& access, void* value);

  // The wire between ranks (weak_wire.cpp): puts and signals are in flight until they are delivered.
  // Addresses at the peer are where its memory really is.
  void wire_put(Thread& self, int rank, int peer, void* peer_dst, const void* src, uint64_t bytes,
                Where where);
  void wire_settle(Thread& self, int rank, Where where);
  void wire_signal(Thread& self, int rank, int peer, uint64_t* peer_cell, uint64_t value, Where where);
  // Called between any two steps of threads: delivers what the seed says, if anything.
  bool deliver_by_chance();
  // No thread can go on: delivers something, unless nothing is in flight.
  bool deliver_some();
  void deliver_all();

  // Memory that kernels may access. Until the first call they may access any memory; from then on any other
  // access is an error.
  void add_range(const void* memory, uint64_t bytes);
  void remove_range(const void* memory);
  // The host has written this memory, while no kernel was using it.
  void forget(const void* memory, uint64_t bytes);

  uint64_t trace_hash() const { return trace_hash_; }

 private:
  struct Actor;
  struct StreamState;
  struct Line;
  struct Lines;
  struct Write;
  struct Read;
  struct Published;
  struct Location;
  struct View;
  struct WireTraffic;
  struct Transfer {
    uint32_t phase = 0;
    std::array<Knowledge, 2> arrived;  // [phase]
  };

  Actor& actor_of(const Thread& thread);
  StreamState& state_of(const Stream* stream);
  Actor& bulk_actor_of(Actor& actor);
  Actor& load_actor_of(const Thread& self, const uint64_t* barrier);
  Knowledge& arrived_at(const uint64_t* barrier);
  Actor& add_actor(uint32_t stream_idx, uint32_t block_idx);
  bool is_mutant(WordKind kind, Where where);
  void mutate(WeakAccess& access);
  Location locate(Thread& self, const WeakAccess& access);
  Location location_of(const WeakAccess& access, uint64_t generation);
  View view_of(Thread& self);
  View bulk_view_of(Thread& self, const void* address);
  void check_bulk_copy(Thread& self, const BulkCopy& copy);
  void make_bulk_copy(Thread& self, const BulkCopy& copy);
  void make_bulk_load(Thread& self, const BulkCopy& load);
  void make_unread_bulk_stores(Thread& self, uint32_t up_to_epoch);
  bool deliver_one();
  void deliver_piece(size_t index);
  void deliver_signal(size_t index);
  void forget_traffic_history();
  void drop_traffic(uintptr_t begin, uintptr_t end);
  // How a thread reads: in the predicate of a wait, by a relaxed atomic load, or in any other way.
  enum class Looking { kInAWait, kAnyTime, kNow };
  void check_range(Thread& self, const WeakAccess& access);
  uint64_t floor_of(const View& view, const Location& location) const;
  uint64_t choose(const View& view, const Location& location);
  void observe(Actor& actor, const WeakAccess& access, const Location& location, uint64_t as_of,
               Looking looking);
  void note_read(uint32_t actor, uint32_t epoch, const Location& location, uint64_t as_of, Looking looking,
                 Where where);
  void check_not_overtaking(const View& view, Thread& self, const WeakAccess& access,
                            const Location& location, bool is_signal = false);
  std::shared_ptr<const Published> publish(Actor& actor, const WeakAccess& access, const Write* continued);
  void append(uint32_t actor, uint32_t epoch, const WeakAccess& access, const Location& location,
              const void* value, std::shared_ptr<const Published> published);
  bool are_mutual(const Actor& writer, Scope writer_scope, const Actor& reader, Scope reader_scope) const;
  void forget_all();

  Random random_;
  const std::optional<OrderMutant> mutant_;
  std::unordered_map<const char*, bool> is_mutant_;  // by function name
  std::vector<std::unique_ptr<Actor>> actors_;
  std::unordered_map<const Stream*, std::unique_ptr<StreamState>> streams_;
  Knowledge host_;
  const std::unique_ptr<Lines> lines_;
  uint64_t last_generation_ = 1;
  uint64_t generation_ = 1;  // lines of other generations are empty; each block's shared memory has its own
  bool is_touched_ = false;  // in this generation
  std::unordered_map<const uint64_t*, Transfer> transfers_;
  const std::unique_ptr<WireTraffic> wire_;
  std::map<uintptr_t, uintptr_t> ranges_;  // begin -> end
  uint64_t next_sequence_ = 1;
  uint64_t trace_hash_ = 0;
};

}  // namespace switchyard::emulator
