#pragma once

#include <cstdint>

namespace switchyard {

// Where to store the time at which a rank's stream reached the kernel, on the clock of its target.
struct TimeStampParams {
  uint64_t* reached_ns;
};

}  // namespace switchyard
