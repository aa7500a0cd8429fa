#include "call_gate.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace switchyard::python {

void CallGate::Call::leave() {
  std::lock_guard lock(gate_.mutex_);
  if (ranks_.size() == gate_.uses_.size()) gate_.is_changing_ = false;
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

std::shared_ptr<CallGate::Call> CallGate::enter_to_change(const char* call) {
  std::shared_ptr<Call> entered = enter_all(call);
  std::lock_guard lock(mutex_);
  is_changing_ = true;
  return entered;
}

void CallGate::check_unchanging(const char* call) {
  for (;; wait_a_moment()) {
    std::lock_guard lock(mutex_);
    if (!is_changing_) return;
    if (!uses_.front().is_abandoned)
      raise(failed_precondition("%s: %s is under way on another thread", call, uses_.front().call));
  }
}

void CallGate::wait_a_moment() {
  {
    WithoutGil no_gil;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

bool CallGate::try_enter(const char* call, const std::vector<int>& ranks) {
  std::lock_guard lock(mutex_);
  bool is_free = true;
  for (const int rank : ranks) {
    const Use& use = uses_[static_cast<size_t>(rank)];
    is_free = is_free && use.call == nullptr;
    if (use.call != nullptr && !use.is_abandoned)
      raise(failed_precondition("%s: rank %d is in %s on another thread; calls for one rank must not overlap",
                                call, rank, use.call));
  }
  if (is_free)
    for (const int rank : ranks) uses_[static_cast<size_t>(rank)] = {call, false};
  return is_free;
}

std::shared_ptr<CallGate::Call> CallGate::enter(const char* call, std::vector<int> ranks) {
  std::erase_if(ranks, [&](int rank) { return rank < 0 || rank >= static_cast<int>(uses_.size()); });
  while (!try_enter(call, ranks)) wait_a_moment();
  return std::make_shared<Call>(*this, std::move(ranks));
}

}  // namespace switchyard::python
