// The twin of a cluster: the bytes that a step moves over each link, NIC and memory, counted with the layouts
// of the library and the routing's own rows, and the times that follow from them (docs/plan.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/traffic.hpp"
#include "switchyard/expert_parallel.hpp"
#include "switchyard/types/expert_placement.hpp"

namespace switchyard::tools {

// What a message carries: one row, all rows of a token for one rank, or for one node, whose ranks pass them
// on. On the way back the same rows are summed up before they leave.
enum class PlanMessage { kExpert, kRank, kNode };
// Where dispatched rows lie: expert by expert with or without gaps, or each token once per rank.
enum class PlanLayout { kRagged, kMasked, kPerRank };

const char* to_string(PlanMessage message);
const char* to_string(PlanLayout layout);

// What is sent.
struct PlanShape {
  int max_tokens_per_rank = 4096;
  int hidden = 7168;
  int n_experts = 256;
  int top_k = 8;
  int n_sms = 16;  // blocks per rank
  Protocol protocol = Protocol::kDirect;
  TokenFormatKind format = TokenFormatKind::kBF16;
  CombineFormat combine_format = CombineFormat::kBF16;
  PlanLayout layout = PlanLayout::kRagged;
  PlanMessage message = PlanMessage::kExpert;
  PlanMessage combine_message = PlanMessage::kExpert;
};

// Where it is sent: ranks [0, ranks_per_node), .. reach each other by links, others by a NIC for each rank.
// The last node may have fewer ranks.
struct Cluster {
  int n_ranks = 8;
  int ranks_per_node = 8;
  int ranks_per_device = 1;  // that share one memory, and need no link to each other
  double link_gb_s = 450;    // each way, of a rank
  double nic_gb_s = 50;
  double link_latency_us = 1;  // one way, beyond what the memory of one device takes
  double nic_latency_us = 4;

  bool is_same_device(int a, int b) const { return a / ranks_per_device == b / ranks_per_device; }
  bool is_same_node(int a, int b) const { return a / ranks_per_node == b / ranks_per_node; }
  int num_nodes() const { return (n_ranks + ranks_per_node - 1) / ranks_per_node; }
};

// The routing of a step. Of many tokens only some are drawn, each of which then counts for several.
struct PlanRouting {
  reference::Step step;  // topk_ids alone
  double tokens_per_drawn = 1;

  double num_tokens(int rank) const { return step.num_tokens(rank) * tokens_per_drawn; }
};

// By rank.
struct RankBytes {
  std::vector<uint64_t> link_out, link_in, nic_out, nic_in, memory;
};

enum class Resource { kMemory, kLink, kNic, kLatency };
const char* to_string(Resource resource);

struct PhasePlan {
  RankBytes bytes;                                                // with counts and signals
  reference::PhaseTraffic rows;                                   // without, as `run` counts them
  double memory_us = 0, link_us = 0, nic_us = 0, latency_us = 0;  // each alone, of the slowest rank

  double us() const;
  Resource bound() const;  // what takes longest
};

struct StepPlan {
  Cluster cluster;
  PlanShape shape;
  PhasePlan dispatch, combine;
  double step_us = 0;
  uint64_t arena_bytes = 0;            // of each rank
  std::string why_no_arena;            // not empty: the library cannot make one
  std::vector<uint64_t> rows_of_rank;  // that its experts work on
  // Of dispatch, what stays on the rank included: messages, distinct ranks and distinct nodes of a token.
  double messages_per_token = 0, ranks_per_token = 0, nodes_per_token = 0;
};

// A number of the model that was measured or assumed.
struct CalibratedNumber {
  const char* name;
  double value;
  const char* unit;
  const char* source;
};

struct ProtocolCalibration {
  CalibratedNumber dispatch_gb_s, combine_gb_s;  // of memory, read and written
  CalibratedNumber dispatch_us, combine_us;      // of one token, 8 ranks on one device
  CalibratedNumber join_us;                      // what dispatch and combine alone take beyond their step
};

struct Calibration {
  ProtocolCalibration direct, slotted;
  CalibratedNumber stagger_us;   // by which each further rank of a device starts later
  CalibratedNumber trip_us;      // from a release to its acquire, on one device
  CalibratedNumber release_us;   // that a release at system scope takes longer
  CalibratedNumber per_peer_us;  // for each further rank that one block sends its counts to

  // All of them, to be printed.
  std::vector<CalibratedNumber> numbers() const;
};
const Calibration& calibration();

// The signals that one phase waits for, one behind the other.
struct SignalChain {
  int num_signals;        // releases that wait for the one before
  int num_pulls;          // round trips of loads, where ranks load from each other
  int num_counted_peers;  // ranks that every rank tells its counts, before anything moves
};
SignalChain dispatch_chain(const PlanShape& shape, const Cluster& cluster);
SignalChain combine_chain(const PlanShape& shape, const Cluster& cluster);

// The error names the flags of `switchyard plan`.
Result<StepPlan> plan_step(const PlanShape& shape, const Cluster& cluster, const PlanRouting& routing,
                           const ExpertPlacement& placement);

// Of plan_step(): the bytes of both phases.
Status count_plan_bytes(const PlanRouting& routing, const ExpertPlacement& placement, StepPlan& plan);
// The times that follow from the bytes.
void predict_plan_times(StepPlan& plan);

// As the kernels are told: as many experts as there are seats.
ExpertParallelConfig config_of(const PlanShape& shape, const Cluster& cluster,
                               const ExpertPlacement& placement);

}  // namespace switchyard::tools
