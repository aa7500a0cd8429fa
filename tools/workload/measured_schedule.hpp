// What a tile scheduler really did: the time of each tile inside the attention kernel, in the twin's units,
// so that both fit on one axis.
#pragma once

#include "switchyard/world.hpp"
#include "tile_twin.hpp"

namespace switchyard::tools {

struct MeasuredSchedule {
  TwinResult result;  // as a twin's, with measured times
  double microseconds_per_unit = 0;
};

// Gives the workload's tiles the size of the kernel's.
Status fit_to_kernel(AttentionWorkload& workload);
// Runs the workload on one rank of the world. `twin` is the prediction, which gives the unit of time.
Result<MeasuredSchedule> measure_schedule(World& world, const AttentionWorkload& workload,
                                          const TwinResult& twin);

}  // namespace switchyard::tools
