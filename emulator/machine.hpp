// The SIMT emulator: a machine with streams on which kernels run, each CUDA thread a fiber.
//
// Fast mode: one OS thread per core runs blocks as they are launched. Simulated mode: nothing runs until
// synchronize(), which runs everything on the calling thread in an order drawn from the seed; time is virtual
// and jumps to the next deadline when all threads wait. The same seed and calls give the same trace_hash().
//
// A machine whose threads can never go on stops with StatusCode::kDeadlock and reports where each thread
// waits. After any failure the machine refuses further work.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/detail/testing/order_mutant.hpp"
#include "switchyard/status.hpp"

namespace switchyard::emulator {

enum class Mode { kFast, kSimulated };

struct MachineOptions {
  Mode mode = Mode::kFast;
  uint64_t seed = 0;         // simulated mode
  unsigned num_workers = 0;  // fast mode: OS threads; 0: one per core
  // Blocks beyond this many threads per worker wait until earlier ones end, as on a GPU whose multiprocessors
  // are all taken; 0: as many as the build can hold.
  uint64_t max_resident_threads = 0;
  // Fast mode: threads that wait without a deadline while nothing moves for this long are deadlocked.
  uint64_t stuck_after_ns = 2'000'000'000;
  // Simulated mode: a load may return any value that the kernels' releases, acquires and barriers do not
  // forbid (weak_memory.hpp). Launches then come from one host thread. A build with ThreadSanitizer ignores
  // it.
  bool weak = false;
  std::optional<OrderMutant> mutant =
      std::nullopt;  // weak memory: for tests that check that a wrong order is caught
};

class Stream;
struct Launch;
using RecordedLaunch = std::shared_ptr<const Launch>;

class Machine {
 public:
  explicit Machine(const MachineOptions& options = {});
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Launches on one stream run in order, launches on different streams concurrently. The machine owns its
  // streams.
  Stream* create_stream();
  bool has_stream(const Stream* stream) const;
  // Returns when every launch of the stream (of all streams) has ended, or the machine has failed.
  Status synchronize(Stream* stream);
  Status synchronize();
  // What the machine has failed with, without a wait.
  Status failure() const;
  // Returns when no launch of the stream (null: of any) runs any more, however it ended, even while the
  // stream is recorded.
  void drain(Stream* stream);
  // Calls `action` when the launches that are on the stream now have ended; at once if there are none.
  void after_launches(Stream* stream, std::function<void()> action);

  // Between these two, launches on the stream are recorded instead of run, and synchronize() is an error.
  void begin_recording(Stream* stream);
  std::vector<RecordedLaunch> end_recording(Stream* stream);
  bool is_recording(const Stream* stream) const;
  // Launches what was recorded once more.
  Status enqueue(Stream* stream, const RecordedLaunch& recorded);

  uint64_t trace_hash() const;
  // Simulated mode: the last words that the threads of this stream executed, a line each.
  std::string recent_events(Stream* stream) const;

  // These four do nothing unless memory is weak. add_memory() registers memory that kernels may access: from
  // the first call on, an access elsewhere stops the machine and reports its location. What the host itself
  // writes, while no kernel uses the memory, has no history.
  void add_memory(const void* memory, uint64_t bytes);
  void remove_memory(const void* memory);
  void on_host_write(const void* memory, uint64_t bytes);
  // Delivers everything that is in flight on the wire (local_wire.hpp): neither the end of a kernel nor
  // synchronize() does.
  void complete_wire();

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::emulator
