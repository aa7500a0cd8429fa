// Launches recorded once and replayed at will: a CUDA graph on GPUs, a list of launches on the emulator.
#pragma once

#include <memory>
#include <vector>

#include "switchyard/detail/target/vocabulary.hpp"
#include "switchyard/status.hpp"

namespace switchyard {

class Device;

struct DeviceStream {
  Device* device;
  StreamHandle stream;
};

class RecordedLaunches {
 public:
  // Waits for the last launch(): what was recorded must outlive it.
  virtual ~RecordedLaunches() = default;

  // Runs everything once more, after what is on any of the recorded streams and before what is enqueued on
  // them later. On the emulator it returns only after the last mark.
  virtual Status launch() = 0;
  virtual Status synchronize() = 0;
  // Returns the microseconds of the last finished launch, from each mark to the next: one value fewer than
  // there are marks.
  virtual Result<std::vector<double>> microseconds_between_marks() = 0;
};

// A recording in progress, from Device::begin_recording() until finish(). One that is destroyed before
// finish() is dropped, and its streams run launches again.
class Recording {
 public:
  virtual ~Recording() = default;

  // A point in time: what was recorded before it, on any stream, ends before what is recorded after it
  // begins.
  virtual Status mark() = 0;
  virtual Result<std::unique_ptr<RecordedLaunches>> finish() = 0;
};

}  // namespace switchyard
