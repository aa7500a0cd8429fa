// Streams as Python has them.
#pragma once

#include "errors.hpp"
#include "switchyard/types/target.hpp"

namespace switchyard::python {

// None is the rank's own. A stream of the caller's is an int (a cudaStream_t), or has cuda_stream (PyTorch's)
// or
// __cuda_stream__.
Stream stream_of(const char* call, nb::handle stream);

}  // namespace switchyard::python
