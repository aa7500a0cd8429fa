#include "peer_deaths.hpp"

#include <algorithm>
#include <thread>

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

Status explain_lost_context(const Transport& transport, const std::vector<int>& members,
                            const Status& device_error, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  do {
    for (const int dead : transport.dead_ranks())
      if (const auto member = std::find(members.begin(), members.end(), dead); member != members.end())
        return unavailable("rank %d has ended, and this process's context on its GPU is lost with it: %s",
                           static_cast<int>(member - members.begin()), device_error.message().c_str());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  } while (std::chrono::steady_clock::now() < end);
  return unavailable(
      "this process's context on its GPU is lost; a peer under the same MPS server has probably ended: %s",
      device_error.message().c_str());
}

PeerDeaths::PeerDeaths(Transport& transport, std::vector<int> members, std::vector<WatchedRank> local_ranks)
    : members_(std::move(members)),
      local_ranks_(std::move(local_ranks)),
      watch_(transport.watch([this](int rank) { tell(rank); })) {}

void PeerDeaths::tell(int dead_world_rank) const {
  const auto member = std::find(members_.begin(), members_.end(), dead_world_rank);
  if (member == members_.end()) return;  // it left before the last reset()
  const int dead_rank = static_cast<int>(member - members_.begin());
  for (const WatchedRank& local : local_ranks_) {
    record_death(*local.record, local.rank, dead_rank);
    // The context may be lost with the peer; synchronize() finds out.
    (void)local.device->store_while_running(local.poison, 1 + static_cast<uint64_t>(local.rank));
  }
}

}  // namespace switchyard
