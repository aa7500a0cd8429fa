// World: the ranks that exchange tokens with each other, in one process or in several. Each rank has a stream
// and memory on a device. Inside a rank group (ExpertParallelConfig::p2p_world_size; by default all ranks
// that loads and stores reach) kernels load from and store to each other's memory. All other ranks, such as
// those of other machines over SHMEM, are reached by puts and signals (docs/transports.md).
//
//   auto world = World::create({.n_ranks = 8}).value();
//   Buffer<float> buffer = world->rank(3).allocate<float>(1024).value();
//
// A process that has only some of the ranks joins the world that the others are in:
//
//   auto world = World::join({.rank = 3, .n_ranks = 8, .rendezvous = "unix:/tmp/moe"}).value();
//
// What all its ranks do may be recorded once and replayed, as a Graph:
//
//   auto graph = world->capture([&] { return ep->dispatch(..); }).value();
//   for (;;) { graph->launch(); .. graph->synchronize(); }
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "switchyard/detail/base/fork.hpp"
#include "switchyard/status.hpp"
#include "switchyard/types/memory_functions.hpp"
#include "switchyard/types/target.hpp"

namespace switchyard {

class Device;
struct KernelTable;

inline constexpr int kMaxWorldRanks = 512;

// What World::create() makes.
struct WorldOptions {
  TargetChoice target = TargetChoice::kAuto;
  int n_ranks = 1;   // 1..512
  int num_gpus = 0;  // CUDA: the ranks are spread over this many GPUs; 0: all, at most one per rank
  HostDeviceOptions host = {};  // the emulator's mode and seed; CUDA ignores it
  // The caller's allocator, for the memory of all devices; without functions the library has its own.
  MemoryFunctions memory = {};
};

// What carries rows between processes: memory that they share on one machine, or the puts and signals of
// OpenSHMEM (host) or NVSHMEM (CUDA) on any machines.
enum class TransportChoice { kProcess, kShmem };

// Which ranks of which world this process has, and how it finds the processes of the others: by exactly one
// of `all_gather` and `rendezvous`. By SHMEM, which a process can join once, it has one rank. A launcher has
// started the processes and numbers them: `rank`, `n_ranks`, `all_gather`, `rendezvous` and `token` are left
// as they are. On CUDA `rank`, `n_ranks` and `all_gather` may be given instead of a launcher.
struct JoinOptions {
  TransportChoice transport = TransportChoice::kProcess;
  TargetChoice target = TargetChoice::kAuto;  // the same for all ranks, once kAuto has chosen
  int rank = 0;                               // the first rank of this process
  int num_local_ranks = 1;                    // it has the ranks rank .. rank + num_local_ranks - 1
  int n_ranks = 1;                            // of the whole world, 1..512
  // CUDA: which of the visible GPUs; -1: `rank` modulo their number, or as the plugin of SHMEM chooses.
  int gpu = -1;
  HostDeviceOptions host = {};  // the emulator's options, fast mode only; CUDA ignores it
  // How long join() and each later agreement of the processes may take.
  uint64_t timeout_ns = 30'000'000'000;

  // Gives the bytes of each process to all of them, in any order: what MPI, a store or a process group has.
  // It is called once, in join(), and keeps to a deadline of its own.
  std::function<Result<std::vector<std::vector<std::byte>>>(const std::vector<std::byte>& mine)> all_gather;
  // Where the process of rank 0 listens while the others join: "unix:/path", "unix:@name" (no file) or
  // "tcp:HOST:PORT".
  std::string rendezvous;
  // The caller's allocator; not for what other processes map, which only the library can allocate.
  MemoryFunctions memory = {};
  // A secret of 128 bits in 32 hex digits that all processes know; TCP needs one. Empty: the content of the
  // file that the environment's SWITCHYARD_TOKEN_FILE names, else its SWITCHYARD_TOKEN.
  std::string token;
};

// The memory behind a Buffer, without its type.
class UntypedBuffer {
 public:
  UntypedBuffer() = default;
  UntypedBuffer(void* data, Device& device, StreamHandle stream, bool is_owner)
      : data_(data), device_(&device), stream_(stream), is_owner_(is_owner) {}
  UntypedBuffer(UntypedBuffer&& other) noexcept { *this = std::move(other); }
  UntypedBuffer& operator=(UntypedBuffer&& other) noexcept;
  ~UntypedBuffer();

