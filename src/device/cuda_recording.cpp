// Capture begins on the first stream; events fork it to the others and join them again. A mark is an
// event-record node between a join and a fork, so that every replay takes the time anew.
#include "cuda_recording.hpp"

#include <algorithm>

#include "cuda_check.hpp"
#include "cuda_forks.hpp"
#include "switchyard/detail/target/launch_turn.hpp"

namespace switchyard {
namespace {

class Event {
 public:
  static Result<Event> create(Device& device, unsigned flags) {
    const DeviceScope active = device.activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    Event event;
    SWITCHYARD_RETURN_IF_ERROR(check_cuda(cudaEventCreateWithFlags(&event.event_, flags), "cudaEventCreate"));
    return event;
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  cudaEvent_t get() const { return event_; }

 private:
  Event() = default;
  cudaEvent_t event_ = nullptr;
};

// Streams with an event each: all can wait for the first one, or the first one for all.
class StreamList {
 public:
  static Result<StreamList> create(const std::vector<DeviceStream>& streams) {
    StreamList group;
    for (const DeviceStream& member : streams) {
      Result<Event> event = Event::create(*member.device, cudaEventDisableTiming);
      if (!event.ok()) return event.status();
      group.streams_.push_back(static_cast<cudaStream_t>(member.stream));
      group.events_.push_back(std::move(event).value());
    }
    return group;
  }

  cudaStream_t origin() const { return streams_.front(); }

  Status fork() const {
    SWITCHYARD_RETURN_IF_ERROR(record(0));
    for (size_t i = 1; i < streams_.size(); ++i) SWITCHYARD_RETURN_IF_ERROR(wait(streams_[i], 0));
    return Status();
  }
  // In a capture, after a join: forks so that the streams have nothing else to wait for, since the first one
  // has waited for all of it.
  Status continue_from_origin() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t* last_nodes = nullptr;
    const cudaGraphEdgeData* edges = nullptr;
    size_t num_nodes = 0;
    SWITCHYARD_RETURN_IF_ERROR(check_cuda(
        cudaStreamGetCaptureInfo(origin(), &status, nullptr, nullptr, &last_nodes, &edges, &num_nodes),
        "cudaStreamGetCaptureInfo"));
    // The nodes are copied: CUDA owns the array, and only until the next call.
    std::vector<cudaGraphNode_t> nodes(last_nodes, last_nodes + num_nodes);
    for (size_t i = 1; i < streams_.size(); ++i)
      SWITCHYARD_RETURN_IF_ERROR(
          check_cuda(cudaStreamUpdateCaptureDependencies(streams_[i], nodes.data(), nullptr, nodes.size(),
                                                         cudaStreamSetCaptureDependencies),
                     "cudaStreamUpdateCaptureDependencies"));
    return Status();
  }
  Status join() const {
    for (size_t i = 1; i < streams_.size(); ++i) {
      SWITCHYARD_RETURN_IF_ERROR(record(i));
      SWITCHYARD_RETURN_IF_ERROR(wait(origin(), i));
    }
    return Status();
  }

 private:
  Status record(size_t i) const {
    return check_cuda(cudaEventRecord(events_[i].get(), streams_[i]), "cudaEventRecord");
  }
  Status wait(cudaStream_t stream, size_t i) const {
    return check_cuda(cudaStreamWaitEvent(stream, events_[i].get(), 0), "cudaStreamWaitEvent");
  }

  std::vector<cudaStream_t> streams_;
  std::vector<Event> events_;
};

class CudaRecordedLaunches : public RecordedLaunches {
 public:
  CudaRecordedLaunches(Device& device, StreamList streams, std::vector<Event> marks)
      : device_(device), streams_(std::move(streams)), marks_(std::move(marks)) {}
  ~CudaRecordedLaunches() override {
    if (executable_ == nullptr) return;
    (void)synchronize();  // an error here has no one left to hear it
    cudaGraphExecDestroy(executable_);
  }

  Status instantiate(cudaGraph_t graph) {
    const DeviceScope active = device_.activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate"));
    // This is done now rather than in the first launch, whose time it would add to.
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaGraphUpload(executable_, streams_.origin()), "cudaGraphUpload"));
    return synchronize();
  }

