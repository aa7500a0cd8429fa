#include "machine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "executor.hpp"
#include "switchyard/detail/base/fork.hpp"
#include "weak_memory.hpp"

namespace switchyard::emulator {

class Stream {
 public:
  Stream(Machine::Impl& machine_in) : machine(machine_in) {}
  Machine::Impl& machine;
  // Guarded by the machine's mutex.
  std::deque<std::unique_ptr<Launch>> launches;  // the first one runs
  std::optional<std::vector<RecordedLaunch>> recording;
};

class Machine::Impl : public ExecutorHost {
 public:
  explicit Impl(const MachineOptions& options) : options_(options) {
    const bool simulated = options.mode == Mode::kSimulated;
    unsigned num_workers =
        options.num_workers != 0 ? options.num_workers : std::thread::hardware_concurrency();
    if (simulated || num_workers == 0) num_workers = 1;
    for (unsigned i = 0; i < num_workers; ++i)
      workers_.push_back(
          std::make_unique<Worker>(*this, simulated ? std::optional<uint64_t>(options.seed) : std::nullopt,
                                   options.max_resident_threads));
#if !defined(SWITCHYARD_TSAN)  // it would see the fibers race in what the weak memory keeps
    if (simulated && options.weak) weak_memory_ = std::make_unique<WeakMemory>(options.seed, options.mutant);
#endif
    workers_.front()->executor.weak_memory = weak_memory_.get();
    if (!simulated) start_workers();
  }

  ~Impl() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (auto& worker : workers_)
      if (worker->os_thread.joinable()) worker->os_thread.join();
    for (auto& worker : workers_) worker->executor.abandon_all();
  }

  bool is_of_parent() const { return process_.is_of_parent(); }

  Stream* create_stream() {
    std::lock_guard lock(mutex_);
    streams_.push_back(std::make_unique<Stream>(*this));
    return streams_.back().get();
  }

  bool has_stream(const Stream* stream) {
    std::lock_guard lock(mutex_);
    return std::any_of(streams_.begin(), streams_.end(),
                       [&](const auto& own) { return own.get() == stream; });
  }

