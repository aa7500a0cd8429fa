#include "block.hpp"

#include <cstring>
#include <exception>
#include <new>

#include "executor.hpp"
#include "weak_memory.hpp"

namespace switchyard::emulator {
namespace {

constexpr size_t kSharedAlignment = 128;

// Exceptions of a kernel end here: the only caller is the switch from the scheduler. Handlers end before the
// fiber suspends, since the exceptions being handled belong to the OS thread.
Status run_body(const Launch& launch, const Thread& self) {
  try {
    launch.body(launch.arguments);
    return Status();
  } catch (const std::bad_alloc&) {
    return out_of_memory("thread %u of block %u of %s", self.thread_idx, self.block_idx, launch.name.c_str());
  } catch (const std::exception& exception) {
    return internal_error("thread %u of block %u of %s threw an exception: %s", self.thread_idx,
                          self.block_idx, launch.name.c_str(), exception.what());
  } catch (...) {
    return internal_error("thread %u of block %u of %s threw what is no std::exception", self.thread_idx,
                          self.block_idx, launch.name.c_str());
  }
}

void run_thread(void* argument) {
  Thread& self = *static_cast<Thread*>(argument);
  Launch& launch = self.block->launch;
  annotate_acquire(self.block);  // pairs with the release at the end of Block's constructor
  annotate_acquire(&launch);     // pairs with the release in Machine's enqueue: the launch sees its past
  if (Status failure = run_body(launch, self); !failure.ok())
    self.block->executor.fail_current(self, std::move(failure));
  annotate_release(&launch.ends);  // not the launch: a thread that begins later is not ordered behind this one
}

}  // namespace

Block::Block(Executor& executor_in, Launch& launch_in, uint32_t block_idx)
    : executor(executor_in),
      launch(launch_in),
      threads(launch_in.shape.num_threads),
      warps((launch_in.shape.num_threads + kWarpSize - 1) / kWarpSize),
      num_live(launch_in.shape.num_threads) {
  // Shared memory is not initialised, as on a GPU.
  shared_storage.reset(new std::byte[launch.shape.shared_bytes + kSharedAlignment]);
  std::byte* shared = shared_storage.get();
  shared += (kSharedAlignment - reinterpret_cast<uintptr_t>(shared) % kSharedAlignment) % kSharedAlignment;
  std::memset(shared, 0xa5, launch.shape.shared_bytes);
  for (uint32_t i = 0; i < threads.size(); ++i) {
    Thread& thread = threads[i];
    thread.thread_idx = i;
    thread.num_threads = launch.shape.num_threads;
    thread.block_idx = block_idx;
    thread.num_blocks = launch.shape.num_blocks;
    thread.shared = shared;
    thread.shared_bytes = launch.shape.shared_bytes;
    thread.block = this;
    ++warps[i / kWarpSize].num_live;
  }
  try {
    for (Thread& thread : threads) {
      thread.fiber = &FiberPool::of_process().take();
      thread.fiber->start(&run_thread, &thread);
    }
    if (executor.weak_memory != nullptr) executor.weak_memory->start_block(*this);
  } catch (...) {
    give_back_fibers();
    throw;
  }
  annotate_release(this);  // pairs with the acquire each thread starts with: it sees what was made here
}

Block::~Block() { give_back_fibers(); }

void Block::give_back_fibers() {
  for (Thread& thread : threads)
    if (thread.fiber != nullptr) FiberPool::of_process().give_back(*thread.fiber);
}

void Block::wake(WaitList& waiters, RunOrder order) {
  Thread* thread = std::exchange(waiters.first, nullptr);
  while (thread != nullptr) {
    Thread* next = thread->next_waiter;
    executor.make_ready(*thread, order);
    thread = next;
  }
}

void Block::complete(Barrier& barrier) {
  barrier.any_result[barrier.generation % 2] = barrier.any;
  barrier.any = false;
  barrier.num_arrived = 0;
  ++barrier.generation;
  barrier.knowledge[barrier.generation % 2].clear();
  wake(barrier.waiters, RunOrder::kLast);
}

void Block::arrive_and_wait(Thread& self, Barrier& barrier, uint32_t num_expected, bool wait,
                            const char* word, Where where) {
  char* sync_object = &barrier.sync_object[barrier.generation % 2];
  Knowledge& knowledge = barrier.knowledge[barrier.generation % 2];
  annotate_release(sync_object);
  if (executor.weak_memory != nullptr) executor.weak_memory->release(self, knowledge);
  if (++barrier.num_arrived == num_expected) {
    complete(barrier);
  } else if (wait) {
    barrier.waiters.add(self);
    executor.suspend_current(self, ThreadPhase::kBlocked, word, where);
  }
  if (!wait) return;
  annotate_acquire(sync_object);
  if (executor.weak_memory != nullptr) executor.weak_memory->acquire(self, knowledge);
}

void Block::sync(Thread& self, Where where) {
  arrive_and_wait(self, barriers[0], num_live, true, "sync_block", where);
}

bool Block::sync_any(Thread& self, bool value, Where where) {
  Barrier& barrier = barriers[0];
  const uint32_t generation = barrier.generation;
  barrier.any |= value;
  arrive_and_wait(self, barrier, num_live, true, "sync_block_any", where);
  return barrier.any_result[generation % 2];
}

void Block::named_barrier(Thread& self, uint32_t barrier_idx, uint32_t num_threads, bool wait, Where where) {
  if (barrier_idx == 0 || barrier_idx >= kNumBarriers || num_threads == 0 || num_threads % kWarpSize != 0)
    executor.fail_current(self,
                          invalid_argument("named barrier %u of %u threads: the index must be 1..15 and the "
                                           "count a multiple of %d",
                                           barrier_idx, num_threads, kWarpSize));
  arrive_and_wait(self, barriers[barrier_idx], num_threads, wait, "named_barrier", where);
}

void Block::complete(Warp& warp) {
  warp.num_arrived = 0;
  ++warp.generation;
  warp.values[warp.generation % 2].fill(0);
  wake(warp.waiters, RunOrder::kNext);
}

const uint64_t* Block::warp_collect(Thread& self, uint64_t value, const char* word, Where where) {
  Warp& warp = warps[self.thread_idx / kWarpSize];
  const uint32_t buffer = warp.generation % 2;
  if (warp.num_arrived == 0) warp.word = word;
  if (warp.word != word && std::strcmp(warp.word, word) != 0)
    executor.fail_current(
        self, internal_error("lanes of warp %u in block %u of %s disagree: %s against %s at %s:%u",
                             self.thread_idx / kWarpSize, self.block_idx, launch.name.c_str(), warp.word,
                             word, where.file_name(), where.line()));
  warp.values[buffer][self.thread_idx % kWarpSize] = value;
  annotate_release(&warp.sync_object[buffer]);
  if (++warp.num_arrived == warp.num_live) {
    complete(warp);
  } else {
    warp.waiters.add(self);
    executor.suspend_current(self, ThreadPhase::kBlocked, word, where);
  }
  annotate_acquire(&warp.sync_object[buffer]);
  return warp.values[buffer].data();
}

void Block::on_thread_finished(Thread& thread) {
  --num_live;
  if (barriers[0].num_arrived > 0 && barriers[0].num_arrived == num_live) complete(barriers[0]);
  Warp& warp = warps[thread.thread_idx / kWarpSize];
  --warp.num_live;
  if (warp.num_arrived > 0 && warp.num_arrived == warp.num_live) complete(warp);
}

}  // namespace switchyard::emulator