  Status launch() override {
    SWITCHYARD_RETURN_IF_ERROR(streams_.join());
    const DeviceScope active = device_.activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    const LaunchTurn turn;
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaGraphLaunch(executable_, streams_.origin()), "cudaGraphLaunch"));
    return streams_.fork();
  }

  Status synchronize() override { return device_.synchronize(streams_.origin()); }

  Result<std::vector<double>> microseconds_between_marks() override {
    std::vector<double> microseconds;
    for (size_t i = 0; i + 1 < marks_.size(); ++i) {
      float milliseconds = 0;
      const cudaError_t error = cudaEventElapsedTime(&milliseconds, marks_[i].get(), marks_[i + 1].get());
      if (error == cudaErrorNotReady) {
        cudaGetLastError();
        return failed_precondition("the times of a launch that still runs; synchronize() first");
      }
      SWITCHYARD_RETURN_IF_ERROR(check_cuda(error, "cudaEventElapsedTime"));
      microseconds.push_back(static_cast<double>(milliseconds) * 1000);
    }
    return microseconds;
  }

 private:
  Device& device_;
  StreamList streams_;
  std::vector<Event> marks_;
  cudaGraphExec_t executable_ = nullptr;
};

class CudaRecording : public Recording {
 public:
  CudaRecording(std::vector<DeviceStream> streams, StreamList group)
      : streams_(std::move(streams)), group_(std::move(group)) {}
  ~CudaRecording() override {
    // The streams are joined as far as possible, so that the others leave the capture with the first.
    if (capturing_) (void)group_.join();
    if (capturing_) (void)end_capture();
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }

  Status begin() {
    const DeviceScope active = streams_.front().device->activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    // Thread-local: a call of this thread that cannot be recorded is refused; other threads are not affected.
    SWITCHYARD_RETURN_IF_ERROR(check_cuda(
        cudaStreamBeginCapture(group_.origin(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
    capturing_ = true;
    return group_.fork();
  }

  Status mark() override {
    Result<Event> event = Event::create(*streams_.front().device, cudaEventDefault);
    if (!event.ok()) return event.status();
    SWITCHYARD_RETURN_IF_ERROR(group_.join());
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaEventRecordWithFlags(event.value().get(), group_.origin(), cudaEventRecordExternal),
                   "cudaEventRecordWithFlags"));
    marks_.push_back(std::move(event).value());
    return group_.continue_from_origin();
  }

  Result<std::unique_ptr<RecordedLaunches>> finish() override {
    SWITCHYARD_RETURN_IF_ERROR(group_.join());
    SWITCHYARD_RETURN_IF_ERROR(end_capture());
    Device& device = *streams_.front().device;
    if (std::all_of(streams_.begin(), streams_.end(),
                    [&](const DeviceStream& member) { return member.device == &device; }))
      SWITCHYARD_RETURN_IF_ERROR(stagger_forks(graph_, device.num_multiprocessors()));
    // The replay needs events of its own: those of the capture belong to it.
    Result<StreamList> group = StreamList::create(streams_);
    if (!group.ok()) return group.status();
    auto recorded =
        std::make_unique<CudaRecordedLaunches>(device, std::move(group).value(), std::move(marks_));
    SWITCHYARD_RETURN_IF_ERROR(recorded->instantiate(graph_));
    return std::unique_ptr<RecordedLaunches>(std::move(recorded));
  }

 private:
  Status end_capture() {
    capturing_ = false;  // whatever it says, the capture is over
    return check_cuda(cudaStreamEndCapture(group_.origin(), &graph_),
                      "what was launched since the capture began");
  }

  const std::vector<DeviceStream> streams_;
  StreamList group_;
  std::vector<Event> marks_;
  bool capturing_ = false;
  cudaGraph_t graph_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Recording>> begin_cuda_recording(const std::vector<DeviceStream>& streams) {
  Result<StreamList> group = StreamList::create(streams);
  if (!group.ok()) return group.status();
  auto recording = std::make_unique<CudaRecording>(streams, std::move(group).value());
  SWITCHYARD_RETURN_IF_ERROR(recording->begin());
  return std::unique_ptr<Recording>(std::move(recording));
}

}  // namespace switchyard
