// What tests of the emulator's weak memory share.
#pragma once

#include <gtest/gtest.h>

#include "machine.hpp"

namespace switchyard::testing_support {

class WeakMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer looks for missing order itself; the emulator has no weak memory then";
#endif
  }
};

inline emulator::MachineOptions weak_options(uint64_t seed,
                                             const std::optional<OrderMutant>& mutant = std::nullopt) {
  return {.mode = emulator::Mode::kSimulated, .seed = seed, .weak = true, .mutant = mutant};
}

}  // namespace switchyard::testing_support
