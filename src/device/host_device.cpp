// The host target as a device: memory is the process's, streams are the emulator's.
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "machine.hpp"
#include "switchyard/detail/device/callers_memory.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"

namespace switchyard {
namespace {

// The launches between two marks, by stream.
using Segment = std::vector<std::pair<emulator::Stream*, std::vector<emulator::RecordedLaunch>>>;

class HostRecordedLaunches : public RecordedLaunches {
 public:
  HostRecordedLaunches(emulator::Machine& machine, std::vector<Segment> segments)
      : machine_(machine), segments_(std::move(segments)) {}
  ~HostRecordedLaunches() override {
    for (const auto& [stream, launches] : segments_.front()) machine_.drain(stream);
  }

  Status launch() override {
    marks_.clear();
    for (size_t i = 0; i < segments_.size(); ++i) {
      if (i > 0) {
        SWITCHYARD_RETURN_IF_ERROR(synchronize());
        marks_.push_back(std::chrono::steady_clock::now());
      }
      for (const auto& [stream, launches] : segments_[i])
        for (const emulator::RecordedLaunch& launch : launches)
          SWITCHYARD_RETURN_IF_ERROR(machine_.enqueue(stream, launch));
    }
    return Status();
  }
  Status synchronize() override {
    for (const auto& [stream, launches] : segments_.front())
      SWITCHYARD_RETURN_IF_ERROR(machine_.synchronize(stream));
    return Status();
  }
  Result<std::vector<double>> microseconds_between_marks() override {
    std::vector<double> microseconds;
    for (size_t i = 0; i + 1 < marks_.size(); ++i)
      microseconds.push_back(std::chrono::duration<double, std::micro>(marks_[i + 1] - marks_[i]).count());
    return microseconds;
  }

 private:
  emulator::Machine& machine_;
  const std::vector<Segment> segments_;
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

class HostRecording : public Recording {
 public:
  HostRecording(emulator::Machine& machine, std::vector<emulator::Stream*> streams)
      : machine_(machine), streams_(std::move(streams)) {
    begin_segment();
  }
  ~HostRecording() override {
    if (recording_) end_segment();
  }

  Status mark() override {
    end_segment();
    begin_segment();
    return Status();
  }
  Result<std::unique_ptr<RecordedLaunches>> finish() override {
    end_segment();
    return std::unique_ptr<RecordedLaunches>(
        std::make_unique<HostRecordedLaunches>(machine_, std::move(segments_)));
  }

 private:
  void begin_segment() {
    for (emulator::Stream* stream : streams_) machine_.begin_recording(stream);
    recording_ = true;
  }
  void end_segment() {
    recording_ = false;
    Segment segment;
    for (emulator::Stream* stream : streams_) segment.emplace_back(stream, machine_.end_recording(stream));
    segments_.push_back(std::move(segment));
  }

  emulator::Machine& machine_;
  const std::vector<emulator::Stream*> streams_;
  std::vector<Segment> segments_;
  bool recording_ = false;
};

// Mapped memory, which is unmapped with the object.
struct Allocations {
  std::unordered_map<void*, uint64_t> bytes_of;

  ~Allocations() {
    for (const auto& [memory, bytes] : bytes_of) munmap(memory, bytes);
  }
  void unmap(void* memory) {
    const auto allocation = bytes_of.find(memory);
    munmap(memory, allocation->second);
    bytes_of.erase(allocation);
  }
};

class HostDevice : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options)
      : machine_(
            {.mode = options.mode == EmulatorMode::kFast ? emulator::Mode::kFast : emulator::Mode::kSimulated,
             .seed = options.seed,
             .num_workers = options.num_workers,
             .weak = options.weak,
             .mutant = options.hooks != nullptr ? options.hooks->mutant : std::nullopt}) {}

  Target target() const override { return Target::kHost; }
  std::string name() const override {
    return "SIMT emulator on " + std::to_string(std::thread::hardware_concurrency()) + " cores";
  }
  DeviceScope activate() override { return {}; }
  uint64_t trace_hash() const override { return machine_.trace_hash(); }
  std::string recent_events(StreamHandle stream) const override {
    return machine_.recent_events(static_cast<emulator::Stream*>(stream));
  }
  void complete_wire() override { machine_.complete_wire(); }
  int num_multiprocessors() const override { return static_cast<int>(std::thread::hardware_concurrency()); }
  uint64_t max_shared_bytes() const override { return LaunchShape().max_shared_bytes; }