  Status failure() {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  Status enqueue(Stream& stream, std::unique_ptr<Launch> launch) {
    SWITCHYARD_RETURN_IF_ERROR(process_.check("a launch"));
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (stream.recording) {
      stream.recording->push_back(std::move(launch));
      return Status();
    }
    launch->stream = &stream;
    launch->sequence = next_sequence_++;
    launch->num_blocks_left = launch->shape.num_blocks;
    annotate_release(launch.get());  // pairs with the acquire each thread starts with
    if (weak_memory_ != nullptr) weak_memory_->on_enqueue(*launch);
    stream.launches.push_back(std::move(launch));
    if (stream.launches.size() == 1) start(*stream.launches.front());
    return Status();
  }

  // Memory ran out in enqueue(): some blocks of the launch may be running without the others.
  Status fail_launch(const char* name) {
    fail(out_of_memory("a launch of %s", name));
    return out_of_memory("a launch of %s", name);
  }

  void after_launches(Stream& stream, std::function<void()> action) {
    if (process_.is_of_parent()) return;
    {
      std::lock_guard lock(mutex_);
      if (!stream.launches.empty()) {
        stream.launches.back()->when_ended.push_back(std::move(action));
        return;
      }
    }
    action();
  }

  void begin_recording(Stream& stream) {
    std::lock_guard lock(mutex_);
    stream.recording.emplace();
  }

  std::vector<RecordedLaunch> end_recording(Stream& stream) {
    std::lock_guard lock(mutex_);
    std::vector<RecordedLaunch> recorded = std::move(stream.recording).value();
    stream.recording.reset();
    return recorded;
  }

  bool is_recording(const Stream* stream) {
    if (process_.is_of_parent()) return false;
    std::lock_guard lock(mutex_);
    if (stream != nullptr) return stream->recording.has_value();
    return std::any_of(streams_.begin(), streams_.end(),
                       [](const auto& s) { return s->recording.has_value(); });
  }

  // Returns once `stream` (all streams if null) has no launch left.
  Status synchronize(Stream* stream) {
    if (is_recording(stream))
      return failed_precondition("a stream that is being recorded cannot be waited for: nothing on it runs");
    return wait_until_idle(stream);
  }

  Status wait_until_idle(Stream* stream) {
    SWITCHYARD_RETURN_IF_ERROR(process_.check("a wait for a stream"));
    if (options_.mode == Mode::kSimulated) return simulate(stream);
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return failure_.ok() ? is_idle(stream) : num_abandoned_ == workers_.size(); });
    return failure_;
  }

  void on_block_finished(Launch& launch) override {
    std::unique_ptr<Launch> ended;
    {
      std::lock_guard lock(mutex_);
      if (--launch.num_blocks_left > 0) return;
      Stream& stream = *launch.stream;
      // Everything that this launch did happened before the stream's next launch.
      ended = std::move(stream.launches.front());
      stream.launches.pop_front();
      if (!stream.launches.empty()) {
        annotate_acquire(&ended->ends);
        annotate_release(stream.launches.front().get());
        start(*stream.launches.front());
      }
      if (stream.launches.empty()) idle_.notify_all();
    }
    for (const std::function<void()>& action : ended->when_ended) action();
  }

  void fail(Status status) override {
    {
      std::lock_guard lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = std::move(status);
      failed_ = true;
    }
    changed_.notify_all();
  }

  std::string recent_events(Stream* stream) const { return workers_.front()->executor.recent_events(stream); }
  uint64_t trace_hash() const {
    return workers_.front()->executor.trace_hash() ^
           (weak_memory_ != nullptr ? weak_memory_->trace_hash() : 0);
  }
  WeakMemory* weak_memory() const { return weak_memory_.get(); }

 private:
  struct Worker {
    Worker(ExecutorHost& host, std::optional<uint64_t> seed, uint64_t max_resident_threads)
        : executor(host, seed, max_resident_threads) {}
    Executor executor;
    std::deque<std::pair<Launch*, uint32_t>> inbox;  // guarded by the machine's mutex
    std::atomic<bool> has_mail = false;
    std::atomic<bool> waiting = true;  // when it last polled all its threads, none could go on
    bool abandoned = false;            // after a failure: its threads are gone and no longer access memory
    std::thread os_thread;
  };

  bool is_idle(const Stream* stream) const {
    if (stream != nullptr) return stream->launches.empty();
    for (const auto& s : streams_)
      if (!s->launches.empty()) return false;
    return true;
  }

  bool is_idle_now(const Stream* stream) {
    std::lock_guard lock(mutex_);
    return is_idle(stream);
  }

  // Gives the blocks of a launch to the workers. Called with the mutex held.
  void start(Launch& launch) {
    if (weak_memory_ != nullptr) weak_memory_->on_start(launch);
    for (uint32_t block_idx = 0; block_idx < launch.shape.num_blocks; ++block_idx) {
      Worker& worker = *workers_[next_worker_++ % workers_.size()];
      worker.inbox.emplace_back(&launch, block_idx);
      worker.has_mail = true;
    }
    changed_.notify_all();
  }

  void take_mail(Worker& worker) {
    if (!worker.has_mail) return;
    std::deque<std::pair<Launch*, uint32_t>> mail;
    {
      std::lock_guard lock(mutex_);
      mail.swap(worker.inbox);
      worker.has_mail = false;
    }
    for (const auto& [launch, block_idx] : mail) worker.executor.add_block(*launch, block_idx);
  }

  bool all_workers_wait() const {
    for (const auto& worker : workers_)
      if (!worker->waiting || worker->has_mail) return false;
    return true;
  }

  // Starts as many OS threads as the system allows, but at least one.
  void start_workers() {
    for (size_t i = 0; i < workers_.size(); ++i) {
      try {
        workers_[i]->os_thread = std::thread([this, worker = workers_[i].get()] { work(*worker); });
      } catch (const std::system_error&) {
        if (i == 0) throw;
        workers_.resize(i);
      }
    }
  }

  // The main function of one OS thread in fast mode. An executor that ran out of memory can only be
  // abandoned.
  void work(Worker& worker) {
    for (bool stopped = false; !stopped;) {
      try {
        if (!failed_) watch_for_overflows();  // it needs memory, as blocks do
        run_until_stopped(worker);
        stopped = true;
      } catch (const std::bad_alloc&) {
        fail(out_of_memory("a worker starting blocks"));
      }
    }
  }

  void run_until_stopped(Worker& worker) {
    auto last_progress = std::chrono::steady_clock::now();
    uint64_t seen_progress = 0;
    // What all workers wait for comes from another process, which needs a core: workers that only yield keep
    // one from it for whole slices of time.
    constexpr int kMostYields = 50;
    constexpr auto kNap = std::chrono::microseconds(10);
    int num_fruitless = 0;
    for (;;) {
      if (!failed_) take_mail(worker);  // it may run out of memory, again and again
      if (failed_ && !worker.abandoned) {
        worker.executor.abandon_all();
        worker.abandoned = true;
        std::lock_guard lock(mutex_);
        if (++num_abandoned_ == workers_.size()) idle_.notify_all();
      }
      if (!worker.executor.has_blocks()) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock,
                      [&] { return stopping_ || (failed_ ? !worker.abandoned : worker.has_mail.load()); });
        if (stopping_) return;
        last_progress = std::chrono::steady_clock::now();
        continue;
      }
      if (stopping_) return;
      worker.waiting = false;
      if (worker.executor.run_some()) {
        ++progress_;
      } else {
        worker.waiting = true;
      }
      const uint64_t progress = progress_;
      const auto now = std::chrono::steady_clock::now();
      if (progress != seen_progress) {
        seen_progress = progress;
        last_progress = now;
        num_fruitless = 0;
      } else if (worker.executor.only_barriers_left() ||
                 (worker.executor.all_waits_unbounded() && all_workers_wait() &&
                  now - last_progress > std::chrono::nanoseconds(options_.stuck_after_ns))) {
        worker.executor.resolve_stuck();
      } else if (!all_workers_wait() || ++num_fruitless < kMostYields) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kNap);
      }
    }
  }

  Status simulate(Stream* stream) {
    std::lock_guard driving(drive_mutex_);
    Worker& worker = *workers_.front();
    try {
      watch_for_overflows();
      while (!failed_ && !is_idle_now(stream)) {
        take_mail(worker);
        if (!worker.executor.run_some()) worker.executor.resolve_stuck();
      }
    } catch (const std::bad_alloc&) {
      fail(out_of_memory("starting blocks"));
    }
    if (failed_) worker.executor.abandon_all();
    std::lock_guard lock(mutex_);
    if (weak_memory_ != nullptr && failure_.ok()) weak_memory_->on_synchronized(stream);
    return failure_;
  }

  const MachineOptions options_;
  const ProcessMark process_;
  std::mutex mutex_;
  std::mutex drive_mutex_;           // simulated mode: one caller drives
  std::condition_variable changed_;  // workers: there is mail, or an end
  std::condition_variable idle_;     // callers: a stream is empty, or the machine failed
  std::vector<std::unique_ptr<Stream>> streams_;
  std::unique_ptr<WeakMemory> weak_memory_;  // null unless options_.weak
  std::vector<std::unique_ptr<Worker>> workers_;
  Status failure_;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> stopping_ = false;
  std::atomic<uint64_t> progress_ = 0;
  size_t num_abandoned_ = 0;
  uint64_t next_sequence_ = 1;
  uint64_t next_worker_ = 0;
};

