// Errors of CUDA as Status values. Only names of the CUDA headers are needed here, nothing that is linked.
#pragma once

#include <driver_types.h>

#include "switchyard/detail/base/lost_context.hpp"

namespace switchyard {

// Whether the process's context is lost with this error: later calls fail, too, whatever they are. An error
// of the driver has the same number.
inline bool is_context_lost(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsServerNotReady:
    case cudaErrorMpsClientTerminated:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

// Returns what the caller hears of `error`: `status`, or, if the context is lost, who has taken it along.
// Every error of CUDA that becomes a Status passes through here.
inline Status explain_cuda_error(cudaError_t error, const Status& status) {
  return is_context_lost(error) ? explain_lost_context(status) : status;
}

}  // namespace switchyard
