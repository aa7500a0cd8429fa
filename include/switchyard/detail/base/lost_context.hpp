// What is said when this process's context on a GPU is lost: from then on every call of CUDA fails there.
// Under MPS a client that is killed takes the contexts of its neighbours along, and which call of a neighbour
// finds out first is chance. So all errors of CUDA that mean this come here (detail/target/cuda_error.hpp),
// and whoever knows the peers says which of them has ended. If none has, the error is not theirs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "switchyard/status.hpp"

namespace switchyard {

struct WitnessState;

// Knows, as long as it lives, which peer has ended.
class [[nodiscard]] DeathWitness {
 public:
  // `who_has_ended` names a peer, as "rank 2"; it returns nothing while none is known to have ended. Any
  // thread may call it. It may learn of a death long after the context was lost: `patience` is how long it is
  // asked again.
  DeathWitness(std::function<std::string()> who_has_ended, std::chrono::milliseconds patience);
  ~DeathWitness();
  DeathWitness(const DeathWitness&) = delete;
  DeathWitness& operator=(const DeathWitness&) = delete;

 private:
  std::shared_ptr<WitnessState> state_;
};

// Returns what to report in place of `error`, with which the context was lost. The witness that was made last
// is asked until it names a peer, or until its patience, which begins with the first such error, is over:
// then the error says that nobody is known to have ended. If there is no witness, the error stays as it is.
Status explain_lost_context(const Status& error);

// While it lives, explain_lost_context() does not wait on this thread. The thread that learns of deaths must
// not wait for one.
class [[nodiscard]] NoPatience {
 public:
  NoPatience();
  ~NoPatience();
  NoPatience(const NoPatience&) = delete;
  NoPatience& operator=(const NoPatience&) = delete;
};

}  // namespace switchyard