Machine::Machine(const MachineOptions& options) : impl_(std::make_unique<Impl>(options)) {}
// In a fork there is nobody to join, and condition variables have waiters that are not there either.
Machine::~Machine() {
  if (impl_->is_of_parent()) static_cast<void>(impl_.release());
}
Stream* Machine::create_stream() { return impl_->create_stream(); }
bool Machine::has_stream(const Stream* stream) const { return impl_->has_stream(stream); }
Status Machine::failure() const { return impl_->failure(); }
bool Machine::is_recording(const Stream* stream) const { return impl_->is_recording(stream); }
Status Machine::synchronize(Stream* stream) { return impl_->synchronize(stream); }
Status Machine::synchronize() { return impl_->synchronize(nullptr); }
void Machine::drain(Stream* stream) { (void)impl_->wait_until_idle(stream); }
void Machine::after_launches(Stream* stream, std::function<void()> action) {
  impl_->after_launches(*stream, std::move(action));
}
void Machine::begin_recording(Stream* stream) { impl_->begin_recording(*stream); }
std::vector<RecordedLaunch> Machine::end_recording(Stream* stream) { return impl_->end_recording(*stream); }
Status Machine::enqueue(Stream* stream, const RecordedLaunch& recorded) {
  try {
    return impl_->enqueue(*stream, std::make_unique<Launch>(*recorded));
  } catch (const std::bad_alloc&) {
    return impl_->fail_launch(recorded->name.c_str());
  }
}
uint64_t Machine::trace_hash() const { return impl_->trace_hash(); }
std::string Machine::recent_events(Stream* stream) const { return impl_->recent_events(stream); }
void Machine::add_memory(const void* memory, uint64_t bytes) {
  if (WeakMemory* weak = impl_->weak_memory()) weak->add_range(memory, bytes);
}
void Machine::remove_memory(const void* memory) {
  if (WeakMemory* weak = impl_->weak_memory()) weak->remove_range(memory);
}
void Machine::on_host_write(const void* memory, uint64_t bytes) {
  if (WeakMemory* weak = impl_->weak_memory()) weak->forget(memory, bytes);
}
void Machine::complete_wire() {
  if (WeakMemory* weak = impl_->weak_memory()) weak->deliver_all();
}

