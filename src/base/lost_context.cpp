#include "switchyard/detail/base/lost_context.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace switchyard {

struct WitnessState {
  std::mutex mutex;
  std::function<std::string()> who_has_ended;  // null: the witness is gone
  std::chrono::milliseconds patience;
  std::optional<std::chrono::steady_clock::time_point> until;  // nothing: no context was lost yet
};

namespace {

thread_local int num_impatient = 0;

struct Witnesses {
  std::mutex mutex;
  std::vector<std::shared_ptr<WitnessState>> states;
};
Witnesses& witnesses() {
  static auto* all = new Witnesses();  // never destroyed: the last world may go after everything else
  return *all;
}

}  // namespace

DeathWitness::DeathWitness(std::function<std::string()> who_has_ended, std::chrono::milliseconds patience)
    : state_(std::make_shared<WitnessState>()) {
  state_->who_has_ended = std::move(who_has_ended);
  state_->patience = patience;
  Witnesses& all = witnesses();
  std::lock_guard lock(all.mutex);
  all.states.push_back(state_);
}

DeathWitness::~DeathWitness() {
  Witnesses& all = witnesses();
  {
    std::lock_guard lock(all.mutex);
    std::erase(all.states, state_);
  }
  std::lock_guard lock(state_->mutex);  // no call is under way
  state_->who_has_ended = nullptr;
}

NoPatience::NoPatience() { ++num_impatient; }
NoPatience::~NoPatience() { --num_impatient; }

Status explain_lost_context(const Status& error) {
  Witnesses& all = witnesses();
  std::shared_ptr<WitnessState> witness;
  {
    std::lock_guard lock(all.mutex);
    if (all.states.empty()) return error;
    witness = all.states.back();
  }
  while (true) {
    {
      std::lock_guard lock(witness->mutex);
      const auto now = std::chrono::steady_clock::now();
      if (!witness->until) witness->until = now + witness->patience;
      const std::string peer = witness->who_has_ended ? witness->who_has_ended() : "";
      if (!peer.empty())
        return unavailable("%s has ended, and this process's context on its GPU is lost with it: %s",
                           peer.c_str(), error.message().c_str());
      if (!witness->who_has_ended || now >= *witness->until || num_impatient > 0) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return Status(error.code(),
                error.message() +
                    "; this process's context on its GPU is lost, and no other rank is known to "
                    "have ended");
}

}  // namespace switchyard
