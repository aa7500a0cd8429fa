// Launches of all ranks, recorded once by World::capture() and replayed as one.
//
//   auto graph = world->capture([&] { return ep->dispatch(..); }).value();
//   for (;;) { graph->launch(); .. graph->synchronize(); }
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "switchyard/world.hpp"

namespace switchyard {

struct GraphPhase {
  std::string name;
  double microseconds;
};

// Must not outlive its world. Waits for its last launch when it goes.
class Graph {
 public:
  // Enqueues everything once more: after what is on the stream of any rank, before what comes on any of them
  // later. On the emulator a graph with marks runs to its end here.
  Status launch();
  // Waits for the last launch. Whether a step of it met a fault is for ExpertParallel::synchronize() to say.
  Status synchronize();
  // The phases that World::mark() began, in order, as the last launch took them; that launch must have ended.
  Result<std::vector<GraphPhase>> elapsed() const;

 private:
  friend class World;
  Graph(std::unique_ptr<RecordedLaunches> recorded, std::vector<std::string> phases)
      : recorded_(std::move(recorded)), phases_(std::move(phases)) {}

  std::unique_ptr<RecordedLaunches> recorded_;
  std::vector<std::string> phases_;
  bool launched_ = false;
};

}  // namespace switchyard
