// Calls for one rank must not overlap. A second thread that calls while another waits gets an exception;
// behind a wait that Ctrl-C interrupted, and whose helper still waits, the next call waits.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "waiting.hpp"

namespace switchyard::python {

class CallGate {
 public:
  // A call, from enter() until leave() or its end.
  class Call {
   public:
    Call(CallGate& gate, std::vector<int> ranks) : gate_(gate), ranks_(std::move(ranks)) {}
    ~Call() { leave(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    void leave();
    // The thread that made the call no longer waits for it.
    void abandon();

   private:
    CallGate& gate_;
    std::vector<int> ranks_;
  };

  explicit CallGate(int n_ranks) : uses_(static_cast<size_t>(n_ranks)) {}
  // Ranks outside the gate's are left to the call itself, which refuses them.
  std::shared_ptr<Call> enter(const char* call, int rank) { return enter(call, std::vector<int>{rank}); }
  std::shared_ptr<Call> enter_all(const char* call);

 private:
  struct Use {
    const char* call = nullptr;  // null: none
    bool is_abandoned = false;
  };
  std::shared_ptr<Call> enter(const char* call, std::vector<int> ranks);
  // Returns false while an abandoned call holds one of the ranks.
  bool try_enter(const char* call, const std::vector<int>& ranks);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Use> uses_;  // by rank
};

}  // namespace switchyard::python
