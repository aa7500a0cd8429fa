// The transport of a world whose ranks are in several processes of one machine: memory is shared, and
// agreements go over a mesh of Unix sockets, which also shows when a process ends.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/transport/transport.hpp"

namespace switchyard {

// As JoinOptions (world.hpp), checked already.
struct ProcessOptions {
  Device* device = nullptr;  // of all local ranks; it must outlive the transport
  int first_rank = 0;
  int num_local_ranks = 1;
  int n_ranks = 1;
  uint64_t timeout_ns = 0;
  std::function<Result<std::vector<Bytes>>(const Bytes& mine)> all_gather;  // empty: there is a rendezvous
  std::string rendezvous;
  std::string token;
};

// Meets the processes of all other ranks.
Result<std::unique_ptr<Transport>> join_processes(const ProcessOptions& options);

}  // namespace switchyard
