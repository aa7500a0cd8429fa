// ShmemApi::abandon(), the same for every SHMEM.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>

namespace switchyard {

// What SHMEM and its launcher have registered with exit() may wait for ever. This handler is the last to be
// registered, and so the first to run.
inline void abandon() {
  on_exit(
      [](int status, void*) {
        (void)std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
}

}  // namespace switchyard
