#include "switchyard/graph.hpp"

#include "runtime/world_impl.hpp"

namespace switchyard {

Result<std::unique_ptr<Graph>> World::capture(const std::function<Status()>& enqueue) {
  if (impl_->capture != nullptr) return failed_precondition("capture inside a capture");
  std::vector<DeviceStream> streams;
  for (const auto& rank : impl_->ranks) streams.push_back({&rank->device(), rank->stream()});
  Result<std::unique_ptr<Recording>> recording = impl_->ranks.front()->device().begin_recording(streams);
  if (!recording.ok()) return recording.status();

  Impl::Capture capture{recording.value().get(), {}};
  struct Scope {  // also when `enqueue` throws
    Impl::Capture*& current;
    ~Scope() { current = nullptr; }
  } scope{impl_->capture};
  impl_->capture = &capture;
  SWITCHYARD_RETURN_IF_ERROR(enqueue());
  if (!capture.phases.empty())
    SWITCHYARD_RETURN_IF_ERROR(capture.recording->mark());  // where the last phase ends
  Result<std::unique_ptr<RecordedLaunches>> recorded = capture.recording->finish();
  if (!recorded.ok()) return recorded.status();
  return std::unique_ptr<Graph>(new Graph(std::move(recorded).value(), std::move(capture.phases)));
}

Status World::mark(const std::string& phase) {
  if (impl_->capture == nullptr)
    return failed_precondition("mark(\"%s\") outside of a capture", phase.c_str());
  SWITCHYARD_RETURN_IF_ERROR(impl_->capture->recording->mark());
  impl_->capture->phases.push_back(phase);
  return Status();
}

Graph::Graph(std::unique_ptr<RecordedLaunches> recorded, std::vector<std::string> phases)
    : recorded_(std::move(recorded)), phases_(std::move(phases)) {}
Graph::~Graph() = default;

Status Graph::launch() {
  launched_ = true;
  return recorded_->launch();
}

Status Graph::synchronize() { return recorded_->synchronize(); }

Result<std::vector<GraphPhase>> Graph::elapsed() const {
  if (!launched_) return failed_precondition("elapsed: the graph was never launched");
  Result<std::vector<double>> microseconds = recorded_->microseconds_between_marks();
  if (!microseconds.ok()) return microseconds.status();
  std::vector<GraphPhase> phases;
  for (size_t i = 0; i < microseconds.value().size(); ++i)
    phases.push_back({phases_[i], microseconds.value()[i]});
  return phases;
}

}  // namespace switchyard
