// What kernels run on, and how a launch is described: the types that a World and kernels of your own share.
#pragma once

#include <cstdint>

#include "switchyard/status.hpp"

namespace switchyard {

// What a kernel is compiled for: the emulator on this machine's cores, or a GPU.
enum class Target { kHost, kCuda };

// Returns "host" or "cuda".
inline const char* to_string(Target target) { return target == Target::kHost ? "host" : "cuda"; }

// Which target the kernels of a world run on. kAuto takes CUDA if this process sees a GPU that can run the
// kernels, and the emulator otherwise.
enum class TargetChoice { kAuto, kHost, kCuda };

// How the emulator runs threads: on all cores in real time, or on one core in virtual time, in an order that
// a seed decides.
enum class EmulatorMode { kFast, kSimulated };

struct TestHooks;

// The options of the emulator.
struct HostDeviceOptions {
  EmulatorMode mode = EmulatorMode::kFast;
  uint64_t seed = 0;  // simulated mode
  bool weak = false;  // simulated mode: a load may return any value that nothing forbids
  // Fast mode: on how many OS threads kernels run; 0: one per core. Processes that share a machine do best
  // with a share of its cores each.
  unsigned num_workers = 0;
  const TestHooks* hooks = nullptr;  // for the library's own tests; read while the world is made
};

// A stream of the target: a cudaStream_t on CUDA, one of the emulator's on the host.
using StreamHandle = void*;

// The stream that a call enqueues on: the rank's own (Rank::stream()), or one of the caller's. On CUDA that
// is any stream of the rank's GPU, also the null stream, and also one that the caller captures; on the host
// it is one that Rank::create_stream() made. A value: it owns nothing, and the stream must live until what
// was enqueued on it has ended.
class Stream {
 public:
  Stream() = default;
  explicit Stream(StreamHandle handle) : handle_(handle), is_callers_(true) {}

  bool is_callers() const { return is_callers_; }
  // The handle of a stream of the caller's; null is CUDA's null stream.
  StreamHandle handle() const { return handle_; }

 private:
  StreamHandle handle_ = nullptr;
  bool is_callers_ = false;
};

inline constexpr int kWarpSize = 32;

// The shape of a launch. If the blocks of a launch wait for each other, all of them must be resident at once.
struct LaunchShape {
  uint32_t num_blocks = 1;
  uint32_t num_threads = kWarpSize;  // a multiple of kWarpSize, at most 1024
  uint64_t shared_bytes = 0;
  uint64_t max_shared_bytes = 227 * 1024;  // that a block of the device can have; this is Hopper's
  // The launch may start before its predecessor in the stream has ended; it then calls grid_dependency_wait()
  // before it reads what the predecessor wrote. The host target ignores this: its streams are strictly in
  // order.
  bool programmatic_dependent = false;
  // The size of a cluster: blocks that are scheduled together and can access each other's shared memory. It
  // must divide num_blocks. The host target has no clusters.
  uint32_t cluster_blocks = 1;
};

// A launch behind a plain function: its caller knows neither the kernel nor the target.
template <typename... Arguments>
using LaunchFunction = Status (*)(const LaunchShape& shape, StreamHandle stream,
                                  const Arguments&... arguments);

}  // namespace switchyard
