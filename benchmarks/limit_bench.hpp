// What this machine needs for the bare data movement of dispatch and combine, with no protocol: the limits
// that their times are compared with.
#pragma once

#include "ep_bench.hpp"
#include "workload/workload.hpp"

namespace switchyard::tools {

struct Limits {
  Timing scatter;  // every token to top_k random rows: what dispatch has to do
  Timing gather;   // top_k random rows, weighted, to every token: what combine has to do
};

// Of all ranks together, on as many blocks as theirs, each device within its own memory. kResourceExhausted
// where memory does not suffice.
Result<Limits> measure_limits(World& world, const Workload& workload, const EpLaunch& launch,
                              int num_replays);

}  // namespace switchyard::tools
