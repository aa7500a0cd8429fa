// Calls of CUDA that have nothing to do with what a thread records.
#pragma once

#include <cuda_runtime.h>

namespace switchyard {

// What is done meanwhile, such as freeing memory, is no part of a recording that this thread may be making,
// and must not invalidate it.
class OutsideOfRecordings {
 public:
  OutsideOfRecordings() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~OutsideOfRecordings() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideOfRecordings(const OutsideOfRecordings&) = delete;
  OutsideOfRecordings& operator=(const OutsideOfRecordings&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace switchyard
