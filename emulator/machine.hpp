// The SIMT emulator: a machine with streams on which kernels run, each CUDA thread a fiber.
//
// Fast mode: one OS thread per core runs blocks as they are launched. Simulated mode: nothing runs until
// synchronize(), which runs everything on the calling thread in an order drawn from the seed; time is virtual and
// jumps to the next deadline when all threads wait. The same seed and calls give the same trace_hash().
//
// A machine whose threads can never go on stops with StatusCode::kDeadlock and the place where each thread waits.
// After any failure the machine refuses further work.
#pragma once

#include <cstdint>
#include <memory>

#include "switchyard/base/status.hpp"

namespace switchyard::emulator {

enum class Mode { kFast, kSimulated };

struct MachineOptions {
  Mode mode = Mode::kFast;
  uint64_t seed = 0;         // simulated mode
  unsigned num_workers = 0;  // fast mode: OS threads; 0: one per core
  // Blocks beyond this many threads per worker wait until earlier ones end, as on a GPU whose multiprocessors are all
  // taken; 0: as many as the build can hold.
  uint64_t max_resident_threads = 0;
  // Fast mode: threads that wait without a deadline while nothing moves for this long are deadlocked.
  uint64_t stuck_after_ns = 2'000'000'000;
};

class Stream;

class Machine {
 public:
  explicit Machine(const MachineOptions& options = {});
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Launches on one stream run in order, launches on different streams side by side. The machine owns its streams.
  Stream* create_stream();
  // Returns when every launch of the stream (of all streams) has ended, or the machine has failed.
  Status synchronize(Stream* stream);
  Status synchronize();

  uint64_t trace_hash() const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::emulator
