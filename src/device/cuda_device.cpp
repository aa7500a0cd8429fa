// One GPU as a device. Compiled only where the CUDA toolkit is; no_cuda.cpp stands in elsewhere.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "cuda_check.hpp"
#include "cuda_recording.hpp"
#include "cuda_shared_memory.hpp"
#include "outside_of_recordings.hpp"
#include "switchyard/detail/device/callers_memory.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/device/gpu_architecture.hpp"

namespace switchyard {
namespace {

constexpr char kArchitectures[] = SWITCHYARD_CUDA_ARCHITECTURES;

constexpr CurrentDeviceCalls kCurrentDevice = {
    [](int& ordinal) { return check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice"); },
    [](int ordinal) { return check_cuda(cudaSetDevice(ordinal), "cudaSetDevice"); }};

std::string in_hex(const cudaUUID_t& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : uuid.bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

class CudaDevice : public Device {
 public:
  CudaDevice(int ordinal, const cudaDeviceProp& properties)
      : ordinal_(ordinal),
        name_(properties.name),
        uuid_(in_hex(properties.uuid)),
        num_multiprocessors_(properties.multiProcessorCount),
        max_shared_bytes_(properties.sharedMemPerBlockOptin),
        compute_capability_{properties.major, properties.minor} {}

  ~CudaDevice() override {
    if (service_stream_ != nullptr) cudaStreamDestroy(service_stream_);
  }

  Target target() const override { return Target::kCuda; }
  std::string name() const override { return name_; }
  DeviceScope activate() override { return {kCurrentDevice, ordinal_}; }
  int num_multiprocessors() const override { return num_multiprocessors_; }
  uint64_t max_shared_bytes() const override { return max_shared_bytes_; }
  Status check_matrix_unit() const override {
    if (has_matrix_unit(kArchitectures, compute_capability_)) return Status();
    return unavailable(
        "attention and the tiled matmul need the matrix unit of Hopper: compute capability 9.0 and a build "
        "for "
        "90a; GPU %d (%s) has %s, and this build is for %s",
        ordinal_, name_.c_str(), compute_capability_.to_string().c_str(), kArchitectures);
  }

  Result<void*> allocate(uint64_t bytes) override {
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    if (callers_memory_.is_used()) return take_from_caller(bytes);
    void* memory = nullptr;
    const std::string what = std::to_string(bytes) + " bytes of GPU memory";
    SWITCHYARD_RETURN_IF_ERROR(check_cuda(cudaMalloc(&memory, bytes == 0 ? 1 : bytes), what.c_str()));
    if (Status status = clear(memory, bytes); !status.ok()) {
      cudaFree(memory);
      return status;
    }
    return memory;
  }
  void deallocate(void* memory) override {
    const DeviceScope active = activate();
    if (!active.status().ok()) return;
    const OutsideOfRecordings outside;
    if (!callers_memory_.deallocate(memory, ordinal_, nullptr)) (void)cudaFree(memory);
  }
  void use(const MemoryFunctions& functions) override { callers_memory_.use(functions); }
  // Memory comes from the device's pool: unlike cudaFree, freeing it does not wait for the whole device.
  Result<void*> allocate_for(StreamHandle, uint64_t bytes) override {
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    if (callers_memory_.is_used()) return take_from_caller(bytes);
    const Result<cudaStream_t> stream = service_stream();
    if (!stream.ok()) return stream.status();
    void* memory = nullptr;
    const std::string what = std::to_string(bytes) + " bytes of GPU memory";
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaMallocAsync(&memory, bytes == 0 ? 1 : bytes, stream.value()), what.c_str()));
    if (Status status = clear(memory, bytes); !status.ok()) {
      (void)cudaFreeAsync(memory, stream.value());
      return status;
    }
    return memory;
  }
  void deallocate_behind(StreamHandle stream, void* memory) override {
    if (!check_not_recording(stream).ok()) {
      // cudaFree waits for the whole device. The caller's memory goes back with the device, when nothing runs.
      if (!callers_memory_.has(memory)) deallocate(memory);
      return;
    }
    const DeviceScope active = activate();
    if (!active.status().ok() || callers_memory_.deallocate(memory, ordinal_, stream)) return;
    (void)cudaFreeAsync(memory, static_cast<cudaStream_t>(stream));
  }
  Result<void*> allocate_host_visible(uint64_t bytes) override {
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    void* memory = nullptr;
    SWITCHYARD_RETURN_IF_ERROR(check_cuda(
        cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc"));
    std::fill_n(static_cast<std::byte*>(memory), bytes, std::byte{0});
    return memory;
  }
  void deallocate_host_visible(void* memory) override {
    const OutsideOfRecordings outside;
    (void)cudaFreeHost(memory);
  }

  Result<SharedMemory> allocate_shared(uint64_t bytes) override {
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    Result<SharedMemory> memory = create_shared_cuda_memory(ordinal_, bytes);
    if (memory.ok()) SWITCHYARD_RETURN_IF_ERROR(clear(memory.value().mapping->data(), bytes));
    return memory;
  }
  Result<std::unique_ptr<SharedMapping>> map_shared(const FileDescriptor& file, uint64_t bytes) override {
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    return map_shared_cuda_memory(ordinal_, file, bytes);
  }
  Result<SharedMemory> allocate_shared_host_visible(uint64_t bytes) override {
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    Result<SharedMemory> memory = create_memory_file(bytes);
    if (!memory.ok()) return memory;
    Result<std::unique_ptr<SharedMapping>> visible =
        make_visible_to_cuda(std::move(memory.value().mapping), bytes);
    if (!visible.ok()) return visible.status();
    return SharedMemory{std::move(visible).value(), std::move(memory.value().file)};
  }
  Result<std::unique_ptr<SharedMapping>> map_shared_host_visible(const FileDescriptor& file,
                                                                 uint64_t bytes) override {
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    Result<std::unique_ptr<SharedMapping>> mapping = map_memory_file(file, bytes);
    if (!mapping.ok()) return mapping;
    return make_visible_to_cuda(std::move(mapping).value(), bytes);
  }
  std::string uuid() const override { return uuid_; }

  Result<StreamHandle> create_stream() override {
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    cudaStream_t stream = nullptr;
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
    return static_cast<StreamHandle>(stream);
  }
  void destroy_stream(StreamHandle stream) override { cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }
  Status synchronize(StreamHandle stream) override {
    SWITCHYARD_RETURN_IF_ERROR(check_not_recording(stream));
    return check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)),
                      "a kernel or copy of the stream");
  }
  void drain(StreamHandle stream) override {
    // A stream that is being recorded cannot be waited for; cudaFree then waits for the whole device.
    if (check_not_recording(stream).ok()) (void)cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
  }
  Status check_stream(StreamHandle stream) const override {
    // The null stream and its two other names are those of whatever device is current.
    if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return Status();
    // One that was destroyed meanwhile, and made again on another device, fails at the launch.
    if (checked_stream_.load(std::memory_order_relaxed) == stream) return Status();
    // Nothing else may be asked of a stream that is being captured; its launches fail on another device.
    if (is_recording(stream)) return Status();
    int ordinal = -1;
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaStreamGetDevice(static_cast<cudaStream_t>(stream), &ordinal), "cudaStreamGetDevice"));
    if (ordinal == ordinal_) {
      checked_stream_.store(stream, std::memory_order_relaxed);
      return Status();
    }
    return invalid_argument("stream is %p of GPU %d; the rank is on GPU %d", stream, ordinal, ordinal_);
  }
  bool is_recording(StreamHandle stream) const override { return !check_not_recording(stream).ok(); }
  Status synchronize_all() override {
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    return check_cuda(cudaDeviceSynchronize(), "a kernel or copy of the device");
  }
  void drain_all() override { (void)synchronize_all(); }
  // An error of the context shows on every stream of it.
  Status poll() override {
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    const OutsideOfRecordings outside;
    const Result<cudaStream_t> stream = service_stream();
    if (!stream.ok()) return stream.status();
    const cudaError_t error = cudaStreamQuery(stream.value());
    return error == cudaErrorNotReady ? Status() : check_cuda(error, "a kernel or copy of the device");
  }
  Status copy(void* dst, const void* src, uint64_t bytes, StreamHandle stream) override {
    SWITCHYARD_RETURN_IF_ERROR(check_not_recording(stream));
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
                   "cudaMemcpyAsync"));
    return synchronize(stream);
  }
  Status fill(void* dst, uint8_t value, uint64_t bytes, StreamHandle stream) override {
    SWITCHYARD_RETURN_IF_ERROR(check_not_recording(stream));
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaMemsetAsync(dst, value, bytes, static_cast<cudaStream_t>(stream)), "cudaMemsetAsync"));
    return synchronize(stream);
  }

  Status store_while_running(uint64_t* memory, uint64_t value) override {
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    const Result<cudaStream_t> stream = service_stream();
    if (!stream.ok()) return stream.status();
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaMemcpyAsync(memory, &value, sizeof(value), cudaMemcpyDefault, stream.value()),
                   "cudaMemcpyAsync"));
    return check_cuda(cudaStreamSynchronize(stream.value()), "cudaStreamSynchronize");
  }
  Result<uint64_t> load_while_running(const uint64_t* memory) override {
    const DeviceScope active = activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    const OutsideOfRecordings outside;
    const Result<cudaStream_t> stream = service_stream();
    if (!stream.ok()) return stream.status();
    uint64_t value = 0;
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaMemcpyAsync(&value, memory, sizeof(value), cudaMemcpyDefault, stream.value()),
                   "cudaMemcpyAsync"));
    SWITCHYARD_RETURN_IF_ERROR(check_cuda(cudaStreamSynchronize(stream.value()), "cudaStreamSynchronize"));
    return value;
  }
  Result<std::unique_ptr<Recording>> begin_recording(const std::vector<DeviceStream>& streams) override {
    return begin_cuda_recording(streams);
  }

 private:
  // This must not be the stream of a rank, whose kernels may be waiting for a launch that has not come yet.
  // One stream serves for the life of the device: each new one could take the hardware queue of a rank's.
  Result<cudaStream_t> service_stream() {
    std::lock_guard lock(mutex_);
    if (service_stream_ == nullptr)
      SWITCHYARD_RETURN_IF_ERROR(
          check_cuda(cudaStreamCreateWithFlags(&service_stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
    return service_stream_;
  }
  // Ready in the order of the service stream, on which it is cleared.
  Result<void*> take_from_caller(uint64_t bytes) {
    const Result<cudaStream_t> stream = service_stream();
    if (!stream.ok()) return stream.status();
    Result<void*> memory = callers_memory_.allocate(bytes, ordinal_, stream.value());
    if (!memory.ok()) return memory;
    const Status status = clear(memory.value(), bytes);
    if (status.ok()) return memory;
    callers_memory_.deallocate(memory.value(), ordinal_, stream.value());
    return status;
  }
  Status clear(void* memory, uint64_t bytes) {
    const Result<cudaStream_t> stream = service_stream();
    return stream.ok() ? fill(memory, 0, bytes, stream.value()) : stream.status();
  }

  // CUDA would refuse as well, but invalidate the recording.
  static Status check_not_recording(StreamHandle stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    SWITCHYARD_RETURN_IF_ERROR(check_cuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status),
                                          "cudaStreamIsCapturing"));
    if (status == cudaStreamCaptureStatusNone) return Status();
    return failed_precondition("a stream that is being recorded cannot be waited for: nothing on it runs");
  }

  const int ordinal_;
  const std::string name_;
  const std::string uuid_;
  const int num_multiprocessors_;
  const uint64_t max_shared_bytes_;
  const ComputeCapability compute_capability_;
  CallersMemory callers_memory_;
  std::mutex mutex_;
  cudaStream_t service_stream_ = nullptr;  // null until it is needed
  mutable std::atomic<StreamHandle> checked_stream_ = nullptr;  // the last one that is of this device
};

