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
  // The same for a call that changes what calls read, such as the number of ranks.
  std::shared_ptr<Call> enter_to_change(const char* call);
  // Before anything is read: raises while another thread changes the object; behind a change that Ctrl-C
  // interrupted, it waits.
  void check_unchanging(const char* call);

 private:
  struct Use {
    const char* call = nullptr;  // null: none
    bool is_abandoned = false;
  };
  // Waits a moment for a call that was abandoned, and raises what a signal handler does.
  void wait_a_moment();
  std::shared_ptr<Call> enter(const char* call, std::vector<int> ranks);
  // Returns false while an abandoned call holds one of the ranks.
  bool try_enter(const char* call, const std::vector<int>& ranks);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Use> uses_;     // by rank
  bool is_changing_ = false;  // by the call that holds all ranks
};

}  // namespace switchyard::python
