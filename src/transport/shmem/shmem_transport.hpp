// The transport of a world whose processes, one rank each, were started by a launcher of SHMEM. Memory is
// reached by loads and stores where SHMEM has a pointer, and over its wire everywhere.
#pragma once

#include <memory>

#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/transport/transport.hpp"
#include "wire_thread.hpp"

namespace switchyard {

// SHMEM, started in this process: which PE of how many it is.
struct ShmemProcess {
  const ShmemApi* api = nullptr;
  std::unique_ptr<WireThread> wire;
  int pe = 0;
  int n_pes = 1;
  int gpu = -1;  // CUDA: the one that the PE uses
};

// Starts SHMEM, which a process can do once; `gpu` is -1 where SHMEM is to choose.
Result<ShmemProcess> start_shmem(const ShmemApi& api, int gpu, uint64_t timeout_ns);

// Meets all other PEs. The device must outlive the transport.
Result<std::unique_ptr<Transport>> join_shmem(ShmemProcess process, Device& device, uint64_t timeout_ns);

}  // namespace switchyard
