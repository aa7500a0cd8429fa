// Where a rank's memory and streams live: the emulator, or one GPU. The devices of a process can store to
// each other's memory; Transport says which memory of other processes they reach.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/detail/device/device_scope.hpp"
#include "switchyard/detail/device/recording.hpp"
#include "switchyard/detail/device/shared_memory.hpp"
#include "switchyard/status.hpp"
#include "switchyard/types/target.hpp"

namespace switchyard {

struct MemoryFunctions;

class Device {
 public:
  virtual ~Device() = default;

  virtual Target target() const = 0;
  virtual std::string name() const = 0;
  // Makes the device current for the calling thread during the scope's lifetime. Every launch needs it;
  // Rank::launch() does it.
  virtual DeviceScope activate() = 0;
  virtual int num_multiprocessors() const = 0;
  // The most shared memory that a block can have.
  virtual uint64_t max_shared_bytes() const = 0;
  // Whether attention and the tiled matmul run here; if not, the error says what they need.
  virtual Status check_matrix_unit() const { return Status(); }
  // The emulator's simulated mode: what tells one run from another, and the last actions of the stream's
  // threads, a line each. Other devices return nothing.
  virtual uint64_t trace_hash() const { return 0; }
  virtual std::string recent_events(StreamHandle) const { return ""; }
  // Delivers what kernels that have ended left in flight on a wire (target/wire.hpp), as after a step that
  // broke. Devices whose wire is done when its words return do nothing.
  virtual void complete_wire() {}

  // Returns zeroed memory, aligned to 256 bytes.
  virtual Result<void*> allocate(uint64_t bytes) = 0;
  virtual void deallocate(void* memory) = 0;
  // The same for memory that only this stream uses, without a wait of the host: it is freed when everything
  // enqueued on the stream has ended. The stream may be waiting for a launch that the caller has yet to make.
  virtual Result<void*> allocate_for(StreamHandle stream, uint64_t bytes) = 0;
  virtual void deallocate_behind(StreamHandle stream, void* memory) = 0;
  // Returns zeroed memory that the host can read while kernels run.
  virtual Result<void*> allocate_host_visible(uint64_t bytes) = 0;
  virtual void deallocate_host_visible(void* memory) = 0;

  // The same for memory that other processes can map: zeroed, aligned to 256 bytes. map_shared() maps what
  // another process has allocated with as many bytes.
  virtual Result<SharedMemory> allocate_shared(uint64_t bytes) = 0;
  virtual Result<std::unique_ptr<SharedMapping>> map_shared(const FileDescriptor& file, uint64_t bytes) = 0;
  virtual Result<SharedMemory> allocate_shared_host_visible(uint64_t bytes) = 0;
  virtual Result<std::unique_ptr<SharedMapping>> map_shared_host_visible(const FileDescriptor& file,
                                                                         uint64_t bytes) = 0;
  // What tells a GPU from every other, in hex; empty where each process has a device of its own.
  virtual std::string uuid() const { return ""; }

  // From now on allocate() and allocate_for() take their memory from there.
  virtual void use(const MemoryFunctions& functions) = 0;

  virtual Result<StreamHandle> create_stream() = 0;
  virtual void destroy_stream(StreamHandle stream) = 0;
  // Returns when everything enqueued on the stream has ended. This is an error on a stream that is being
  // recorded, as are copy and fill: a recording holds launches only.
  virtual Status synchronize(StreamHandle stream) = 0;
  // Returns an error unless launches of this device may go to the stream of a caller.
  virtual Status check_stream(StreamHandle stream) const = 0;
  // Whether launches on the stream are recorded, by begin_recording() or by the caller's own capture.
  virtual bool is_recording(StreamHandle stream) const = 0;
  // Returns when nothing runs any more on any stream of the device, whoever made it.
  virtual Status synchronize_all() = 0;
  // Whether the device has failed; it waits for nothing.
  virtual Status poll() = 0;
  // Returns when nothing that was launched on the stream runs any more, however it ended, also while the
  // stream is being recorded. Owners of memory call it before they free it.
  virtual void drain(StreamHandle stream) = 0;
  virtual void drain_all() = 0;
  // These run after what is on the stream, and are complete when they return. Either side of a copy may be
  // host memory.
  virtual Status copy(void* dst, const void* src, uint64_t bytes, StreamHandle stream) = 0;
  virtual Status fill(void* dst, uint8_t value, uint64_t bytes, StreamHandle stream) = 0;

  // Both access memory that running kernels use, too.
  virtual Status store_while_running(uint64_t* memory, uint64_t value) = 0;
  virtual Result<uint64_t> load_while_running(const uint64_t* memory) = 0;

  // From now on launches on these streams, of this and other devices of the world, are recorded instead of
  // run. The first stream must be this device's.
  virtual Result<std::unique_ptr<Recording>> begin_recording(const std::vector<DeviceStream>& streams) = 0;
};

std::unique_ptr<Device> create_host_device(const HostDeviceOptions& options);

// What this process can see of CUDA, for whoever asks why something does or does not run.
struct GpuInfo {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int num_multiprocessors = 0;
  uint64_t memory_bytes = 0;
  std::vector<int> peers;  // GPUs whose memory it can reach
};
struct CudaReport {
  bool is_built_in = false;
  std::string architectures;  // that it was built for, as "80-real,90a-real"
  int toolkit_version = 0;    // as CUDA writes it: 13000 is 13.0
  int driver_version = 0;
  std::vector<GpuInfo> gpus;
};
CudaReport report_cuda();

// GPUs that the build has machine code for; none in a build without CUDA.
int num_cuda_devices();
// Says why there are none.
std::string why_no_cuda();
// One device per GPU, each able to reach the others' memory.
Result<std::vector<std::unique_ptr<Device>>> create_cuda_devices(int num_devices);

// One of them, by its ordinal. It reaches the memory of other GPUs through what it has mapped only.
Result<std::unique_ptr<Device>> create_cuda_device(int ordinal);

// Memory of a device, freed with the object: behind what is then on `user`, the stream it is allocated for.
// Without one (null) the owner of the object waits for the kernels that use it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  static Result<DeviceMemory> allocate(Device& device, uint64_t bytes, StreamHandle user = nullptr);
  static Result<DeviceMemory> allocate_host_visible(Device& device, uint64_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(user_, other.user_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    std::swap(host_visible_, other.host_visible_);
    return *this;
  }
  ~DeviceMemory();

  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  StreamHandle user_ = nullptr;
  void* memory_ = nullptr;
  uint64_t bytes_ = 0;
  bool host_visible_ = false;
};

}  // namespace switchyard
