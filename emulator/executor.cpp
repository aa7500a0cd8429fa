#include "executor.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>

#include "weak_memory.hpp"

namespace switchyard::emulator {
namespace {

// ThreadSanitizer knows 8128 threads at most.
#if defined(SWITCHYARD_TSAN)
constexpr uint64_t kMaxResidentThreads = 3072;
#else
constexpr uint64_t kMaxResidentThreads = 65536;
#endif
constexpr uint32_t kStepsPerRound = 65536;
constexpr uint64_t kVirtualNsPerStep = 10;
// Fast mode: how often in a row a thread may run before others that were ready earlier.
constexpr uint32_t kMaxRunAhead = 4096;

// It would take a look on behalf of a thread for one of the executor's own.
#if defined(SWITCHYARD_TSAN)
constexpr bool kIsUnderThreadSanitizer = true;
#else
constexpr bool kIsUnderThreadSanitizer = false;
#endif

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

}  // namespace

__thread ThreadState* current_thread = nullptr;

Status out_of_memory(const char* what, ...) {
  char detail[256];
  va_list arguments;
  va_start(arguments, what);
  std::vsnprintf(detail, sizeof(detail), what, arguments);
  va_end(arguments);
  try {
    return resource_exhausted("the emulator ran out of memory: %s", detail);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, "out of memory");  // short enough to need none
  }
}

void ReadyQueue::reserve(size_t capacity) {
  if (capacity <= ring_.size()) return;
  std::vector<Thread*> larger(std::bit_ceil(capacity * 2));
  for (size_t i = 0; i < size_; ++i) larger[i] = ring_[(head_ + i) & (ring_.size() - 1)];
  ring_ = std::move(larger);
  head_ = 0;
}

Executor::Executor(ExecutorHost& host, std::optional<uint64_t> seed, uint64_t max_resident_threads)
    : host_(host),
      simulated_(seed.has_value()),
      max_resident_threads_(max_resident_threads != 0 ? max_resident_threads : kMaxResidentThreads),
      random_{seed.value_or(0)} {}

void Executor::add_block(Launch& launch, uint32_t block_idx) {
  pending_.push_back({&launch, block_idx});
  admit_pending();
}

void Executor::admit_pending() {
  while (!pending_.empty()) {
    const auto [launch, block_idx] = pending_.front();
    if (num_resident_threads_ > 0 &&
        num_resident_threads_ + launch->shape.num_threads > max_resident_threads_)
      return;
    pending_.pop_front();
    auto block = std::make_unique<Block>(*this, *launch, block_idx);
    num_resident_threads_ += launch->shape.num_threads;
    ready_.reserve(num_resident_threads_);
    for (Thread& thread : block->threads) {
      thread.preemptible = simulated_;
      thread.is_weak = weak_memory != nullptr;
      ready_.push(&thread);
    }
    blocks_.emplace(block.get(), std::move(block));
    ++progress_epoch_;
  }
}

uint64_t Executor::now_ns() const {
  if (simulated_) return virtual_now_ns_;
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                               std::chrono::nanoseconds(1));
}

void Executor::trace(uint64_t value) { trace_hash_ = (trace_hash_ ^ value) * 0x100000001b3ull; }

// Fast mode: looks whether a spinning thread can go on, which is then to look itself. That takes a call
// instead of two switches of stacks, and most looks are in vain.
bool Executor::may_go_on(Thread& thread, uint64_t now_ns) const {
  if (kIsUnderThreadSanitizer || now_ns >= thread.deadline_ns) return true;
  current_thread = &thread;
  const bool can_go_on = thread.poll(thread.awaited);
  current_thread = nullptr;
  return can_go_on;
}

// Makes those spinning threads ready that may go on; in simulated mode, that have not polled since the last
// progress.
bool Executor::unpark_spinners() {
  const uint64_t epoch = progress_epoch_, now = spinning_.empty() ? 0 : now_ns();
  const auto stale = std::partition(spinning_.begin(), spinning_.end(), [&](Thread* thread) {
    return simulated_ ? thread->checked_epoch == epoch : !may_go_on(*thread, now);
  });
  const bool any = stale != spinning_.end();
  for (auto it = stale; it != spinning_.end(); ++it) {
    (*it)->phase = ThreadPhase::kReady;
    ready_.push(*it);
  }
  spinning_.erase(stale, spinning_.end());
  return any;
}

