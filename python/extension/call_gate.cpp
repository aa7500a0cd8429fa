#include "call_gate.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace switchyard::python {

void CallGate::Call::leave() {
  std::lock_guard lock(gate_.mutex_);
  for (const int rank : std::exchange(ranks_, {})) gate_.uses_[static_cast<size_t>(rank)] = {};
  gate_.changed_.notify_all();
}

void CallGate::Call::abandon() {
  std::lock_guard lock(gate_.mutex_);
  for (const int rank : ranks_) gate_.uses_[static_cast<size_t>(rank)].is_abandoned = true;
}

std::shared_ptr<CallGate::Call> CallGate::enter_all(const char* call) {
  std::vector<int> ranks(uses_.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return enter(call, std::move(ranks));
}

std::shared_ptr<CallGate::Call> CallGate::enter(const char* call, std::vector<int> ranks) {
  std::erase_if(ranks, [&](int rank) { return rank < 0 || rank >= static_cast<int>(uses_.size()); });
  for (;;) {
    {
      nb::gil_scoped_release no_gil;
      std::unique_lock lock(mutex_);
      const auto is_abandoned = [&] {
        return std::any_of(ranks.begin(), ranks.end(),
                           [&](int rank) { return uses_[static_cast<size_t>(rank)].is_abandoned; });
      };
      changed_.wait_for(lock, std::chrono::milliseconds(20), [&] { return !is_abandoned(); });
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    std::lock_guard lock(mutex_);
    bool is_free = true;
    for (const int rank : ranks) {
      const Use& use = uses_[static_cast<size_t>(rank)];
      is_free = is_free && use.call == nullptr;
      if (use.call != nullptr && !use.is_abandoned)
        raise(
            failed_precondition("%s: rank %d is in %s on another thread; calls for one rank must not overlap",
                                call, rank, use.call));
    }
    if (!is_free) continue;
    for (const int rank : ranks) uses_[static_cast<size_t>(rank)] = {call, false};
    return std::make_shared<Call>(*this, std::move(ranks));
  }
}

}  // namespace switchyard::python
