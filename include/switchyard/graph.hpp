// Graph: launches of all ranks of this process, recorded once by World::capture() and replayed as one.
//
//   auto graph = world->capture([&] { return ep->dispatch(..); }).value();
//   for (;;) { graph->launch(); .. graph->synchronize(); }
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "switchyard/world.hpp"

namespace switchyard {

class RecordedLaunches;

// The time between two marks of a graph.
struct GraphSpan {
  std::string name;  // as given to World::mark()
  double microseconds;
};

// A captured graph over the streams of all ranks of this process.
//
// Ownership: the caller owns the graph, which must not outlive its world. The graph holds pointers to the
// buffers, and to the memory of the ExpertParallel, Attention and GroupedMatmul, that were used inside
// capture(): all of them must outlive its last launch. A reset() with fewer ranks makes the graphs captured
// before it invalid. The destructor blocks until the last launch has ended.
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