Status enqueue(StreamHandle stream, const char* name, const LaunchShape& shape, void (*body)(const void*),
               const void* arguments, size_t argument_bytes, size_t argument_alignment) {
  SWITCHYARD_RETURN_IF_ERROR(check_launch_shape(name, shape));
  Stream& target_stream = *static_cast<Stream*>(stream);
  try {
    auto launch = std::make_unique<Launch>();
    launch->name = name;
    launch->shape = shape;
    launch->body = body;
    launch->argument_storage.reset(new std::byte[argument_bytes + argument_alignment]);
    std::byte* aligned = launch->argument_storage.get();
    aligned +=
        (argument_alignment - reinterpret_cast<uintptr_t>(aligned) % argument_alignment) % argument_alignment;
    std::memcpy(aligned, arguments, argument_bytes);
    launch->arguments = aligned;
    return target_stream.machine.enqueue(target_stream, std::move(launch));
  } catch (const std::bad_alloc&) {
    return target_stream.machine.fail_launch(name);
  }
}

// The words of target/host.hpp, on behalf of the running thread.
namespace {
Thread& self() { return *static_cast<Thread*>(current_thread); }
Executor& executor() { return self().block->executor; }
WeakMemory* weak_memory() { return executor().weak_memory; }
}  // namespace

