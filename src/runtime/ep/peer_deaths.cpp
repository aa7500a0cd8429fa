#include "peer_deaths.hpp"

#include <algorithm>

namespace switchyard {
namespace {

// As record_fault() of the kernels does: the first fault of a rank is kept.
void record_death(FaultRecord& record, int waiting_rank, int dead_rank) {
  uint32_t expected = FaultRecord::kClear;
  if (!__atomic_compare_exchange_n(&record.state, &expected, uint32_t{FaultRecord::kClaimed}, false,
                                   __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    return;
  record.kind = FaultKind::kPeerEnded;
  record.phase = Phase::kNone;
  record.waiting_rank = waiting_rank;
  record.late_rank = dead_rank;
  record.expert = -1;
  record.expected = record.seen = record.elapsed_ns = 0;
  // release MM-07: publishes the record; pairs with the host's acquire in ExpertParallel's fault check
  __atomic_store_n(&record.state, uint32_t{FaultRecord::kWritten}, __ATOMIC_RELEASE);
}

}  // namespace

PeerDeaths::PeerDeaths(Transport& transport, std::vector<int> members, std::vector<WatchedRank> local_ranks)
    : members_(std::move(members)),
      local_ranks_(std::move(local_ranks)),
      witness_(make_peer_witness(transport, members_)),
      watch_(transport.watch([this](int rank) { tell(rank); })) {}

void PeerDeaths::tell(int dead_world_rank) const {
  const auto member = std::find(members_.begin(), members_.end(), dead_world_rank);
  if (member == members_.end()) return;  // it left before the last reset()
  const int dead_rank = static_cast<int>(member - members_.begin());
  const NoPatience at_once;  // this is the thread that learns of deaths
  for (const WatchedRank& local : local_ranks_) {
    record_death(*local.record, local.rank, dead_rank);
    // The context may be lost with the peer; synchronize() finds out.
    (void)local.device->store_while_running(local.poison, 1 + static_cast<uint64_t>(local.rank));
  }
}

}  // namespace switchyard