bool Executor::run_some() {
  const uint64_t epoch_before = progress_epoch_;
  if (ready_.empty()) unpark_spinners();
  for (uint32_t num_steps = 0; !ready_.empty() && num_steps < kStepsPerRound; ++num_steps) {
    if (simulated_) ready_.bring_to_front(random_() % ready_.size());
    step(*ready_.pop());
    if (weak_memory != nullptr && weak_memory->deliver_by_chance()) ++progress_epoch_;
    if (simulated_ && !spinning_.empty() && random_() % 16 == 0) unpark_spinners();
    // The launch behind it may start now, beside whatever else still runs.
    if (simulated_ && std::exchange(block_has_ended_, false)) break;
  }
  if (progress_epoch_ != epoch_before) return true;
  // Behind such an end threads were left over, so that not all spinners have polled since the last progress.
  return simulated_ && unpark_spinners();
}

void Executor::step(Thread& thread) {
  const uint64_t epoch_before = progress_epoch_;
  virtual_now_ns_ += kVirtualNsPerStep;
  current_thread = &thread;
  thread.fiber->resume();
  current_thread = nullptr;
  if (simulated_) note_event(thread);
  if (thread.fiber->overflowed()) {
    thread.fiber->order_before_caller();
    host_.fail(internal_error("thread %u of block %u of %s overflowed its stack of %zu bytes",
                              thread.thread_idx, thread.block_idx, thread.block->launch.name.c_str(),
                              Fiber::stack_bytes()));
    thread.phase = ThreadPhase::kBlocked;
    return;
  }
  if (!thread.failure.ok()) {
    thread.fiber->order_before_caller();
    host_.fail(std::move(thread.failure));
    return;
  }
  if (thread.fiber->finished()) {
    thread.phase = ThreadPhase::kFinished;
    finish(thread);
  }
  if (thread.phase == ThreadPhase::kSpinning) {
    // A wait that polled again without success is no progress; a wait that has just begun is.
    if (!thread.looked_in_vain) ++progress_epoch_;
    thread.checked_epoch = thread.looked_in_vain ? epoch_before : 0;
    spinning_.push_back(&thread);
  } else {
    ++progress_epoch_;
    if (thread.phase == ThreadPhase::kReady) ready_.push(&thread);
  }
}

void Executor::note_event(const Thread& thread) {
  const Launch& launch = thread.block->launch;
  trace(launch.sequence << 40 ^ uint64_t{thread.block_idx} << 24 ^ uint64_t{thread.thread_idx} << 12 ^
        uint64_t{thread.where.line()} ^ static_cast<uint64_t>(thread.phase) << 60);
  RecentEvents& recent = events_[launch.stream];
  recent.ring[recent.num_noted++ % RecentEvents::kCapacity] = {
      virtual_now_ns_, launch.sequence, thread.block_idx, thread.thread_idx, thread.word, thread.where};
}

std::string Executor::recent_events(const Stream* stream) const {
  const auto found = events_.find(stream);
  if (found == events_.end()) return "    none\n";
  const RecentEvents& recent = found->second;
  std::string text;
  const size_t oldest =
      recent.num_noted > RecentEvents::kCapacity ? recent.num_noted - RecentEvents::kCapacity : 0;
  for (size_t i = oldest; i < recent.num_noted; ++i) {
    const Event& event = recent.ring[i % RecentEvents::kCapacity];
    text += "    " + std::to_string(event.virtual_ns) + " ns: launch " +
            std::to_string(event.launch_sequence) + ", block " + std::to_string(event.block_idx) +
            ", thread " + std::to_string(event.thread_idx) + ": " + event.word + " at " +
            base_name(event.where.file_name()) + ":" + std::to_string(event.where.line()) + "\n";
  }
  return text;
}

