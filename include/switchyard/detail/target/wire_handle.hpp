// The handle of a wire, which kernels get in their parameters; target/wire.hpp has the words that take it.
#pragma once

#include <cstddef>

namespace switchyard {

namespace emulator {
class WireEngine;  // target/host_wire.hpp
}

// How a rank reaches the arenas of ranks that its loads and stores do not reach. Every rank of the world has
// an arena of the same size and layout. Each target reads only the members that are said to be its own.
struct Wire {
  int rank = 0;                               // whose wire this is
  emulator::WireEngine* engine = nullptr;     // host
  std::byte* arena = nullptr;                 // this rank's
  std::byte* const* arena_of_rank = nullptr;  // CUDA, all ranks in this process: [rank], in device memory
};

}  // namespace switchyard
