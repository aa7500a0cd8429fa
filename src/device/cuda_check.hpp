// Errors of the CUDA runtime as Status values.
#pragma once

#include <cuda_runtime.h>

#include "switchyard/detail/target/cuda_error.hpp"

namespace switchyard {

inline Status check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status();
  cudaGetLastError();  // a failed call must not fail the next one too
  const char* text = cudaGetErrorString(error);
  if (error == cudaErrorMemoryAllocation) return resource_exhausted("%s: %s", what, text);
  if (error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread)
    return failed_precondition("%s cannot be part of a recording, which holds launches only: %s", what, text);
  return explain_cuda_error(error, internal_error("%s: %s", what, text));
}

}  // namespace switchyard
