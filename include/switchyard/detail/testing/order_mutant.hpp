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
  // kBulkWait, kProxyFence: the word does nothing, whatever the order. kWireSettle: if relaxed, it does
  // nothing. kWireSignal: the signal arrives before what was settled, and makes nothing known.
  Order order = Order::kRelaxed;
  // The word's own if none. kWireSettle: if kBlock, it settles what its own block has put.
  std::optional<Scope> scope = std::nullopt;
  // False: a store that may overtake what came before it does not stop the machine, so that a test sees the
  // values.
  bool stops_at_overtaking = true;
};

}  // namespace switchyard