void sync_block(Where where) { self().block->sync(self(), where); }
bool sync_block_any(bool value, Where where) { return self().block->sync_any(self(), value, where); }
void named_barrier(uint32_t barrier_idx, uint32_t num_threads, bool wait, Where where) {
  self().block->named_barrier(self(), barrier_idx, num_threads, wait, where);
}
const uint64_t* warp_collect(uint64_t value, const char* word, Where where) {
  return self().block->warp_collect(self(), value, word, where);
}
void preempt(Where where) {
  if (executor().should_preempt()) executor().suspend_current(self(), ThreadPhase::kReady, "preempt", where);
}
void spin(uint64_t deadline_ns, bool looked_in_vain, Where where) {
  self().deadline_ns = deadline_ns;
  self().looked_in_vain = looked_in_vain;
  executor().suspend_current(self(), ThreadPhase::kSpinning, "wait_until", where);
}
uint64_t now_ns() { return executor().now_ns(); }
void admit_successor() { self().block->has_admitted_successor = true; }
void check_may_wait_for_peer(Where where) {
  if (!self().block->has_admitted_successor) return;
  executor().fail_current(
      self(), internal_error("%s, block %u: waits for a peer at %s:%u after it let the next launch in",
                             self().block->launch.name.c_str(), self().block_idx, where.file_name(),
                             static_cast<unsigned>(where.line())));
}

void check_prefetch(const void* begin, uint32_t bytes, Where where) {
  if (bytes > 0 && bytes % 16 == 0 && reinterpret_cast<uintptr_t>(begin) % 16 == 0) {
    const auto* first = static_cast<const volatile unsigned char*>(begin);
    static_cast<void>(first[0]);  // AddressSanitizer sees what is not there
    static_cast<void>(first[bytes - 1]);
    return;
  }
  executor().fail_current(
      self(), internal_error("%s, block %u: asks for %u bytes at %p at %s:%u; both must be multiples of 16",
                             self().block->launch.name.c_str(), self().block_idx, bytes, begin,
                             where.file_name(), static_cast<unsigned>(where.line())));
}

// A transfer barrier in 64 bits: pending bytes, pending arrivals, arrivals per phase, phase.
namespace {
struct TransferState {
  int32_t pending_bytes;
  uint16_t pending_arrivals;
  uint16_t arrivals_and_phase;  // arrivals << 1 | phase
};
static_assert(sizeof(TransferState) == sizeof(uint64_t));

TransferState load_transfer(const uint64_t* barrier) {
  TransferState state;
  std::memcpy(&state, barrier, sizeof(state));
  return state;
}
void store_transfer(uint64_t* barrier, TransferState state) {
  if (state.pending_arrivals == 0 && state.pending_bytes == 0) {
    state.pending_arrivals = state.arrivals_and_phase >> 1;
    state.arrivals_and_phase ^= 1;
  }
  std::memcpy(barrier, &state, sizeof(state));
}
}  // namespace

void transfer_init(uint64_t* barrier, uint32_t num_arrivals) {
  if (weak_memory() != nullptr) weak_memory()->transfer_init(barrier);
  store_transfer(barrier, TransferState{0, static_cast<uint16_t>(num_arrivals),
                                        static_cast<uint16_t>(num_arrivals << 1)});
}
void transfer_arrive(uint64_t* barrier, uint32_t expected_bytes) {
  annotate_release(barrier);
  if (weak_memory() != nullptr) weak_memory()->transfer_release(self(), barrier);
  TransferState state = load_transfer(barrier);
  state.pending_bytes += static_cast<int32_t>(expected_bytes);
  --state.pending_arrivals;
  store_transfer(barrier, state);
}
void transfer_complete(uint64_t* barrier, uint32_t bytes) {
  annotate_release(barrier);
  TransferState state = load_transfer(barrier);
  state.pending_bytes -= static_cast<int32_t>(bytes);
  store_transfer(barrier, state);
}
uint32_t transfer_phase(const uint64_t* barrier) { return load_transfer(barrier).arrivals_and_phase & 1u; }
bool transfer_done(uint64_t* barrier, uint32_t parity) {
  if (weak_memory() != nullptr) weak_memory()->make_bulk_loads(self(), barrier);
  if (transfer_phase(barrier) == parity) return false;
  annotate_acquire(barrier);
  if (weak_memory() != nullptr) weak_memory()->transfer_acquire(self(), barrier, parity);
  return true;
}

}  // namespace switchyard::emulator