  void* data() const { return data_; }
  // Both copy between the first `bytes` bytes and memory of the host.
  Status upload(const void* values, size_t bytes);
  Status download(void* values, size_t bytes) const;
  Status fill(uint8_t value, size_t bytes);

 private:
  void* data_ = nullptr;
  Device* device_ = nullptr;  // null: there is no memory, and every call succeeds
  StreamHandle stream_ = nullptr;
  bool is_owner_ = false;
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
  Buffer(UntypedBuffer memory, size_t size) : memory_(std::move(memory)), size_(size) {}
  Buffer(Buffer&& other) noexcept : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    size_ = this == &other ? size_ : std::exchange(other.size_, 0);
    return *this;
  }

  // The address in the rank's memory, for kernels. It stays valid until the buffer is destroyed or assigned
  // to.
  T* data() const { return static_cast<T*>(memory_.data()); }
  // The number of elements.
  size_t size() const { return size_; }
  // Copies `values` to the first elements.
  Status upload(const std::vector<T>& values) {
    if (values.size() > size_)
      return invalid_argument("upload of %zu values into a buffer of %zu", values.size(), size_);
    return memory_.upload(values.data(), values.size() * sizeof(T));
  }
  // Returns a copy of all elements, or of the first `count`.
  Result<std::vector<T>> download() const { return download(size_); }
  Result<std::vector<T>> download(size_t count) const {
    if (count > size_) return invalid_argument("download of %zu values from a buffer of %zu", count, size_);
    std::vector<T> values(count);
    SWITCHYARD_RETURN_IF_ERROR(memory_.download(values.data(), count * sizeof(T)));
    return values;
  }
  // Sets every byte of all elements, or of the first `count`.
  Status fill_bytes(uint8_t value) { return fill_bytes(value, size_); }
  Status fill_bytes(uint8_t value, size_t count) {
    if (count > size_) return invalid_argument("fill of %zu values in a buffer of %zu", count, size_);
    return memory_.fill(value, count * sizeof(T));
  }

 private:
  UntypedBuffer memory_;
  size_t size_ = 0;
};

// One rank of a world: its stream, its memory and its launches.
//
// Ownership: the World owns its ranks; a Rank& is valid as long as the world lives. The rank owns its stream.
// Stream: launch() enqueues on the rank's stream and returns. Launches on one stream run in order; those of
// different ranks run concurrently. launch_on() does the same on a stream of the caller's. The order between
// launches on different streams is the caller's to make, by events. The caller's current CUDA device is the
// same after every call as before.
// Threads: allocation and launches may come from several threads, also for one rank; launches of one rank
// from two threads run in the order in which the calls were made. If several ranks share a GPU and each has a
// thread of its own, there must be as many hardware queues as streams, and launches of the caller's own must
// not come at the same time as those of another rank's thread (docs/architecture.md, "Residency and queues").
// A simulated world with weak memory takes launches from one thread only.
// Errors: launch() returns what can be seen when it enqueues. What goes wrong while a kernel runs is returned
// by synchronize() and by every copy behind it, and the device takes no further work.
class Rank {
 public:
  Rank(int index, Device& device, StreamHandle stream, const KernelTable& kernels)
      : index_(index), device_(device), stream_(stream), kernels_(kernels) {}
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int index() const { return index_; }
  // The emulator or the GPU that the rank lives on, by name; several ranks may share it.
  std::string device_name() const;
  // A cudaStream_t on CUDA, for kernels and libraries of your own.
  StreamHandle stream() const { return stream_; }
  // Makes another stream on the rank's device, which lives as long as the rank.
  Result<Stream> create_stream() const;
  // What a call enqueues on if it is given this stream; an error if the rank's launches cannot go there.
  Result<StreamHandle> handle_of(Stream stream) const;
  // Blocks until everything on the stream has ended. In the emulator's simulated mode kernels run only while
  // some thread is in such a call.
  Status synchronize(Stream stream = {}) const;

