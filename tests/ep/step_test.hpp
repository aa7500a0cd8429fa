// A test of whole steps, on every target, in both protocols, split and fused.
#pragma once

#include "ep_harness.hpp"

namespace switchyard::testing_support {

using StepVariant = std::tuple<TargetChoice, StepMode, Protocol>;

class StepTest : public ::testing::TestWithParam<StepVariant> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(std::get<0>(GetParam())); }
  static RunOptions options() {
    const auto [target, mode, protocol] = GetParam();
    return {.target = target, .mode = mode, .protocol = protocol};
  }
  // Runs `num_steps` steps of random routing.
  static void check(const Shape& shape, const RunOptions& run = options(), int num_steps = 2) {
    EpHarness harness(shape, run);
    for (int i = 0; i < num_steps && !HasFatalFailure(); ++i)
      harness.run_and_check(as_run(make_step(shape, 100 + static_cast<uint64_t>(i)), run));
  }
};

// For INSTANTIATE_TEST_SUITE_P.
inline auto step_variants() {
  return ::testing::Combine(all_targets(), ::testing::Values(StepMode::kSplit, StepMode::kFused),
                            both_protocols());
}
inline std::string step_variant_name(const ::testing::TestParamInfo<StepVariant>& info) {
  const auto [target, mode, protocol] = info.param;
  return target_name(target) + protocol_name(protocol) + (mode == StepMode::kSplit ? "Split" : "Fused");
}

}  // namespace switchyard::testing_support
