// Whether another process of this machine is being ended. Its sockets and its pidfd tell only when it has
// given back all that it has, which takes seconds of what it has on a GPU.
#pragma once

#include <cstdint>

namespace switchyard {

enum class ProcessState {
  kRuns,
  kEnds,     // it has been killed, or is at its end, or is gone
  kUnknown,  // this system does not say
};

ProcessState state_of_process(int64_t pid);

}  // namespace switchyard
