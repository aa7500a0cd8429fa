// One seed of `switchyard simulate`: a world, some steps and perhaps a fault, all drawn from the seed, run in
// the emulator's simulated mode with weak memory and checked against the plain reference.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "switchyard/expert_parallel.hpp"
#include "workload.hpp"

namespace switchyard::tools {

enum class SimulatedFault {
  kNone,
  kShortStall,  // a rank comes late, but in time: nothing may go wrong
  kLongStall,   // a rank comes after the deadline: it is named, and finds out itself when it comes
  kKill,        // a rank never comes to some phase: it is named
  kBadId,       // an id out of range: the rank is named
  kOverflow,    // direct: a rank has no room for a step's rows: all ranks skip it and say so
};

const char* to_string(SimulatedFault fault);

struct Scenario {
  uint64_t seed = 0;
  int n_ranks = 2;
  int n_experts = 4;
  int top_k = 2;
  int hidden = 16;
  int max_tokens = 4;
  int n_sms = 2;
  StepMode mode = StepMode::kSplit;
  Protocol protocol = Protocol::kSlotted;
  TokenFormatKind format = TokenFormatKind::kBF16;
  CombineFormat combine_format = CombineFormat::kBF16;
  double capacity_factor = 0;
  std::vector<std::vector<int>> tokens_of_step;  // [step][rank]
  SimulatedFault fault = SimulatedFault::kNone;
  int fault_step = 0;
  int fault_rank = 0;
  int fault_phase = 0;            // an index into phases()
  bool go_on_with_fewer = false;  // after a kill: without the dead rank

  std::vector<std::string> phases() const;
  std::string describe() const;
};

// What a seed draws from.
struct ScenarioSpace {
  std::vector<int> rank_counts = {2, 3, 4};
  Protocol protocol = Protocol::kAutomatic;     // automatic: either
  std::optional<TokenFormatKind> format;        // nothing: any
  std::optional<CombineFormat> combine_format;  // nothing: either
  std::vector<SimulatedFault> faults;           // empty: none
};
Scenario draw_scenario(uint64_t seed, const ScenarioSpace& space);

struct SimulationResult {
  std::string difference;           // empty: everything was as it must be
  uint64_t trace_hash = 0;          // the same for the same seed
  std::vector<std::string> events;  // by rank, the last ones
};

SimulationResult simulate(const Scenario& scenario);

}  // namespace switchyard::tools
