#pragma once

#include <cstdint>

namespace switchyard {

// A stall, for trying out what lateness does.
struct StallParams {
  uint64_t duration_ns;
};

}  // namespace switchyard
