// The host target as a device: memory is the process's, streams are the emulator's.
#include <sys/mman.h>

#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "machine.hpp"
#include "switchyard/transport/device.hpp"

namespace switchyard {
namespace {

class HostDevice : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options)
      : machine_({.mode = options.mode == EmulatorMode::kFast ? emulator::Mode::kFast : emulator::Mode::kSimulated,
                  .seed = options.seed}) {}
  ~HostDevice() override {
    for (const auto& [memory, bytes] : allocations_) munmap(memory, bytes);
  }

  Target target() const override { return Target::kHost; }
  std::string name() const override {
    return "SIMT emulator on " + std::to_string(std::thread::hardware_concurrency()) + " cores";
  }
  const KernelTable& kernels() const override { return host_kernel_table(); }
  Status activate() override { return Status(); }
  int num_multiprocessors() const override { return static_cast<int>(std::thread::hardware_concurrency()); }

  // Mapped, not malloc'ed: receive buffers are large and mostly never touched.
  Result<void*> allocate(uint64_t bytes) override {
    const uint64_t mapped = bytes == 0 ? 1 : bytes;
    void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
      return resource_exhausted("%llu bytes of memory cannot be had", static_cast<unsigned long long>(bytes));
    std::lock_guard lock(mutex_);
    allocations_[memory] = mapped;
    return memory;
  }
  void deallocate(void* memory) override {
    std::lock_guard lock(mutex_);
    const auto allocation = allocations_.find(memory);
    munmap(memory, allocation->second);
    allocations_.erase(allocation);
  }
  Result<void*> allocate_host_visible(uint64_t bytes) override { return allocate(bytes); }
  void deallocate_host_visible(void* memory) override { deallocate(memory); }

  Result<StreamHandle> create_stream() override { return static_cast<StreamHandle>(machine_.create_stream()); }
  void destroy_stream(StreamHandle) override {}  // the machine owns its streams
  Status synchronize(StreamHandle stream) override {
    return machine_.synchronize(static_cast<emulator::Stream*>(stream));
  }
  Status copy(void* dst, const void* src, uint64_t bytes, StreamHandle stream) override {
    SWITCHYARD_RETURN_IF_ERROR(synchronize(stream));
    if (bytes > 0) std::memcpy(dst, src, bytes);
    return Status();
  }
  Status fill(void* dst, uint8_t value, uint64_t bytes, StreamHandle stream) override {
    SWITCHYARD_RETURN_IF_ERROR(synchronize(stream));
    if (bytes > 0) std::memset(dst, value, bytes);
    return Status();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, uint64_t> allocations_;
  emulator::Machine machine_;
};

}  // namespace

std::unique_ptr<Device> create_host_device(const HostDeviceOptions& options) {
  return std::make_unique<HostDevice>(options);
}

}  // namespace switchyard
