// What happens when the process of a peer ends in the middle of things: kernels of this process that wait for
// it are told at once, long before their deadline.
#pragma once

#include <memory>
#include <vector>

#include "runtime/peer_witness.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/transport/transport.hpp"
#include "switchyard/types/fault.hpp"

namespace switchyard {

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
  const std::unique_ptr<DeathWitness> witness_;  // by the numbers that the members have here
  std::shared_ptr<void> watch_;                  // last: it calls tell()
};

}  // namespace switchyard
