// Where a CUDA graph forks into kernels.
#pragma once

#include <cuda_runtime.h>

#include "switchyard/status.hpp"

namespace switchyard {

// Kernels that all wait for the same node, or for none, no longer do: the first of them does, and the others
// begin when all its blocks have begun. Eight launches thus begin 5 us sooner
// (docs/journal/launches-and-graphs.md), since only one of them crosses from stream to stream behind the
// node. The order of what is computed stays the same. All kernels of the graph must run on one device.
Status stagger_forks(cudaGraph_t graph, int num_multiprocessors);

}  // namespace switchyard
