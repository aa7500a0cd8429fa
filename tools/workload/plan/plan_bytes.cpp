// What a step moves, counted: messages of the routing times the sizes that the library's layouts give.
#include <cmath>
#include <optional>

#include "cluster_plan.hpp"
#include "runtime/ep/exchange_layout.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/layout.hpp"

namespace switchyard::tools {
namespace {

using reference::MessageCounts;
using reference::MessagePer;

// Bytes of one of each.
struct Sizes {
  uint64_t token;           // as the caller has it
  uint64_t message;         // on its way to an expert
  uint64_t beside_message;  // what the direct protocol stores beside a row; a slotted message holds it
  uint64_t row;             // where dispatch leaves it, with its scales
  uint64_t src_info;        // beside a row
  uint64_t expert_row;      // as an expert leaves it
  uint64_t combine_row;     // on its way back
  uint64_t staged_scales;   // that a rank keeps of a token until the owners fetch them
  uint64_t dispatch_cells;  // counts and signals from a rank to a rank
  uint64_t combine_cells;

  Sizes(const ExpertParallelConfig& config, const ExchangeLayout& layout, int n_ranks, bool stores_scales) {
    const FormatLayout format = format_layout(config);
    const bool is_direct = config.protocol == Protocol::kDirect;
    token = token_bytes(config);
    message = is_direct ? encoded_bytes(config) : message_bytes(config);
    row = uint64_t{format.row_bytes} + format.scales_bytes;
    src_info = layout.src_info_bytes / layout.row_capacity;
    const bool fetches_scales = is_direct && format.interleaves_rows && !stores_scales;
    const uint64_t scale_source = fetches_scales ? sizeof(uint32_t) : 0;
    beside_message = is_direct ? src_info + scale_source : 0;
    expert_row = layout.has_encoded_outputs ? combine_bytes(config) : token_bytes(config);
    combine_row = combine_bytes(config);
    staged_scales = fetches_scales ? format.scales_bytes : 0;
    const auto cells = [](int count) { return static_cast<uint64_t>(count) * sizeof(uint64_t); };
    const int num_seats = config.n_experts / n_ranks;
    const int count_cells = CountTableLayout{n_ranks, config.n_experts}.cells_per_rank();
    dispatch_cells = cells(num_seats + (is_direct ? count_cells : 0));
    combine_cells = cells(is_direct ? 1 : num_seats);
  }
};

// How often what moves, from the tokens' ranks to the experts'.
struct Movements {
  const MessageCounts& rows;        // choices of tokens
  const MessageCounts& deliveries;  // messages by where they come from and where they are wanted
  const MessageCounts& hops;        // the same by the ways they take: through a rank of the node, if per node
};

MessagePer kind_of(PlanMessage message, Protocol protocol, bool is_combine) {
  if (message == PlanMessage::kRank) return MessagePer::kRank;
  if (message == PlanMessage::kNode) return MessagePer::kGroup;
  // The slotted protocol sends a repeated id once, and the expert's row back for each.
  return protocol == Protocol::kDirect || is_combine ? MessagePer::kChoice : MessagePer::kExpert;
}

class Counter {
 public:
  Counter(const PlanRouting& routing, const ExpertPlacement& placement, const Cluster& cluster)
      : routing_(routing), cluster_(cluster), num_experts_(static_cast<size_t>(placement.n_experts())) {
    std::vector<int> node_of_rank;
    for (int rank = 0; rank < cluster.n_ranks; ++rank) node_of_rank.push_back(rank / cluster.ranks_per_node);
    for (int rank = 0; rank < cluster.n_ranks; ++rank)
      for (int expert = 0; expert < placement.n_experts(); ++expert)
        owners_.push_back(placement.seat_for(expert, rank, node_of_rank).rank);
  }

  // Counts each kind once.
  const MessageCounts& count(MessagePer per) {
    std::optional<MessageCounts>& counted = counted_[static_cast<size_t>(per)];
    if (!counted) counted = count(per, [&](int rank, int expert) { return owner_of(rank, expert); });
    return *counted;
  }
  // One per (token, node), each to the node's first rank.
  MessageCounts count_nodes() const {
    return count(MessagePer::kRank, [&](int rank, int expert) {
      return owner_of(rank, expert) / cluster_.ranks_per_node * cluster_.ranks_per_node;
    });
  }
  Movements movements(PlanMessage message, Protocol protocol, bool is_combine) {
    const MessagePer kind = kind_of(message, protocol, is_combine);
    return {count(MessagePer::kChoice), count(kind == MessagePer::kGroup ? MessagePer::kRank : kind),
            count(kind)};
  }
  uint64_t num_tokens(int rank) const { return scaled(routing_.step.num_tokens(rank)); }

