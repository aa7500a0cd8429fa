#include "runtime/world_impl.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/world.hpp"

namespace switchyard {

Result<std::unique_ptr<Graph>> World::capture(const std::function<Status()>& enqueue) {
  SWITCHYARD_RETURN_IF_ERROR(impl_->process.check("capture"));
  if (impl_->capture != nullptr) return failed_precondition("capture inside a capture");
  std::vector<DeviceStream> streams;
  for (const auto& rank : impl_->ranks) streams.push_back({&device_of(*rank), rank->stream()});
  Result<std::unique_ptr<Recording>> recording = device_of(*impl_->ranks.front()).begin_recording(streams);
  if (!recording.ok()) return recording.status();

  Impl::Capture capture{recording.value().get(), {}};
  struct Scope {  // also when `enqueue` throws
    Impl::Capture*& current;
    ~Scope() { current = nullptr; }
  } scope{impl_->capture};
  impl_->capture = &capture;
  SWITCHYARD_RETURN_IF_ERROR(enqueue());
  if (!capture.spans.empty())
    SWITCHYARD_RETURN_IF_ERROR(capture.recording->mark());  // where the last span ends
  Result<std::unique_ptr<RecordedLaunches>> recorded = capture.recording->finish();
  if (!recorded.ok()) return recorded.status();
  return std::unique_ptr<Graph>(new Graph(std::move(recorded).value(), std::move(capture.spans)));
}

Status World::mark(const std::string& span) {
  if (impl_->capture == nullptr)
    return failed_precondition("mark(\"%s\") outside of a capture", span.c_str());
  SWITCHYARD_RETURN_IF_ERROR(impl_->capture->recording->mark());
  impl_->capture->spans.push_back(span);
  return Status();
}

Graph::Graph(std::unique_ptr<RecordedLaunches> recorded, std::vector<std::string> spans)
    : recorded_(std::move(recorded)), spans_(std::move(spans)) {}
Graph::~Graph() = default;

Status Graph::launch() {
  launched_ = true;
  return recorded_->launch();
}

Status Graph::synchronize() { return recorded_->synchronize(); }

Result<std::vector<GraphSpan>> Graph::elapsed() const {
  if (!launched_) return failed_precondition("elapsed: the graph was never launched");
  Result<std::vector<double>> microseconds = recorded_->microseconds_between_marks();
  if (!microseconds.ok()) return microseconds.status();
  std::vector<GraphSpan> spans;
  for (size_t i = 0; i < microseconds.value().size(); ++i)
    spans.push_back({spans_[i], microseconds.value()[i]});
  return spans;
}

}  // namespace switchyard