std::optional<ComputeCapability> compute_capability_of(int ordinal) {
  ComputeCapability gpu;
  if (cudaDeviceGetAttribute(&gpu.major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
      cudaDeviceGetAttribute(&gpu.minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess)
    return gpu;
  cudaGetLastError();  // a failed call must not fail the next one too
  return std::nullopt;
}

}  // namespace

CudaReport report_cuda() {
  CudaReport report{.is_built_in = true, .architectures = kArchitectures, .toolkit_version = CUDART_VERSION};
  int count = 0;
  if (cudaDriverGetVersion(&report.driver_version) != cudaSuccess ||
      cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return report;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) continue;
    GpuInfo gpu{properties.name,           properties.major,
                properties.minor,          properties.multiProcessorCount,
                properties.totalGlobalMem, {}};
    for (int peer = 0; peer < count; ++peer) {
      int can_reach = 0;
      if (peer != ordinal && cudaDeviceCanAccessPeer(&can_reach, ordinal, peer) == cudaSuccess &&
          can_reach != 0)
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
  while (num_usable < count) {
    const std::optional<ComputeCapability> gpu = compute_capability_of(num_usable);
    if (!gpu.has_value() || !runs_on(kArchitectures, *gpu)) break;
    ++num_usable;
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
  const std::optional<ComputeCapability> gpu = compute_capability_of(0);
  if (!gpu.has_value()) return "there is no GPU";
  return "GPU 0 has compute capability " + gpu->to_string() + ", and this build is for " + kArchitectures +
         " (CMAKE_CUDA_ARCHITECTURES)";
}

Result<std::vector<std::unique_ptr<Device>>> create_cuda_devices(int num_devices) {
  if (num_devices > num_cuda_devices() || num_cuda_devices() == 0)
    return unavailable("%d GPU(s) asked for, %d there: %s", num_devices, num_cuda_devices(),
                       why_no_cuda().c_str());
  std::vector<std::unique_ptr<Device>> devices;
  for (int ordinal = 0; ordinal < num_devices; ++ordinal) {
    cudaDeviceProp properties{};
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
    devices.push_back(std::make_unique<CudaDevice>(ordinal, properties));
    const DeviceScope active = devices.back()->activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    for (int peer = 0; peer < num_devices; ++peer) {
      if (peer == ordinal) continue;
      const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
        continue;
      }
      if (error != cudaSuccess) {
        cudaGetLastError();
        return unavailable("GPU %d cannot reach the memory of GPU %d: %s", ordinal, peer,
                           cudaGetErrorString(error));
      }
    }
  }
  return devices;
}

Result<std::unique_ptr<Device>> create_cuda_device(int ordinal) {
  if (ordinal < 0 || ordinal >= num_cuda_devices())
    return unavailable("GPU %d asked for, %d there: %s", ordinal, num_cuda_devices(), why_no_cuda().c_str());
  cudaDeviceProp properties{};
  SWITCHYARD_RETURN_IF_ERROR(
      check_cuda(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(ordinal, properties));
}

}  // namespace switchyard
