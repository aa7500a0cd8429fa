// The state of a running block: its threads, warps and barriers. Only the executor that runs the block
// accesses it.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fiber.hpp"
#include "knowledge.hpp"
#include "switchyard/detail/target/host.hpp"

namespace switchyard::emulator {

class Executor;
class Stream;
struct Block;

// A kernel launch waiting in, or at the head of, a stream.
struct Launch {
  std::string name;
  LaunchShape shape;
  void (*body)(const void*) = nullptr;
  std::shared_ptr<std::byte[]> argument_storage;  // shared by the launches of a recording
  const void* arguments = nullptr;
  Stream* stream = nullptr;
  uint64_t sequence = 0;
  uint32_t num_blocks_left = 0;  // guarded by the machine's mutex
  char ends = 0;                 // for annotate_release(): what its threads have done at their ends
  Knowledge knowledge;           // weak memory: what its threads start with
  std::vector<std::function<void()>> when_ended;
};

// Where a thread that can go on is queued: behind all other ready threads, or in front of them.
enum class RunOrder : uint8_t { kLast, kNext };

enum class ThreadPhase : uint8_t { kReady, kBlocked, kSpinning, kFinished };

// Weak memory: a bulk copy that was started but not performed yet.
struct BulkCopy {
  void* dst;
  const void* src;  // null: zeros
  uint64_t bytes;
  uint64_t* barrier;  // the one on which a load completes; null: a store
  Where where;
  uint32_t actor = 0, epoch = 0;  // who makes it
  Clock fenced_src = {};          // what comes before its read
};

struct Thread : ThreadState {
  Fiber* fiber = nullptr;
  Block* block = nullptr;
  ThreadPhase phase = ThreadPhase::kReady;
  bool looked_in_vain = false;  // spinning: the thread has only polled since its wait last spun
  uint64_t deadline_ns = kNoDeadline;
  uint64_t checked_epoch = 0;  // the progress epoch in which its wait last polled
  const char* word = "start";  // the word it waits in, and where
  Where where;
  Status failure;  // why its body was abandoned; ok: it was not
  Thread* next_waiter = nullptr;
  std::vector<uint32_t>
      bulk_groups;  // weak memory: the epoch of each committed group that was not waited for
  std::vector<BulkCopy> unread_bulk_stores;
};

// Threads that wait for the same thing, as an intrusive list: running fibers add to it and must not allocate
// (ThreadSanitizer would see the allocator's memory move between fibers).
struct WaitList {
  Thread* first = nullptr;
  void add(Thread& thread) { thread.next_waiter = std::exchange(first, &thread); }
};

// One block-level barrier. Two synchronisation objects alternate by generation, so that a late waiter does
// not seem to synchronise with arrivals of the next generation.
struct Barrier {
  uint32_t num_arrived = 0;
  uint32_t generation = 0;
  bool any = false;
  std::array<bool, 2> any_result{};
  std::array<char, 2> sync_object{};
  std::array<Knowledge, 2> knowledge;  // weak memory: what the threads that arrived know
  WaitList waiters;
};

struct Warp {
  std::array<std::array<uint64_t, kWarpSize>, 2> values{};
  std::array<char, 2> sync_object{};
  uint32_t generation = 0;
  uint32_t num_arrived = 0;
  uint32_t num_live = 0;
  const char* word = nullptr;
  uint32_t actor = 0;  // weak memory: its actor
  WaitList waiters;
};

struct Block {
  static constexpr uint32_t kNumBarriers = 16;

  Block(Executor& executor, Launch& launch, uint32_t block_idx);  // throws std::bad_alloc
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // The words of target/host.hpp, for the running thread.
  void sync(Thread& self, Where where);
  bool sync_any(Thread& self, bool value, Where where);
  void named_barrier(Thread& self, uint32_t barrier_idx, uint32_t num_threads, bool wait, Where where);
  const uint64_t* warp_collect(Thread& self, uint64_t value, const char* word, Where where);
  // A thread's body has returned: barriers and collectives no longer wait for it.
  void on_thread_finished(Thread& thread);

  Executor& executor;
  Launch& launch;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::array<Barrier, kNumBarriers> barriers;
  uint32_t num_live;
  bool has_admitted_successor = false;
  std::unique_ptr<std::byte[]> shared_storage;
  uint64_t shared_generation = 0;  // weak memory: of the lines of its shared memory
  std::vector<BulkCopy> unmade_bulk_loads;

 private:
  void arrive_and_wait(Thread& self, Barrier& barrier, uint32_t num_expected, bool wait, const char* word,
                       Where where);
  void complete(Barrier& barrier);
  void complete(Warp& warp);
  void wake(WaitList& waiters, RunOrder order);
  void give_back_fibers();
};

}  // namespace switchyard::emulator