void Executor::finish(Thread& thread) {
  Block& block = *thread.block;
  block.on_thread_finished(thread);
  if (block.num_live > 0) return;
  Launch& launch = block.launch;
  annotate_acquire(&launch.ends);  // pairs with the release at the end of each thread
  if (weak_memory != nullptr) weak_memory->end_block(block);
  num_resident_threads_ -= launch.shape.num_threads;
  // step() still reads the thread: its block is kept until the next one is admitted.
  thread.phase = ThreadPhase::kFinished;
  finished_block_ = std::move(blocks_.extract(&block).mapped());
  block_has_ended_ = true;
  host_.on_block_finished(launch);
  admit_pending();
}

void Executor::suspend_current(Thread& self, ThreadPhase phase, const char* word, Where where) {
  self.phase = phase;
  self.word = word;
  self.where = where;
  self.fiber->suspend();
}

// The threads of a warp, which exchange values all the time, run while their stacks are in the cache; but not
// forever, since they may be polling a value that another thread has to write.
void Executor::make_ready(Thread& thread, RunOrder order) {
  thread.phase = ThreadPhase::kReady;
  if (order == RunOrder::kNext && !simulated_ && num_run_ahead_++ < kMaxRunAhead) {
    ready_.push_front(&thread);
  } else {
    num_run_ahead_ = 0;
    ready_.push(&thread);
  }
}

void Executor::fail_current(Thread& self, Status status) {
  self.failure = std::move(status);
  suspend_current(self, ThreadPhase::kBlocked, "failed", Where::current());
  __builtin_unreachable();
}

bool Executor::all_waits_unbounded() const {
  return std::all_of(spinning_.begin(), spinning_.end(),
                     [](const Thread* thread) { return thread->deadline_ns == kNoDeadline; });
}

void Executor::resolve_stuck() {
  if (weak_memory != nullptr && weak_memory->deliver_some()) {
    ++progress_epoch_;
    return;
  }
  uint64_t next_deadline_ns = kNoDeadline;
  for (const Thread* thread : spinning_) next_deadline_ns = std::min(next_deadline_ns, thread->deadline_ns);
  if (simulated_ && next_deadline_ns != kNoDeadline) {
    virtual_now_ns_ = std::max(virtual_now_ns_, next_deadline_ns);
    ++progress_epoch_;
    return;
  }
  host_.fail(Status(StatusCode::kDeadlock, "no thread can go on\n" + describe_waits()));
}

std::string Executor::describe_waits() const {
  // (launch, block, location) -> threads that wait there
  std::map<std::pair<std::pair<uint64_t, uint32_t>, std::string>, std::vector<uint32_t>> locations;
  std::map<uint64_t, std::string> names;
  for (const auto& [key, block] : blocks_) {
    names[block->launch.sequence] = block->launch.name;
    for (const Thread& thread : block->threads) {
      if (thread.phase == ThreadPhase::kFinished) continue;
      const char* word = thread.phase == ThreadPhase::kSpinning ? "wait_until" : thread.word;
      const std::string location = std::string(word) + " at " + base_name(thread.where.file_name()) + ":" +
                                   std::to_string(thread.where.line());
      locations[{{block->launch.sequence, thread.block_idx}, location}].push_back(thread.thread_idx);
    }
  }
  std::string text;
  for (const auto& [key, thread_indices] : locations) {
    const auto& [launch_and_block, location] = key;
    text += "  " + names[launch_and_block.first] + " block " + std::to_string(launch_and_block.second) +
            ": " + std::to_string(thread_indices.size()) + " thread(s) from " +
            std::to_string(thread_indices.front()) + " in " + location + "\n";
  }
  if (!pending_.empty()) text += "  " + std::to_string(pending_.size()) + " block(s) wait for room\n";
  return text;
}

void Executor::abandon_all() {
  for (const auto& [key, block] : blocks_)
    for (Thread& thread : block->threads) thread.fiber->order_before_caller();
  ready_.clear();
  spinning_.clear();
  pending_.clear();
  blocks_.clear();
  finished_block_.reset();
  num_resident_threads_ = 0;
}

}  // namespace switchyard::emulator
