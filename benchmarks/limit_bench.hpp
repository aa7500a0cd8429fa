// The times that this machine needs for the bare data movement of dispatch and combine, without a protocol:
// the limits with which their times are compared.
#pragma once

#include "ep_bench.hpp"
#include "workload/workload.hpp"

namespace switchyard::tools {

struct Limits {
  Timing scatter;  // every token to top_k random rows: what dispatch has to do
  Timing gather;   // top_k random rows, weighted, to every token: what combine has to do
};

// Measures all ranks together, on as many blocks as they have, each device within its own memory. Returns
// kResourceExhausted if memory does not suffice.
Result<Limits> measure_limits(World& world, const Workload& workload, const EpLaunch& launch,
                              int num_replays);

}  // namespace switchyard::tools
