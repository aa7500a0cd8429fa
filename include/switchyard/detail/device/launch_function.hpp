// A launch behind a plain function: its caller knows neither the kernel nor the target.
#pragma once

#include "switchyard/detail/target/vocabulary.hpp"
#include "switchyard/status.hpp"

namespace switchyard {

template <typename... Arguments>
using LaunchFunction = Status (*)(const LaunchShape& shape, StreamHandle stream,
                                  const Arguments&... arguments);

}  // namespace switchyard
