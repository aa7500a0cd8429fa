// One seed of `switchyard simulate`: a world, some steps and perhaps a fault, all drawn from the seed, run in
// the emulator's simulated mode with weak memory and checked against the plain reference.
#pragma once

#include <string>
#include <vector>

#include "switchyard/runtime/expert_parallel.hpp"
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

// `faults` empty: none. Else one of them, drawn. An automatic protocol is drawn as well.
Scenario draw_scenario(uint64_t seed, Protocol protocol, const std::vector<int>& rank_counts,
                       const std::vector<SimulatedFault>& faults);

struct SimulationResult {
  std::string difference;           // empty: everything was as it must be
  uint64_t trace_hash = 0;          // the same for the same seed
  std::vector<std::string> events;  // by rank, the last ones
};

SimulationResult simulate(const Scenario& scenario);

}  // namespace switchyard::tools
