// A world of ranks in one process: each rank has a stream and memory on a device. All ranks can store into
// each other's memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/device/launch_function.hpp"

namespace switchyard {

enum class TargetChoice { kAuto, kHost, kCuda };  // automatic: CUDA where there is a GPU for it

struct WorldOptions {
  TargetChoice target = TargetChoice::kAuto;
  int n_ranks = 1;
  int n_gpus = 0;  // CUDA: ranks are spread over this many GPUs; 0: all there are, at most one per rank
  HostDeviceOptions host = {};
};

// A typed array in a rank's memory, its own or somebody else's. One that owns its memory may be dropped at
// any time: the memory is freed when what was launched on the rank's stream has ended. One that is made by
// default, or was moved from, has no elements and no device: there is nothing to copy or to fill.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(DeviceMemory memory, Device& device, StreamHandle stream, size_t size)
      : memory_(std::move(memory)), data_(memory_.as<T>()), device_(&device), stream_(stream), size_(size) {}
  Buffer(T* data, Device& device, StreamHandle stream, size_t size)
      : data_(data), device_(&device), stream_(stream), size_(size) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this == &other) return *this;
    memory_ = DeviceMemory(std::move(other.memory_));
    data_ = std::exchange(other.data_, nullptr);
    device_ = std::exchange(other.device_, nullptr);
    stream_ = std::exchange(other.stream_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  // Both are ordered after what is on the rank's stream and complete when they return.
  Status upload(const std::vector<T>& values) {
    if (values.size() > size_)
      return invalid_argument("upload of %zu values into a buffer of %zu", values.size(), size_);
    if (device_ == nullptr) return Status();
    return device_->copy(data(), values.data(), values.size() * sizeof(T), stream_);
  }
  Result<std::vector<T>> download() const { return download(size_); }
  Result<std::vector<T>> download(size_t count) const {
    if (count > size_) return invalid_argument("download of %zu values from a buffer of %zu", count, size_);
    std::vector<T> values(count);
    if (device_ == nullptr) return values;
    SWITCHYARD_RETURN_IF_ERROR(device_->copy(values.data(), data(), count * sizeof(T), stream_));
    return values;
  }
  Status fill_bytes(uint8_t value) { return fill_bytes(value, size_); }
  // The first `count` elements.
  Status fill_bytes(uint8_t value, size_t count) {
    if (count > size_) return invalid_argument("fill of %zu values in a buffer of %zu", count, size_);
    if (device_ == nullptr) return Status();
    return device_->fill(data(), value, count * sizeof(T), stream_);
  }

 private:
  DeviceMemory memory_;
  T* data_ = nullptr;
  Device* device_ = nullptr;
  StreamHandle stream_ = nullptr;
  size_t size_ = 0;
};

class Rank {
 public:
  Rank(int index, Device& device, StreamHandle stream, const KernelTable& kernels)
      : index_(index), device_(device), stream_(stream), kernels_(kernels) {}
  ~Rank() { device_.destroy_stream(stream_); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int index() const { return index_; }
  Device& device() const { return device_; }
  StreamHandle stream() const { return stream_; }
  // What launch() takes (detail/launch/kernel_table.hpp).
  const KernelTable& kernels() const { return kernels_; }
  Status synchronize() const { return device_.synchronize(stream_); }

  // Launches a kernel on the rank's stream.
  template <typename... Arguments>
  Status launch(LaunchFunction<Arguments...> kernel, const LaunchShape& shape,
                const std::type_identity_t<Arguments>&... arguments) const {
    const DeviceScope active = device_.activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    return kernel(shape, stream_, arguments...);
  }

  // Zeroed; freed with the buffer, which must not outlive the world.
  template <typename T>
  Result<Buffer<T>> allocate(size_t size) const {
    const CheckedSize bytes = CheckedSize(size) * CheckedSize(sizeof(T));
    if (!bytes.ok())
      return invalid_argument("allocate: %zu elements of %zu bytes exceed 64 bits", size, sizeof(T));
    Result<DeviceMemory> memory = DeviceMemory::allocate(device_, bytes.value(), stream_);
    if (!memory.ok()) return memory.status();
    return Buffer<T>(std::move(memory).value(), device_, stream_, size);
  }
  // Memory of this rank's device that somebody else keeps.
  template <typename T>
  Buffer<T> view(T* data, size_t size) const {
    return Buffer<T>(data, device_, stream_, size);
  }
  // As allocate, filled with `values`.
  template <typename T>
  Result<Buffer<T>> upload(const std::vector<T>& values) const {
    Result<Buffer<T>> buffer = allocate<T>(values.size());
    if (!buffer.ok()) return buffer;
    SWITCHYARD_RETURN_IF_ERROR(buffer.value().upload(values));
    return buffer;
  }

 private:
  const int index_;
  Device& device_;
  const StreamHandle stream_;
  const KernelTable& kernels_;
};

class Graph;

class World {
 public:
  static Result<std::unique_ptr<World>> create(const WorldOptions& options);

  Target target() const { return devices_.front()->target(); }
  int n_ranks() const { return static_cast<int>(ranks_.size()); }
  // Throws std::out_of_range unless 0 <= index < n_ranks().
  Rank& rank(int index) const;
  // How many ranks share the device of this one.
  int num_ranks_on_device_of(int index) const;
  // Waits for all ranks; the first error, if any.
  Status synchronize() const;

  // Records what `enqueue` launches on the streams of all ranks, without running it, as one graph
  // (graph.hpp) that can be launched again and again. A launch reads its buffers anew: new inputs go
  // into the same memory, which must be there as long as the graph is launched. What waits, copies or
  // allocates is an error inside. The error of `enqueue` is the error of the capture; what was recorded is
  // dropped then, so an ExpertParallel whose calls were part of it needs a reset().
  Result<std::unique_ptr<Graph>> capture(const std::function<Status()>& enqueue);
  // Inside capture(): a phase begins, on all ranks together, and the last one ends. Graph::elapsed() gives
  // their times.
  Status mark(const std::string& phase);

 private:
  struct Capture {
    Recording* recording;
    std::vector<std::string> phases;
  };

  World() = default;
  Capture* capture_ = nullptr;  // while capture() runs
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // after devices_: streams go before what they run on
};

}  // namespace switchyard