  // Launches a kernel on the rank's stream; arguments are copied.
  template <typename... Arguments>
  Status launch(LaunchFunction<Arguments...> kernel, const LaunchShape& shape,
                const std::type_identity_t<Arguments>&... arguments) const {
    return launch_on({}, kernel, shape, arguments...);
  }
  template <typename... Arguments>
  Status launch_on(Stream stream, LaunchFunction<Arguments...> kernel, const LaunchShape& shape,
                   const std::type_identity_t<Arguments>&... arguments) const {
    const Result<StreamHandle> handle = handle_of(stream);
    if (!handle.ok()) return handle.status();
    const auto call = [&] { return kernel(shape, handle.value(), arguments...); };
    return with_device([](const void* function) { return (*static_cast<const decltype(call)*>(function))(); },
                       &call);
  }

  // Allocates `size` zeroed elements, aligned to 256 bytes. The call does not wait for the rank's stream. Too
  // little memory is kResourceExhausted.
  template <typename T>
  Result<Buffer<T>> allocate(size_t size) const {
    Result<UntypedBuffer> memory = allocate_elements(size, sizeof(T));
    if (!memory.ok()) return memory.status();
    return Buffer<T>(std::move(memory).value(), size);
  }
  // Wraps memory of this rank's device that the caller owns and keeps valid for as long as the buffer is
  // used.
  template <typename T>
  Buffer<T> view(T* data, size_t size) const {
    return Buffer<T>(UntypedBuffer(const_cast<std::remove_const_t<T>*>(data), device_, stream_, false), size);
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
  friend struct Internals;
  // Calls `function(call)` while the rank's device is current.
  Status with_device(Status (*function)(const void* call), const void* call) const;
  Result<UntypedBuffer> allocate_elements(size_t size, size_t element_bytes) const;

  const int index_;
  Device& device_;
  const StreamHandle stream_;
  const KernelTable& kernels_;
  const ProcessMark process_;
  mutable std::mutex mutex_;
  mutable std::vector<StreamHandle> made_streams_;
};

class Graph;

// All ranks that exchange tokens with each other. Those of this process are local: it has their devices and
// streams. World::create() makes a world whose ranks are all local.
//
// Ownership: a World owns the devices, ranks and streams of this process. It must outlive every Buffer,
// Graph, ExpertParallel, MoeLayer, Attention and GroupedMatmul that was made from it. It may be destroyed
// while kernels run; whether those complete is unspecified. cudaDeviceReset() ends what the library has on
// the device, also for worlds that are made later. A process that destroys its World, or ends,
// leaves the others; they hear of it, and whatever waits for a rank of that process fails with kUnavailable
// and names the rank.
// Stream: each rank has a stream of its own. Nothing runs on it but what calls on the rank, on an object made
// for the rank, or on a Graph enqueue. Calls that are given a stream of the caller's leave it alone.
// Threads: the const calls may come from any thread. While capture() runs, no other thread may call capture()
// or mark(), or launch anything on a stream of this world.
// Errors: calls return a Status or a Result that names the argument, its value and its limit. Only rank()
// throws.
class World {
 public:
  // Makes the ranks and loads the kernels. Ranks are spread over the GPUs in contiguous ranges: ranks 0..3 on
  // GPU 0 and 4..7 on GPU 1, for instance. No usable GPU is kUnavailable if kCuda was asked for.
  static Result<std::unique_ptr<World>> create(const WorldOptions& options);
  // Makes the ranks of this process, loads the kernels, and meets the processes of all other ranks, which
  // must be on this machine and of this user unless SHMEM carries the rows. Returns when all have joined.
  // Processes that differ in version, n_ranks or target are refused on all sides with the field and both
  // values, as is a rank that two of them claim. Late processes are kDeadlineExceeded, processes that ended
  // kUnavailable, and so is a SHMEM that is not installed.
  static Result<std::unique_ptr<World>> join(const JoinOptions& options);
  ~World();

