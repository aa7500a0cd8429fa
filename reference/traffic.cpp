#include "traffic.hpp"

#include <algorithm>
#include <numeric>

#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/ep/tuning.hpp"

namespace switchyard::reference {
namespace {

void add(PhaseTraffic& traffic, int from, int to, int group, uint64_t bytes) {
  if (from == to) return;
  traffic.to_other_ranks[static_cast<size_t>(from)] += bytes;
  if (from / group != to / group) traffic.to_other_groups[static_cast<size_t>(from)] += bytes;
}

uint64_t sum(const std::vector<uint64_t>& values) {
  return std::accumulate(values.begin(), values.end(), uint64_t{0});
}

}  // namespace

uint64_t PhaseTraffic::total_to_other_ranks() const { return sum(to_other_ranks); }
uint64_t PhaseTraffic::total_to_other_groups() const { return sum(to_other_groups); }

namespace {

// Beside a row of the direct protocol go its source, a note where its scales are, if their tensor interleaves
// rows and its sender does not store them itself, and, where siblings are linked, its link and the weight
// that its owner sums it up with. A message of the slotted one holds all of it.
uint64_t bytes_beside_row(const ExpertParallelConfig& config, int n_ranks) {
  if (config.protocol != Protocol::kDirect) return 0;
  const bool links_rows = config.row_delivery == RowDelivery::kReceiver || config.reduce_at_owner;
  const bool has_wire =
      n_ranks > kMaxDirectRanks || (config.p2p_world_size != 0 && config.p2p_world_size < n_ranks);
  const bool sends_scales = config.max_tokens_per_rank <= kEpLimits.max_tokens_sending_scales &&
                            !links_rows && !has_wire && config.own_format == nullptr;
  const bool has_note = info_of(config.dispatch_format).interleaves_rows() && !sends_scales;
  return 2 * sizeof(int32_t) + (has_note ? sizeof(uint32_t) : 0) + (links_rows ? sizeof(uint32_t) : 0) +
         (config.reduce_at_owner ? sizeof(float) : 0);
}

}  // namespace

TrafficOptions traffic_options(const ExpertParallel& ep) {
  const ExpertParallelConfig& config = ep.config();
  return {.protocol = config.protocol,
          .p2p_world_size = config.p2p_world_size,
          .dispatch_message_bytes = ep.dispatch_message_bytes(),
          .combine_message_bytes = ep.combine_message_bytes(),
          .bytes_beside_row = bytes_beside_row(config, ep.n_ranks()),
          .is_carried_once = config.row_delivery == RowDelivery::kReceiver,
          .is_reduced_at_owner = config.reduce_at_owner};
}

namespace {

// The ranks, and with kGroup the ways between them, that a token's messages take.
class TokenMessages {
 public:
  TokenMessages(MessageCounts& counts, MessagePer per, int group_size)
      : counts_(counts), per_(per), group_size_(group_size) {}

  void begin_token() {
    experts_.clear();
    ranks_.clear();
    ways_.clear();
  }
  void add_choice(int from, int owner, int expert) {
    switch (per_) {
      case MessagePer::kChoice:
        return count(from, owner);
      case MessagePer::kExpert:
        if (is_new(experts_, expert)) count(from, owner);
        return;
      case MessagePer::kRank:
        if (is_new(ranks_, owner)) count(from, owner);
        return;
      case MessagePer::kGroup:
        if (is_new(ranks_, owner)) add_way(from, owner);
        return;
    }
  }

 private:
  static bool is_new(std::vector<int>& seen, int value) {
    if (std::find(seen.begin(), seen.end(), value) != seen.end()) return false;
    seen.push_back(value);
    return true;
  }
  void count(int from, int to) { ++counts_.at(from, to); }
  void add_way(int from, int owner) {
    const int group = owner / group_size_;
    if (from / group_size_ == group) return count(from, owner);
    const int last = std::min((group + 1) * group_size_, counts_.n_ranks()) - 1;
    const int gate = std::min(group * group_size_ + from % group_size_, last);
    if (is_new(ways_, gate)) count(from, gate);
    if (gate != owner) count(gate, owner);
  }

  MessageCounts& counts_;
  const MessagePer per_;
  const int group_size_;
  std::vector<int> experts_, ranks_, ways_;  // that the token has been sent to
};

}  // namespace

MessageCounts count_messages(const Step& step, MessagePer per, const OwnerFunction& owner_of,
                             int group_size) {
  MessageCounts counts(step.n_ranks);
  TokenMessages messages(counts, per, group_size);
  for (int rank = 0; rank < step.n_ranks; ++rank) {
    const std::vector<int32_t>& ids = step.topk_ids[static_cast<size_t>(rank)];
    for (auto token = ids.begin(); token != ids.end(); token += step.top_k) {
      messages.begin_token();
      for (auto id = token; id != token + step.top_k; ++id)
        if (*id >= 0) messages.add_choice(rank, owner_of(rank, *id), *id);
    }
  }
  return counts;
}

StepTraffic count_traffic(const Step& step, const TrafficOptions& options) {
  const auto n_ranks = static_cast<size_t>(step.n_ranks);
  const PhaseTraffic nothing{std::vector<uint64_t>(n_ranks), std::vector<uint64_t>(n_ranks)};
  StepTraffic traffic{nothing, nothing};
  const int group = options.p2p_world_size == 0 ? step.n_ranks : options.p2p_world_size;
  const OwnerFunction owner_of = [&](int rank, int expert) { return step.owner_of(rank, expert); };
  // The slotted protocol sends a repeated id once, and the expert's row back for each.
  const MessageCounts rows = count_messages(step, MessagePer::kChoice, owner_of, group);
  const MessageCounts messages = options.protocol == Protocol::kDirect
                                     ? rows
                                     : count_messages(step, MessagePer::kExpert, owner_of, group);
  const MessageCounts tokens = count_messages(step, MessagePer::kRank, owner_of, group);
  for (int rank = 0; rank < step.n_ranks; ++rank)
    for (int owner = 0; owner < step.n_ranks; ++owner) {
      const uint64_t num_tokens = tokens.at(rank, owner), num_rows = rows.at(rank, owner);
      const uint64_t num_messages = options.is_carried_once ? num_tokens : messages.at(rank, owner);
      add(traffic.dispatch, rank, owner, group,
          num_messages * options.dispatch_message_bytes + num_rows * options.bytes_beside_row);
      add(traffic.combine, owner, rank, group,
          (options.is_reduced_at_owner ? num_tokens : num_rows) * options.combine_message_bytes);
      if (rank == owner) continue;
      traffic.dispatch.least_to_other_ranks += num_tokens * options.dispatch_message_bytes;
      traffic.combine.least_to_other_ranks += num_tokens * options.combine_message_bytes;
    }
  return traffic;
}

}  // namespace switchyard::reference
