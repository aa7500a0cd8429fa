// An order mutant: one word of a kernel with another order than the one it was written with, without touching
// the kernel. For tests of the simulated weak memory (emulator/weak_memory.hpp); nothing else looks at it.
#pragma once

#include <optional>
#include <string>

#include "switchyard/detail/target/vocabulary.hpp"

namespace switchyard {

struct OrderMutant {
  // Names the functions whose words change: the pieces between stars, in this order, are parts of the
  // function's name.
  std::string function;
  WordKind kind = WordKind::kStore;
  Order order = Order::kRelaxed;              // kBulkWait, kProxyFence: none, the word does nothing
  std::optional<Scope> scope = std::nullopt;  // the word's own if none
  // False: a store that may overtake what came before it does not stop the machine, so that a test sees the
  // values.
  bool stops_at_overtaking = true;
};

}  // namespace switchyard
