// The transport of a world whose processes, one rank each, were started by a launcher of SHMEM. Memory is
// reached by loads and stores where SHMEM has a pointer, and over its wire everywhere.
#pragma once

#include <functional>
#include <memory>
#include <vector>

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

using AllGather = std::function<Result<std::vector<Bytes>>(const Bytes& mine)>;

// Without a launcher: what the process of rank 0 makes and `all_gather`, in any order of processes, gives to
// all.
Result<ShmemId> agree_on_shmem_id(const ShmemApi& api, int rank, int n_ranks, const AllGather& all_gather);

// Starts SHMEM, which a process can do once. `requirements.gpu` is -1 where SHMEM is to choose.
Result<ShmemProcess> start_shmem(const ShmemApi& api, const ShmemRequirements& requirements,
                                 uint64_t timeout_ns);

// Meets all other PEs. The device must outlive the transport.
Result<std::unique_ptr<Transport>> join_shmem(ShmemProcess process, Device& device, uint64_t timeout_ns);

}  // namespace switchyard
