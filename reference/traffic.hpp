// The bytes that a step sends from rank to rank, counted from its routing.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "reference.hpp"
#include "switchyard/expert_parallel.hpp"

namespace switchyard::reference {

// What a message carries of a token: one choice of it, its rows of one expert, of all experts of one rank, or
// of all experts of one group, which the group's ranks then pass on among themselves.
enum class MessagePer { kChoice, kExpert, kRank, kGroup };

// The rank whose expert works on an id of a source rank's token.
using OwnerFunction = std::function<int(int src_rank, int expert)>;

// The messages of a step's dispatch from every rank to every rank. Those of a combine that sends the same
// messages back are the same, the other way.
class MessageCounts {
 public:
  explicit MessageCounts(int n_ranks)
      : n_ranks_(n_ranks), counts_(static_cast<size_t>(n_ranks) * static_cast<size_t>(n_ranks)) {}

  int n_ranks() const { return n_ranks_; }
  // from == to: what stays on the rank.
  uint64_t& at(int from, int to) { return counts_[index_of(from, to)]; }
  uint64_t at(int from, int to) const { return counts_[index_of(from, to)]; }

 private:
  size_t index_of(int from, int to) const {
    return static_cast<size_t>(from) * static_cast<size_t>(n_ranks_) + static_cast<size_t>(to);
  }

  int n_ranks_;
  std::vector<uint64_t> counts_;
};

// Counts them from topk_ids, n_ranks and top_k alone. kGroup: ranks [0, group_size), [group_size, ..), ..;
// a message to another group goes to the rank with the sender's place in it, or to the group's last rank.
MessageCounts count_messages(const Step& step, MessagePer per, const OwnerFunction& owner_of, int group_size);

// What leaves each rank in one phase. What stays on the rank is not in it, nor are counts and signals.
struct PhaseTraffic {
  std::vector<uint64_t> to_other_ranks;   // [rank]: in its group or in another
  std::vector<uint64_t> to_other_groups;  // [rank]: over the wire
  uint64_t least_to_other_ranks = 0;      // of all ranks, if a token crossed once to each rank

  uint64_t total_to_other_ranks() const;
  uint64_t total_to_other_groups() const;
};
struct StepTraffic {
  PhaseTraffic dispatch;  // messages, from the tokens' ranks to the experts'
  PhaseTraffic combine;   // expert rows, back
};

struct TrafficOptions {
  Protocol protocol = Protocol::kSlotted;
  int p2p_world_size = 0;  // 0: all ranks are one group
  uint64_t dispatch_message_bytes = 0;
  uint64_t combine_message_bytes = 0;
  uint64_t bytes_beside_row = 0;     // what is stored beside each row of another rank, whoever fills the row
  bool is_carried_once = false;      // a token is sent once to each rank, which fills its other rows
  bool is_reduced_at_owner = false;  // one row goes back from each rank
};

// As this world sends.
TrafficOptions traffic_options(const ExpertParallel& ep);

// Of a step that does not skip the all-to-all.
StepTraffic count_traffic(const Step& step, const TrafficOptions& options);

}  // namespace switchyard::reference
