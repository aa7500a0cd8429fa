// Runs the threads of its blocks on one OS thread: round-robin (fast mode) or in an order drawn from a seed
// (simulated mode).
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "block.hpp"

namespace switchyard::emulator {

class WeakMemory;

// What an executor tells its machine.
class ExecutorHost {
 public:
  virtual ~ExecutorHost() = default;
  virtual void on_block_finished(Launch& launch) = 0;
  virtual void fail(Status status) = 0;
};

// The Status of a failed allocation for `what`. It needs no memory itself, if need be at the cost of detail.
[[gnu::format(printf, 1, 2)]] Status out_of_memory(const char* what, ...);

// The random numbers of the seed. An engine of <random> will not do: another translation unit may compile it
// with a sanitizer, and the linker may pick that copy.
struct Random {
  uint64_t state;
  uint64_t operator()() {
    uint64_t value = state += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
  }
};

// Threads ready to run, oldest first. push() never allocates: see WaitList.
class ReadyQueue {
 public:
  void reserve(size_t capacity);
  void push(Thread* thread) { ring_[(head_ + size_++) & (ring_.size() - 1)] = thread; }
  void push_front(Thread* thread) {
    head_ = (head_ - 1) & (ring_.size() - 1);
    ring_[head_] = thread;
    ++size_;
  }
  Thread* pop() {
    Thread* thread = ring_[head_];
    head_ = (head_ + 1) & (ring_.size() - 1);
    --size_;
    return thread;
  }
  void bring_to_front(size_t position) {
    std::swap(ring_[head_], ring_[(head_ + position) & (ring_.size() - 1)]);
  }
  void clear() { size_ = 0; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::vector<Thread*> ring_;  // its size is a power of two
  size_t head_ = 0;
  size_t size_ = 0;
};

class Executor {
 public:
  // With a seed, the order is drawn from it and time is virtual; without, threads run round-robin in real
  // time.
  Executor(ExecutorHost& host, std::optional<uint64_t> seed, uint64_t max_resident_threads);

  void add_block(Launch& launch, uint32_t block_idx);
  bool has_blocks() const { return !blocks_.empty() || !pending_.empty(); }
  // Runs threads until none is ready, or for a bounded number of switches. Returns false if all of them only
  // waited.
  bool run_some();
  // Called when no other thread will act: what is in flight on the wire arrives; if nothing is, a wait with a
  // deadline expires now (in virtual time), and anything else is a deadlock.
  void resolve_stuck();
  bool all_waits_unbounded() const;
  // Returns whether every thread waits in a barrier or collective, which only its own block could complete.
  bool only_barriers_left() const { return !blocks_.empty() && ready_.empty() && spinning_.empty(); }
  void abandon_all();

  void suspend_current(Thread& self, ThreadPhase phase, const char* word, Where where);
  void make_ready(Thread& thread, RunOrder order);
  // Abandons the running thread, and stops the machine with this status.
  [[noreturn]] void fail_current(Thread& self, Status status);
  void fail(Status status) { host_.fail(std::move(status)); }
  bool should_preempt() { return random_() % 4 == 0; }
  uint64_t now_ns() const;
  uint64_t trace_hash() const { return trace_hash_; }
  std::string recent_events(const Stream* stream) const;
  std::string describe_waits() const;

  WeakMemory* weak_memory = nullptr;  // null: memory is not weak

 private:
  // Where a thread last yielded.
  struct Event {
    uint64_t virtual_ns;
    uint64_t launch_sequence;
    uint32_t block_idx;
    uint32_t thread_idx;
    const char* word;
    Where where;
  };
  struct RecentEvents {
    static constexpr size_t kCapacity = 12;
    std::array<Event, kCapacity> ring;
    size_t num_noted = 0;
  };

  struct PendingBlock {
    Launch* launch;
    uint32_t block_idx;
  };

  void admit_pending();
  void step(Thread& thread);
  void finish(Thread& thread);
  bool may_go_on(Thread& thread, uint64_t now_ns) const;
  bool unpark_spinners();
  void trace(uint64_t value);
  void note_event(const Thread& thread);

  ExecutorHost& host_;
  const bool simulated_;
  const uint64_t max_resident_threads_;
  Random random_;
  std::deque<PendingBlock> pending_;
  std::unordered_map<Block*, std::unique_ptr<Block>> blocks_;
  std::unique_ptr<Block> finished_block_;  // kept until the switch that ended it is over
  uint64_t num_resident_threads_ = 0;
  ReadyQueue ready_;
  uint32_t num_run_ahead_ = 0;
  std::vector<Thread*> spinning_;
  bool block_has_ended_ = false;  // simulated mode: in this round
  uint64_t progress_epoch_ = 1;
  uint64_t virtual_now_ns_ = 0;
  std::unordered_map<const Stream*, RecentEvents> events_;
  uint64_t trace_hash_ = 0xcbf29ce484222325ull;
};

}  // namespace switchyard::emulator
