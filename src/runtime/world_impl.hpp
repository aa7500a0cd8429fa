// What is behind a World; for the files of the runtime.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/peer_witness.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/device/memory_opener.hpp"
#include "switchyard/detail/transport/transport.hpp"
#include "switchyard/world.hpp"

namespace switchyard {

struct World::Impl {
  struct Capture {
    Recording* recording;
    std::vector<std::string> spans;
  };

  const ProcessMark process{};
  std::vector<std::unique_ptr<Device>> devices;
  std::unique_ptr<Transport> carrier;        // after devices, whose memory it hands out
  std::unique_ptr<DeathWitness> witness;     // of the carrier; null: all ranks are local
  std::vector<std::unique_ptr<Rank>> ranks;  // the local ones; streams go before what they run on
  Capture* capture = nullptr;                // while World::capture() runs
  // Of the library's own tests; null: the device's.
  std::unique_ptr<MemoryOpener> (*make_memory_opener)() = nullptr;

  Transport& transport() const { return *carrier; }
  // From now on the devices take their memory from the caller.
  Status use(const MemoryFunctions& memory) const;
  // Makes the device and the carrier.
  Status join_by_shmem(const JoinOptions& options);
  // Makes use of a carrier to other processes.
  void set_carrier(std::unique_ptr<Transport> joined);
  // Loads the kernels and makes the local ranks, the i-th on device_of(i).
  Status make_ranks(const HostDeviceOptions& host, const std::vector<Device*>& device_of_rank);
};

}  // namespace switchyard