 private:
  int owner_of(int rank, int expert) const {
    return owners_[static_cast<size_t>(rank) * num_experts_ + static_cast<size_t>(expert)];
  }
  MessageCounts count(MessagePer per, const reference::OwnerFunction& owner_of) const {
    MessageCounts counts = reference::count_messages(routing_.step, per, owner_of, cluster_.ranks_per_node);
    if (routing_.tokens_per_drawn == 1) return counts;
    for (int from = 0; from < cluster_.n_ranks; ++from)
      for (int to = 0; to < cluster_.n_ranks; ++to)
        counts.at(from, to) = scaled(static_cast<double>(counts.at(from, to)));
    return counts;
  }
  uint64_t scaled(double drawn) const {
    return static_cast<uint64_t>(std::llround(drawn * routing_.tokens_per_drawn));
  }

  const PlanRouting& routing_;
  const Cluster& cluster_;
  const size_t num_experts_;
  std::vector<int> owners_;                  // [source rank][expert]
  std::optional<MessageCounts> counted_[4];  // [MessagePer]
};

// Adds up what a phase moves.
class Ledger {
 public:
  Ledger(const Cluster& cluster, PhasePlan& phase) : cluster_(cluster), phase_(phase) {
    const std::vector<uint64_t> none(static_cast<size_t>(cluster.n_ranks));
    phase.bytes = {none, none, none, none, none};
    phase.rows = {none, none};
  }

  void use_memory(int rank, uint64_t bytes) { phase_.bytes.memory[static_cast<size_t>(rank)] += bytes; }
  // Rows with what lies beside them, and cells.
  void send(int from, int to, uint64_t row_bytes, uint64_t cell_bytes) {
    if (from == to) return;
    const size_t source = static_cast<size_t>(from), target = static_cast<size_t>(to);
    const bool is_far = !cluster_.is_same_node(from, to);
    phase_.rows.to_other_ranks[source] += row_bytes;
    if (is_far) phase_.rows.to_other_groups[source] += row_bytes;
    if (cluster_.is_same_device(from, to)) return;
    RankBytes& bytes = phase_.bytes;
    (is_far ? bytes.nic_out : bytes.link_out)[source] += row_bytes + cell_bytes;
    (is_far ? bytes.nic_in : bytes.link_in)[target] += row_bytes + cell_bytes;
  }

