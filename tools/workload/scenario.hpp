// What one seed of `switchyard simulate` draws: a world, some steps and perhaps a fault.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reference/token_tensors.hpp"
#include "switchyard/expert_parallel.hpp"
#include "workload.hpp"

namespace switchyard::tools {

enum class SimulatedFault {
  kNone,
  kShortStall,  // a rank is late, but within the deadline: the step must succeed
  kLongStall,   // a rank is later than the deadline: it is named, and learns of the fault when it arrives
  kKill,        // a rank never reaches some phase: it is named
  kBadId,       // an id out of range: the rank is named
  kOverflow,    // direct: a step exceeds the capacity of a rank: all ranks skip it and report that
};

const char* to_string(SimulatedFault fault);

struct Scenario {
  uint64_t seed = 0;
  int n_ranks = 2;
  int n_experts = 4;
  int top_k = 2;
  int hidden = 16;
  int max_tokens = 4;
  int room_for_tokens = 4;  // of each rank, for which the exchange has memory
  int n_sms = 2;
  int p2p_world_size = 0;  // 0: all ranks reach each other without a wire
  // Where experts are in the first step, and in the others; nothing: divided evenly.
  std::optional<ExpertPlacement> first_placement, next_placement;
  StepMode mode = StepMode::kSplit;
  Protocol protocol = Protocol::kSlotted;
  TokenFormatKind format = TokenFormatKind::kBF16;
  CombineFormat combine_format = CombineFormat::kBF16;
  double capacity_factor = 0;
  RowLayout row_layout = RowLayout::kRagged;
  int row_alignment = 1;
  RowDelivery row_delivery = RowDelivery::kAutomatic;
  bool reduce_at_owner = false;
  int steps_in_flight = 1;
  reference::TensorStyle style;  // how tokens and ids are handed over

  // Masked: every id may be the same.
  int max_rows_per_expert() const {
    return row_layout == RowLayout::kMasked ? n_ranks * max_tokens * top_k : 0;
  }
  std::vector<std::vector<int>> tokens_of_step;  // [step][rank]
  SimulatedFault fault = SimulatedFault::kNone;
  int fault_step = 0;
  int fault_rank = 0;
  int fault_phase = 0;            // an index into phases()
  bool go_on_with_fewer = false;  // after a kill: without the dead rank

  std::vector<std::string> phases() const;
  std::string describe() const;
};

// The choices among which a seed draws.
struct ScenarioSpace {
  std::vector<int> rank_counts = {2, 3, 4};
  Protocol protocol = Protocol::kAutomatic;     // automatic: either
  std::optional<TokenFormatKind> format;        // nothing: any
  std::optional<CombineFormat> combine_format;  // nothing: either
  std::vector<SimulatedFault> faults;           // empty: none
};
Scenario draw_scenario(uint64_t seed, const ScenarioSpace& space);

}  // namespace switchyard::tools
