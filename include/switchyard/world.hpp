// World: the ranks of one process. Each rank has a stream and memory on a device, and the kernels of every
// rank can load from and store to the memory of all ranks.
//
//   auto world = World::create({.n_ranks = 8}).value();
//   Buffer<float> buffer = world->rank(3).allocate<float>(1024).value();
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

// Which target the kernels of a world run on. kAuto takes CUDA if this process sees a GPU that can run the
// kernels, and the emulator otherwise.
enum class TargetChoice { kAuto, kHost, kCuda };

// What World::create() makes.
struct WorldOptions {
  TargetChoice target = TargetChoice::kAuto;
  int n_ranks = 1;   // 1..64
  int num_gpus = 0;  // CUDA: the ranks are spread over this many GPUs; 0: all, at most one per rank
  HostDeviceOptions host = {};  // the emulator's mode and seed; CUDA ignores it
};

// A typed array in the memory of a rank.
//
// Ownership: a buffer from Rank::allocate() or Rank::upload() owns its memory; one from Rank::view() does
// not. A Buffer can be moved but not copied, and must not outlive its world. A default-constructed or
// moved-from buffer has no elements, and every call on it succeeds as long as it asks for none.
// Stream: upload(), download() and fill_bytes() are ordered after everything on the rank's stream, and have
// completed when they return. The destructor does not block: the memory is freed after everything that is on
// the rank's stream at that time. Launches on other streams that use the memory must have ended by then.
// Threads: a buffer is used by one thread at a time.
// Errors: a count larger than size() is kInvalidArgument. Inside World::capture() copies and fills are
// kFailedPrecondition. An error of an earlier launch on the stream may be returned by any of these calls.
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

  // The address in the rank's memory, for kernels. It stays valid until the buffer is destroyed or assigned
  // to.
  T* data() const { return data_; }
  // In elements.
  size_t size() const { return size_; }
  // Copies `values` to the first elements.
  Status upload(const std::vector<T>& values) {
    if (values.size() > size_)
      return invalid_argument("upload of %zu values into a buffer of %zu", values.size(), size_);
    if (device_ == nullptr) return Status();
    return device_->copy(data(), values.data(), values.size() * sizeof(T), stream_);
  }
  // Returns a copy of all elements, or of the first `count`.
  Result<std::vector<T>> download() const { return download(size_); }
  Result<std::vector<T>> download(size_t count) const {
    if (count > size_) return invalid_argument("download of %zu values from a buffer of %zu", count, size_);
    std::vector<T> values(count);
    if (device_ == nullptr) return values;
    SWITCHYARD_RETURN_IF_ERROR(device_->copy(values.data(), data(), count * sizeof(T), stream_));
    return values;
  }
  // Sets every byte of all elements, or of the first `count`.
  Status fill_bytes(uint8_t value) { return fill_bytes(value, size_); }
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

