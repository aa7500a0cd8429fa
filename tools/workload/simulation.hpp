// One seed of `switchyard simulate`: what it draws (scenario.hpp), run in the emulator's simulated mode with
// weak memory and checked against the plain reference.
#pragma once

#include <string>
#include <vector>

#include "scenario.hpp"

namespace switchyard::tools {

struct SimulationResult {
  std::string difference;           // empty: the seed passed
  uint64_t trace_hash = 0;          // the same for the same seed
  std::vector<std::string> events;  // by rank, the last ones
};

SimulationResult simulate(const Scenario& scenario);

}  // namespace switchyard::tools
