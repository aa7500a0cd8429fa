// What tests of the emulator's weak memory share.
#pragma once

#include <gtest/gtest.h>

#include <iostream>
#include <string>

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

// A mutant is caught if one of the seeds shows it; run(seed) returns what is wrong.
template <typename Run>
void expect_caught(const Run& run) {
  constexpr uint64_t kMaxSeeds = 300;
  for (uint64_t seed = 0; seed < kMaxSeeds; ++seed) {
    const std::string difference = run(seed);
    if (difference.empty()) continue;
    std::cout << "seed " << seed << ": " << difference << "\n";
    return;
  }
  FAIL() << "none of " << kMaxSeeds << " seeds shows it";
}

}  // namespace switchyard::testing_support
