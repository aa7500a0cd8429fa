// Functions of the CUDA driver, looked up at run time, so that nothing but the CUDA runtime is linked.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "cuda_check.hpp"

namespace switchyard {

inline constexpr unsigned kDriverVersion = 12000;  // of the functions that are used: none is newer

template <typename Function>
Status look_up_in_driver(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  SWITCHYARD_RETURN_IF_ERROR(check_cuda(
      cudaGetDriverEntryPointByVersion(name, &found, kDriverVersion, cudaEnableDefault, &result), name));
  if (result != cudaDriverEntryPointSuccess || found == nullptr)
    return unavailable("the CUDA driver has no %s", name);
  function = reinterpret_cast<Function>(found);
  return Status();
}

inline Status check_driver(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return Status();
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return resource_exhausted("%s: out of memory", call);
  return explain_cuda_error(
      static_cast<cudaError_t>(result),
      internal_error("%s: error %d of the CUDA driver", call, static_cast<int>(result)));
}

}  // namespace switchyard
