// Builds without the CUDA target: there are no GPUs, and that is no error until one is asked for.
#include "switchyard/detail/device/memory_opener.hpp"

namespace switchyard {

CudaReport report_cuda() { return {}; }
int num_cuda_devices() { return 0; }
std::string why_no_cuda() {
  return "this build has no CUDA target (it was configured without nvcc, where no GPU was, or with "
         "SWITCHYARD_CUDA off)";
}
Result<std::vector<std::unique_ptr<Device>>> create_cuda_devices(int num_devices) {
  return unavailable("%d GPU(s) asked for: %s", num_devices, why_no_cuda().c_str());
}
Result<std::unique_ptr<Device>> create_cuda_device(int ordinal) {
  return unavailable("GPU %d asked for: %s", ordinal, why_no_cuda().c_str());
}
std::unique_ptr<MemoryOpener> create_memory_opener(Device&) { return std::make_unique<MemoryOpener>(); }

}  // namespace switchyard