 private:
  const Cluster& cluster_;
  PhasePlan& phase_;
};

void count_dispatch(const Movements& moved, const Sizes& sizes, const Counter& counter, StepPlan& plan) {
  const bool is_direct = plan.shape.protocol == Protocol::kDirect;
  const bool sends_rows = plan.shape.message == PlanMessage::kExpert;
  const Cluster& cluster = plan.cluster;
  const uint64_t kept =
      format_layout({.hidden = plan.shape.hidden, .dispatch_format = plan.shape.format}).encodes_by_expert
          ? static_cast<uint64_t>(plan.shape.top_k)
          : 1;
  Ledger ledger(cluster, plan.dispatch);
  for (int from = 0; from < cluster.n_ranks; ++from) {
    const uint64_t num_tokens = counter.num_tokens(from);
    ledger.use_memory(from, num_tokens * (sizes.token + sizes.staged_scales));
    // What goes over the wire is kept in the arena until the peer has answered.
    if (cluster.num_nodes() > 1) ledger.use_memory(from, num_tokens * kept * sizes.message);
    for (int to = 0; to < cluster.n_ranks; ++to) {
      const uint64_t hops = moved.hops.at(from, to), rows = moved.rows.at(from, to);
      const bool is_read_from_memory =
          !cluster.is_same_node(from, to) || (plan.shape.message == PlanMessage::kNode && from != to);
      ledger.send(from, to, hops * (sizes.message + sizes.beside_message), sizes.dispatch_cells);
      if (is_read_from_memory) ledger.use_memory(from, hops * sizes.message);
      ledger.use_memory(from, rows * sizes.staged_scales);
      ledger.use_memory(to, rows * sizes.src_info);
      // The direct protocol stores messages as rows; those of several rows are copied to the others.
      ledger.use_memory(to, hops * (is_direct ? sizes.row : sizes.message));
      const uint64_t deliveries = moved.deliveries.at(from, to);
      const uint64_t rows_left = plan.shape.layout == PlanLayout::kPerRank ? deliveries : rows;
      if (!is_direct)
        ledger.use_memory(to, deliveries * sizes.message + rows_left * sizes.row);
      else if (!sends_rows)
        ledger.use_memory(to, (rows_left - deliveries) * 2 * sizes.row);
    }
  }
}

void count_combine(const Movements& moved, const Sizes& sizes, const Counter& counter, StepPlan& plan) {
  const bool is_direct = plan.shape.protocol == Protocol::kDirect;
  const bool sends_rows = plan.shape.combine_message == PlanMessage::kExpert;
  const Cluster& cluster = plan.cluster;
  Ledger ledger(cluster, plan.combine);
  for (int rank = 0; rank < cluster.n_ranks; ++rank) {
    ledger.use_memory(rank, counter.num_tokens(rank) * sizes.token);  // the output
    for (int owner = 0; owner < cluster.n_ranks; ++owner) {
      const uint64_t hops = moved.hops.at(rank, owner), deliveries = moved.deliveries.at(rank, owner);
      const bool is_far = !cluster.is_same_node(rank, owner);
      ledger.send(owner, rank, hops * sizes.combine_row, sizes.combine_cells);
      ledger.use_memory(
          owner, (plan.shape.layout == PlanLayout::kPerRank ? deliveries : moved.rows.at(rank, owner)) *
                     sizes.expert_row);
      // A sum is written and read again before it leaves; a row that is put is written to a send buffer,
      // except by the direct protocol, whose rows leave from where experts left them.
      const bool is_pulled = is_direct && !is_far && plan.shape.combine_message != PlanMessage::kNode;
      if (!sends_rows || (!is_direct && is_far)) ledger.use_memory(owner, hops * 2 * sizes.combine_row);
      if (!is_pulled) ledger.use_memory(rank, hops * 2 * sizes.combine_row);
    }
  }
}

double total_of(const MessageCounts& counts) {
  double total = 0;
  for (int from = 0; from < counts.n_ranks(); ++from)
    for (int to = 0; to < counts.n_ranks(); ++to) total += static_cast<double>(counts.at(from, to));
  return total;
}

void count_averages(const Movements& dispatched, Counter& counter, StepPlan& plan) {
  double num_tokens = 0;
  for (int rank = 0; rank < plan.cluster.n_ranks; ++rank)
    num_tokens += static_cast<double>(counter.num_tokens(rank));
  if (num_tokens == 0) return;
  plan.messages_per_token = total_of(dispatched.deliveries) / num_tokens;
  plan.ranks_per_token = total_of(counter.count(MessagePer::kRank)) / num_tokens;
  plan.nodes_per_token = total_of(counter.count_nodes()) / num_tokens;
}

}  // namespace

ExpertParallelConfig config_of(const PlanShape& shape, const Cluster& cluster,
                               const ExpertPlacement& placement) {
  return {.n_experts = placement.num_seats_per_rank() * cluster.n_ranks,
          .top_k = shape.top_k,
          .hidden = shape.hidden,
          .max_tokens_per_rank = shape.max_tokens_per_rank,
          .protocol = shape.protocol,
          .dispatch_format = shape.format,
          .combine_format = shape.combine_format};
}

Status count_plan_bytes(const PlanRouting& routing, const ExpertPlacement& placement, StepPlan& plan) {
  const ExpertParallelConfig config = config_of(plan.shape, plan.cluster, placement);
  const bool has_wire = plan.cluster.num_nodes() > 1;
  const Result<ExchangeLayout> layout = ExchangeLayout::of(config, plan.cluster.n_ranks, has_wire);
  if (layout.ok())
    plan.arena_bytes = layout.value().arena_bytes;
  else
    plan.why_no_arena = layout.status().message();
  // What a row needs does not depend on how many there are.
  ExpertParallelConfig of_one_token = config;
  of_one_token.max_tokens_per_rank = 1;
  const Result<ExchangeLayout> small = ExchangeLayout::of(of_one_token, plan.cluster.n_ranks, has_wire);
  if (!small.ok()) return small.status();
  const bool links_rows =
      plan.shape.message == PlanMessage::kRank || plan.shape.combine_message == PlanMessage::kRank;
  const Sizes sizes(config, small.value(), plan.cluster.n_ranks,
                    !has_wire && !links_rows && sends_scales(config, plan.cluster.n_ranks));
  Counter counter(routing, placement, plan.cluster);
  const Movements dispatched = counter.movements(plan.shape.message, plan.shape.protocol, false);
  count_dispatch(dispatched, sizes, counter, plan);
  count_combine(counter.movements(plan.shape.combine_message, plan.shape.protocol, true), sizes, counter,
                plan);
  plan.rows_of_rank.assign(static_cast<size_t>(plan.cluster.n_ranks), 0);
  for (int from = 0; from < plan.cluster.n_ranks; ++from)
    for (int to = 0; to < plan.cluster.n_ranks; ++to)
      plan.rows_of_rank[static_cast<size_t>(to)] += dispatched.rows.at(from, to);
  count_averages(dispatched, counter, plan);
  return Status();
}

}  // namespace switchyard::tools
