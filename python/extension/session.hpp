// A world as Python objects share it. Everything that owns memory of the world (Tensor, the cores of
// ExpertParallel and the others) owns the WorldCore, so that the world lives as long as the last of them.
// Everything that enqueues owns the Session, which keeps the arrays that were passed to a call alive until
// the rank's stream has been waited for.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/world.hpp"
#include "waiting.hpp"

namespace switchyard::python {

// Memory of a caller's allocator that goes back with the GIL held.
class ReturnedMemory {
 public:
  virtual ~ReturnedMemory() = default;
  virtual void give_back() = 0;
};

struct WorldCore {
  std::shared_ptr<ReturnedMemory> returned_memory;  // null: the library's own; goes behind the world
  Owned<World> world;
  int first_gpu = -1;  // CUDA: of rank 0, or of all ranks of this process
  int num_gpus = 0;    // CUDA: ranks are spread over so many; 0: all local ranks are on first_gpu
  bool is_simulated = false;
  std::atomic<bool> is_closed = false;
  std::atomic<bool> is_gathering =
      false;  // an all_gather() is under way, whether or not anybody waits for it
  const ProcessMark process;

  // The world, unless it has been closed or belongs to the process that this one is a fork of.
  World& use(const char* call) const;
  bool is_cuda() const { return world->target() == Target::kCuda; }
  // The GPU's number as CUDA has it; -1 on the host.
  int gpu_of(int world_rank) const;
};

class Session {
 public:
  explicit Session(std::shared_ptr<WorldCore> core);
  ~Session();

  const std::shared_ptr<WorldCore>& core() const { return core_; }
  World& use(const char* call) const { return core_->use(call); }
  // A local rank, or the exception that says why there is none.
  Rank& rank(const char* call, int world_rank) const;

  // Until the rank's stream has been waited for, or as long as the graph that is being captured.
  void keep(int world_rank, std::vector<nb::object> objects);
  // What is kept from now on goes to `captured`; null: to the ranks again.
  void keep_for_graph(std::vector<nb::object>* captured) { captured_ = captured; }
  bool is_capturing() const { return captured_ != nullptr; }

  // Waits for streams: those of a rank, or of all. What was kept for them when the wait began is then
  // released; what other threads enqueue meanwhile is not.
  Status wait_for_streams(std::optional<int> world_rank, std::function<Status(CallerThread&)> work,
                          const std::function<void()>& on_interrupt = {});

  void synchronize(int world_rank);
  void synchronize();
  // Waits; in the emulator's simulated mode on this thread, since that is where kernels run then.
  Status wait(std::function<Status(CallerThread&)> work,
              const std::function<void()>& on_interrupt = {}) const;

 private:
  using KeptByRank = std::map<int, std::vector<nb::object>>;

  std::shared_ptr<WorldCore> core_;
  KeptByRank kept_;  // by rank of the world; guarded by the GIL
  std::vector<nb::object>* captured_ = nullptr;
};

// At the interpreter's end: waits until no kernel runs any more that may use memory of Python's.
void drain_sessions();

void bind_world(nb::module_& module);

}  // namespace switchyard::python
