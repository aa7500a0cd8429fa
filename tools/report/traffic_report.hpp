// The bytes that leave ranks in a step, for people and for programs.
#pragma once

#include "files/json_object.hpp"
#include "reference/traffic.hpp"

namespace switchyard::tools {

// Two lines of a table.
void print_traffic(const reference::StepTraffic& traffic);
JsonObject traffic_json(const reference::StepTraffic& traffic);

}  // namespace switchyard::tools
