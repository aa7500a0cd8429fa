// What a tile scheduler really did: the times that each tile took inside the attention kernel, told in the
// twin's units so that both fit on one axis.
#pragma once

#include "switchyard/world.hpp"
#include "tile_twin.hpp"

namespace switchyard::tools {

struct MeasuredSchedule {
  TwinResult result;  // as a twin's, with measured times
  double microseconds_per_unit = 0;
};

// Tiles have the kernel's size from here on.
Status fit_to_kernel(AttentionWorkload& workload);
// Runs the workload on one rank of the world. `twin`: what was predicted, for the unit of time.
Result<MeasuredSchedule> measure_schedule(World& world, const AttentionWorkload& workload,
                                          const TwinResult& twin);

}  // namespace switchyard::tools
