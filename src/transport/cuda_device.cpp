// One GPU as a device. Compiled only where the CUDA toolkit is; no_cuda.cpp stands in elsewhere.
#include <cuda_runtime.h>

#include <algorithm>

#include "switchyard/transport/device.hpp"

namespace switchyard {
namespace {

Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status();
  cudaGetLastError();  // a failed call must not fail the next one too
  if (error == cudaErrorMemoryAllocation) return resource_exhausted("%s: %s", what, cudaGetErrorString(error));
  return internal_error("%s: %s", what, cudaGetErrorString(error));
}

class CudaDevice : public Device {
 public:
  CudaDevice(int ordinal, const cudaDeviceProp& properties)
      : ordinal_(ordinal), name_(properties.name), num_multiprocessors_(properties.multiProcessorCount) {}

  Target target() const override { return Target::kCuda; }
  std::string name() const override { return name_; }
  const KernelTable& kernels() const override { return cuda_kernel_table(); }
  Status activate() override { return check(cudaSetDevice(ordinal_), "cudaSetDevice"); }
  int num_multiprocessors() const override { return num_multiprocessors_; }

  Result<void*> allocate(uint64_t bytes) override {
    SWITCHYARD_RETURN_IF_ERROR(activate());
    void* memory = nullptr;
    const std::string what = std::to_string(bytes) + " bytes of GPU memory";
    SWITCHYARD_RETURN_IF_ERROR(check(cudaMalloc(&memory, bytes == 0 ? 1 : bytes), what.c_str()));
    SWITCHYARD_RETURN_IF_ERROR(check(cudaMemset(memory, 0, bytes), "cudaMemset"));
    SWITCHYARD_RETURN_IF_ERROR(check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
    return memory;
  }
  void deallocate(void* memory) override {
    if (activate().ok()) cudaFree(memory);
  }
  Result<void*> allocate_host_visible(uint64_t bytes) override {
    SWITCHYARD_RETURN_IF_ERROR(activate());
    void* memory = nullptr;
    SWITCHYARD_RETURN_IF_ERROR(
        check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc"));
    std::fill_n(static_cast<std::byte*>(memory), bytes, std::byte{0});
    return memory;
  }
  void deallocate_host_visible(void* memory) override { cudaFreeHost(memory); }

  Result<StreamHandle> create_stream() override {
    SWITCHYARD_RETURN_IF_ERROR(activate());
    cudaStream_t stream = nullptr;
    SWITCHYARD_RETURN_IF_ERROR(check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
    return static_cast<StreamHandle>(stream);
  }
  void destroy_stream(StreamHandle stream) override { cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }
  Status synchronize(StreamHandle stream) override {
    return check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "a kernel or copy of the stream");
  }
  Status copy(void* dst, const void* src, uint64_t bytes, StreamHandle stream) override {
    SWITCHYARD_RETURN_IF_ERROR(activate());
    SWITCHYARD_RETURN_IF_ERROR(check(
        cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)), "cudaMemcpyAsync"));
    return synchronize(stream);
  }
  Status fill(void* dst, uint8_t value, uint64_t bytes, StreamHandle stream) override {
    SWITCHYARD_RETURN_IF_ERROR(activate());
    SWITCHYARD_RETURN_IF_ERROR(
        check(cudaMemsetAsync(dst, value, bytes, static_cast<cudaStream_t>(stream)), "cudaMemsetAsync"));
    return synchronize(stream);
  }

 private:
  const int ordinal_;
  const std::string name_;
  const int num_multiprocessors_;
};

}  // namespace

CudaReport report_cuda() {
  CudaReport report{.is_built_in = true, .toolkit_version = CUDART_VERSION};
  int count = 0;
  if (cudaDriverGetVersion(&report.driver_version) != cudaSuccess || cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return report;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) continue;
    GpuInfo gpu{properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                properties.totalGlobalMem, {}};
    for (int peer = 0; peer < count; ++peer) {
      int can_reach = 0;
      if (peer != ordinal && cudaDeviceCanAccessPeer(&can_reach, ordinal, peer) == cudaSuccess && can_reach != 0)
        gpu.peers.push_back(peer);
    }
    report.gpus.push_back(std::move(gpu));
  }
  return report;
}

int num_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  int num_usable = 0;
  for (; num_usable < count; ++num_usable) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, num_usable) != cudaSuccess || major < 9) break;
  }
  return num_usable;
}

std::string why_no_cuda() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return std::string("the CUDA driver says: ") + cudaGetErrorString(error);
  }
  return "no GPU of compute capability 9.0 or later";
}

Result<std::vector<std::unique_ptr<Device>>> create_cuda_devices(int num_devices) {
  if (num_devices > num_cuda_devices() || num_cuda_devices() == 0)
    return unavailable("%d GPU(s) asked for, %d there: %s", num_devices, num_cuda_devices(), why_no_cuda().c_str());
  std::vector<std::unique_ptr<Device>> devices;
  for (int ordinal = 0; ordinal < num_devices; ++ordinal) {
    cudaDeviceProp properties{};
    SWITCHYARD_RETURN_IF_ERROR(check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
    devices.push_back(std::make_unique<CudaDevice>(ordinal, properties));
    SWITCHYARD_RETURN_IF_ERROR(devices.back()->activate());
    for (int peer = 0; peer < num_devices; ++peer) {
      if (peer == ordinal) continue;
      const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
        continue;
      }
      if (error != cudaSuccess) {
        cudaGetLastError();
        return unavailable("GPU %d cannot reach the memory of GPU %d: %s", ordinal, peer, cudaGetErrorString(error));
      }
    }
  }
  return devices;
}

}  // namespace switchyard