  Target target() const;
  // The ranks of the whole world, those of other processes included.
  int n_ranks() const;
  // The ranks of this process, in order.
  std::vector<int> local_ranks() const;
  bool is_local(int rank) const;
  // A rank of this process. Throws std::out_of_range unless 0 <= index < n_ranks() and the rank is local.
  Rank& rank(int index) const;
  // Returns how many ranks, of this and other processes, share the device of the local rank `index`, itself
  // included.
  int num_ranks_on_device_of(int index) const;
  // How ranks reach each other: "local" (all in this process), "process", "shmem".
  const char* transport_name() const;
  // Gives every process what each has given: the bytes of the process of each rank, in the order of ranks.
  // Collective: all processes of the world call it, create() of its ExpertParallels and MoeLayers, and
  // reset(), in the same order.
  Result<std::vector<std::vector<std::byte>>> all_gather(const std::vector<std::byte>& mine) const;
  // Blocks until everything on the streams of all local ranks has ended, and returns the first error.
  Status synchronize() const;

  // Records what `enqueue` launches on the streams of all local ranks, without running it, as one graph that
  // can be launched any number of times. A graph keeps the pointers it was captured with and reads the memory
  // anew at every launch: new inputs go into the same memory, which must stay valid until the last launch has
  // ended. `enqueue` must not wait, copy, fill or allocate. What it enqueues on streams of the caller's is
  // not recorded: whoever has such streams captures them. If `enqueue` returns an error, so does capture();
  // what was recorded is dropped, and an ExpertParallel whose calls were part of it needs a reset().
  Result<std::unique_ptr<Graph>> capture(const std::function<Status()>& enqueue);
  // Ends the current span of the graph and begins the one called `span`, on all local ranks at once. It is
  // called inside capture() only; Graph::elapsed() returns the times.
  Status mark(const std::string& span);

 private:
  friend struct Internals;
  struct Impl;
  explicit World(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

class RecordedLaunches;

// The time between two marks of a graph.
struct GraphSpan {
  std::string name;  // as given to World::mark()
  double microseconds;
};

// A captured graph over the streams of all ranks of this process.
//
// Ownership: the caller owns the graph, which must not outlive its world. The graph holds pointers to the
// buffers, and to the memory of the ExpertParallel, MoeLayer, Attention and GroupedMatmul, that were used
// inside capture(): all of them must outlive its last launch. A reset() with fewer ranks makes the graphs
// captured before it invalid. The destructor blocks until the last launch has ended.
// Stream: a launch begins when everything on the streams of all ranks has ended, and everything that is
// enqueued later on any of them begins when the launch has ended.
// Threads: one thread at a time, and no launches on the world's streams from other threads while launch()
// runs.
// Errors: launch() returns what can be seen when it enqueues, synchronize() what went wrong while kernels
// ran. Neither reports faults: ExpertParallel::synchronize() does.
class Graph {
 public:
  ~Graph();

  // Enqueues all recorded launches and returns. On the emulator a graph with marks has run up to its last
  // mark when launch() returns.
  Status launch();
  // Blocks until the last launch has ended.
  Status synchronize();
  // Returns the spans that World::mark() began, in order, with their times in the last launch. The launch
  // must have ended; otherwise, and before the first launch, this is kFailedPrecondition.
  Result<std::vector<GraphSpan>> elapsed() const;

 private:
  friend class World;
  Graph(std::unique_ptr<RecordedLaunches> recorded, std::vector<std::string> spans);

  std::unique_ptr<RecordedLaunches> recorded_;
  std::vector<std::string> spans_;
  bool launched_ = false;
};

}  // namespace switchyard
