// What happens when the process of a peer ends in the middle of things: kernels of this process that wait for
// it are told at once, long before their deadline.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/transport/transport.hpp"
#include "switchyard/fault.hpp"

namespace switchyard {

// The error that explains `device_error` of a GPU: a peer that ends may take the contexts of its neighbours
// with it (under MPS). Its death is known soon, too, but not at once: a process that is killed may take
// seconds to give back what it has on the GPU, and neither its sockets nor its pidfd tell before. So this
// waits until one of `members` is known to have ended, or `patience` is over.
Status explain_lost_context(const Transport& transport, const std::vector<int>& members,
                            const Status& device_error, std::chrono::milliseconds patience);

// The memory of a rank of this process that its kernels look at.
struct WatchedRank {
  int rank;
  Device* device;
  FaultRecord* record;
  uint64_t* poison;
};

// Watches the ranks `members` on behalf of some of them. The object must go before their memory does.
class PeerDeaths {
 public:
  PeerDeaths(Transport& transport, std::vector<int> members, std::vector<WatchedRank> local_ranks);

 private:
  void tell(int dead_world_rank) const;

  const std::vector<int> members_;
  const std::vector<WatchedRank> local_ranks_;
  std::shared_ptr<void> watch_;  // last: it calls tell()
};

}  // namespace switchyard
