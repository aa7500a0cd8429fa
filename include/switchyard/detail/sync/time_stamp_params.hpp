#pragma once

#include <cstdint>

namespace switchyard {

// When a rank's stream has come so far, by the clock of its target.
struct TimeStampParams {
  uint64_t* reached_ns;
};

}  // namespace switchyard