// One rank of a world: its stream, its memory and its launches.
//
// Ownership: the World owns its ranks; a Rank& is valid as long as the world lives. The rank owns its stream.
// Stream: launch() enqueues on the rank's stream and returns. Launches on one stream run in order; those of
// different ranks run concurrently. The caller's current CUDA device is the same after every call as before.
// Threads: allocation and launches may come from several threads, also for one rank; launches of one rank
// from two threads run in the order in which the calls were made. If several ranks share a GPU and each has a
// thread of its own, there must be as many hardware queues as streams (docs/architecture.md, "Residency and
// queues"). A simulated world with weak memory takes launches from one thread only.
// Errors: launch() returns what can be seen when it enqueues. What goes wrong while a kernel runs is returned
// by synchronize() and by every copy behind it, and the device takes no further work.
class Rank {
 public:
  Rank(int index, Device& device, StreamHandle stream, const KernelTable& kernels)
      : index_(index), device_(device), stream_(stream), kernels_(kernels) {}
  ~Rank() { device_.destroy_stream(stream_); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int index() const { return index_; }
  // The emulator or the GPU that the rank lives on; several ranks may share it.
  Device& device() const { return device_; }
  // A cudaStream_t on CUDA, for kernels and libraries of your own.
  StreamHandle stream() const { return stream_; }
  // The library's kernels for launch() (detail/launch/kernel_table.hpp).
  const KernelTable& kernels() const { return kernels_; }
  // Blocks until everything on the rank's stream has ended. In the emulator's simulated mode kernels run only
  // while some thread is in such a call.
  Status synchronize() const { return device_.synchronize(stream_); }

  // Launches a kernel on the rank's stream; arguments are copied.
  template <typename... Arguments>
  Status launch(LaunchFunction<Arguments...> kernel, const LaunchShape& shape,
                const std::type_identity_t<Arguments>&... arguments) const {
    const DeviceScope active = device_.activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    return kernel(shape, stream_, arguments...);
  }

  // Allocates `size` zeroed elements, aligned to 256 bytes. The call does not wait for the rank's stream. Too
  // little memory is kResourceExhausted.
  template <typename T>
  Result<Buffer<T>> allocate(size_t size) const {
    const CheckedSize bytes = CheckedSize(size) * CheckedSize(sizeof(T));
    if (!bytes.ok())
      return invalid_argument("allocate: %zu elements of %zu bytes exceed 64 bits", size, sizeof(T));
    Result<DeviceMemory> memory = DeviceMemory::allocate(device_, bytes.value(), stream_);
    if (!memory.ok()) return memory.status();
    return Buffer<T>(std::move(memory).value(), device_, stream_, size);
  }
  // Wraps memory of this rank's device that the caller owns and keeps valid for as long as the buffer is
  // used.
  template <typename T>
  Buffer<T> view(T* data, size_t size) const {
    return Buffer<T>(data, device_, stream_, size);
  }
  // Allocates a buffer of values.size() elements and copies `values` to it.
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

// All ranks of one process, and the devices they live on.
//
// Ownership: a World owns devices, ranks and streams. It must outlive every Buffer, Graph, ExpertParallel,
// Attention and GroupedMatmul that was made from it. It may be destroyed while kernels run; whether those
// complete is unspecified.
// Stream: each rank has one stream. Nothing runs on it but what calls on the rank, on an object made for the
// rank, or on a Graph enqueue.
// Threads: the const calls may come from any thread. While capture() runs, no other thread may call capture()
// or mark(), or launch anything on a stream of this world.
// Errors: calls return a Status or a Result that names the argument, its value and its limit. Only rank()
// throws.
class World {
 public:
  // Makes the ranks and loads the kernels. Ranks are spread over the GPUs in contiguous ranges: ranks 0..3 on
  // GPU 0 and 4..7 on GPU 1, for instance. No usable GPU is kUnavailable if kCuda was asked for.
  static Result<std::unique_ptr<World>> create(const WorldOptions& options);

  Target target() const { return devices_.front()->target(); }
  int n_ranks() const { return static_cast<int>(ranks_.size()); }
  // Throws std::out_of_range unless 0 <= index < n_ranks().
  Rank& rank(int index) const;
  // Returns how many ranks share the device of rank `index`, itself included.
  int num_ranks_on_device_of(int index) const;
  // Blocks until everything on the streams of all ranks has ended, and returns the first error.
  Status synchronize() const;

  // Records what `enqueue` launches on the streams of all ranks, without running it, as one graph (graph.hpp)
  // that can be launched any number of times. A graph keeps the pointers it was captured with and reads the
  // memory anew at every launch: new inputs go into the same memory, which must stay valid until the last
  // launch has ended. `enqueue` must not wait, copy, fill or allocate. If `enqueue` returns an error, so does
  // capture(); what was recorded is dropped, and an ExpertParallel whose calls were part of it needs a
  // reset().
  Result<std::unique_ptr<Graph>> capture(const std::function<Status()>& enqueue);
  // Ends the current phase of the graph and begins the one called `phase`, on all ranks at once. It is called
  // inside capture() only; Graph::elapsed() returns the times.
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