  // Memory is mapped, not malloc'ed: receive buffers are large and mostly never touched.
  Result<void*> allocate(uint64_t bytes) override {
    const uint64_t mapped = bytes == 0 ? 1 : bytes;
    return callers_memory_.is_used() ? take_from_caller(mapped) : map(mapped);
  }
  Result<void*> map(uint64_t bytes) {
    const uint64_t mapped = bytes == 0 ? 1 : bytes;
    void* memory =
        mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
      return resource_exhausted("%llu bytes of memory cannot be had", static_cast<unsigned long long>(bytes));
    std::lock_guard lock(mutex_);
    allocations_.bytes_of[memory] = mapped;
    machine_.add_memory(memory, mapped);
    return memory;
  }
  void deallocate(void* memory) override {
    {
      std::lock_guard lock(mutex_);
      machine_.remove_memory(memory);
      if (allocations_.bytes_of.count(memory) > 0) return allocations_.unmap(memory);
    }
    callers_memory_.deallocate(memory, 0, nullptr);
  }
  void use(const MemoryFunctions& functions) override { callers_memory_.use(functions); }
  Result<void*> allocate_for(StreamHandle, uint64_t bytes) override { return allocate(bytes); }
  void deallocate_behind(StreamHandle stream, void* memory) override {
    machine_.after_launches(static_cast<emulator::Stream*>(stream), [this, memory] { deallocate(memory); });
  }
  Result<void*> allocate_host_visible(uint64_t bytes) override { return map(bytes); }
  void deallocate_host_visible(void* memory) override { deallocate(memory); }

  Result<SharedMemory> allocate_shared(uint64_t bytes) override { return create_memory_file(bytes); }
  Result<std::unique_ptr<SharedMapping>> map_shared(const FileDescriptor& file, uint64_t bytes) override {
    return map_memory_file(file, bytes);
  }
  Result<SharedMemory> allocate_shared_host_visible(uint64_t bytes) override {
    return create_memory_file(bytes);
  }
  Result<std::unique_ptr<SharedMapping>> map_shared_host_visible(const FileDescriptor& file,
                                                                 uint64_t bytes) override {
    return map_memory_file(file, bytes);
  }

  Result<StreamHandle> create_stream() override {
    return static_cast<StreamHandle>(machine_.create_stream());
  }
  Status check_stream(StreamHandle stream) const override {
    if (machine_.has_stream(static_cast<const emulator::Stream*>(stream))) return Status();
    return invalid_argument(
        "stream is %p; on the host target it must be one that Rank::create_stream() of the same world made",
        stream);
  }
  bool is_recording(StreamHandle stream) const override {
    return machine_.is_recording(static_cast<const emulator::Stream*>(stream));
  }
  Status synchronize_all() override { return machine_.synchronize(); }
  Status poll() override { return machine_.failure(); }
  void drain_all() override { machine_.drain(nullptr); }
  void destroy_stream(StreamHandle) override {}  // the machine owns its streams
  Status synchronize(StreamHandle stream) override {
    return machine_.synchronize(static_cast<emulator::Stream*>(stream));
  }
  void drain(StreamHandle stream) override { machine_.drain(static_cast<emulator::Stream*>(stream)); }
  Status copy(void* dst, const void* src, uint64_t bytes, StreamHandle stream) override {
    SWITCHYARD_RETURN_IF_ERROR(synchronize(stream));
    if (bytes > 0) std::memcpy(dst, src, bytes);
    machine_.on_host_write(dst, bytes);
    return Status();
  }
  Status fill(void* dst, uint8_t value, uint64_t bytes, StreamHandle stream) override {
    SWITCHYARD_RETURN_IF_ERROR(synchronize(stream));
    if (bytes > 0) std::memset(dst, value, bytes);
    machine_.on_host_write(dst, bytes);
    return Status();
  }
  Status store_while_running(uint64_t* memory, uint64_t value) override {
    __atomic_store_n(memory, value, __ATOMIC_SEQ_CST);
    return Status();
  }
  Result<uint64_t> load_while_running(const uint64_t* memory) override {
    return __atomic_load_n(memory, __ATOMIC_SEQ_CST);
  }
  Result<std::unique_ptr<Recording>> begin_recording(const std::vector<DeviceStream>& streams) override {
    std::vector<emulator::Stream*> recorded;
    for (const DeviceStream& member : streams)
      recorded.push_back(static_cast<emulator::Stream*>(member.stream));
    return std::unique_ptr<Recording>(std::make_unique<HostRecording>(machine_, std::move(recorded)));
  }

 private:
  Result<void*> take_from_caller(uint64_t bytes) {
    Result<void*> memory = callers_memory_.allocate(bytes, 0, nullptr);
    if (!memory.ok()) return memory;
    std::memset(memory.value(), 0, bytes);
    std::lock_guard lock(mutex_);
    machine_.add_memory(memory.value(), bytes);
    return memory;
  }

  std::mutex mutex_;
  CallersMemory callers_memory_;  // before the machine, as the next
  Allocations allocations_;       // before the machine, whose threads may use them until it is gone
  emulator::Machine machine_;
};

}  // namespace

std::unique_ptr<Device> create_host_device(const HostDeviceOptions& options) {
  return std::make_unique<HostDevice>(options);
}

}  // namespace switchyard
