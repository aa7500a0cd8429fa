// Tests of whole steps, on every target, split and fused.
#pragma once

#include "ep_harness.hpp"

namespace switchyard::testing_support {

// Runs `num_steps` steps of random routing.
inline void check_steps(const Shape& shape, const RunOptions& run, int num_steps) {
  EpHarness harness(shape, run);
  for (int i = 0; i < num_steps && !::testing::Test::HasFatalFailure(); ++i)
    harness.run_and_check(as_run(make_step(shape, 100 + static_cast<uint64_t>(i)), run));
}

inline std::string mode_name(StepMode mode) { return mode == StepMode::kSplit ? "Split" : "Fused"; }

// In both protocols.
using StepVariant = std::tuple<TargetChoice, StepMode, Protocol>;

class StepTest : public ::testing::TestWithParam<StepVariant> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(std::get<0>(GetParam())); }
  static RunOptions options() {
    const auto [target, mode, protocol] = GetParam();
    return {.target = target, .mode = mode, .protocol = protocol};
  }
  static void check(const Shape& shape, const RunOptions& run = options(), int num_steps = 2) {
    check_steps(shape, run, num_steps);
  }
};

// For INSTANTIATE_TEST_SUITE_P.
inline auto step_variants() {
  return ::testing::Combine(all_targets(), ::testing::Values(StepMode::kSplit, StepMode::kFused),
                            both_protocols());
}
inline std::string step_variant_name(const ::testing::TestParamInfo<StepVariant>& info) {
  const auto [target, mode, protocol] = info.param;
  return target_name(target) + protocol_name(protocol) + mode_name(mode);
}

// What crosses once where a token has several experts on a rank: the token, so that the caller computes all
// of them in one row (kPerRank) or the rank fills the other rows (kDelivered); the sum of their outputs
// (kReduced); or both.
enum class OneRow { kPerRank, kDelivered, kReduced, kDeliveredAndReduced };
using OneRowVariant = std::tuple<TargetChoice, StepMode, OneRow>;

class OneRowTest : public ::testing::TestWithParam<OneRowVariant> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(std::get<0>(GetParam())); }
  static OneRow one_row() { return std::get<2>(GetParam()); }
  static bool is_delivered() {
    return one_row() == OneRow::kDelivered || one_row() == OneRow::kDeliveredAndReduced;
  }
  static bool is_reduced() {
    return one_row() == OneRow::kReduced || one_row() == OneRow::kDeliveredAndReduced;
  }
  static RunOptions options() {
    return {.target = std::get<0>(GetParam()),
            .mode = std::get<1>(GetParam()),
            .protocol = Protocol::kDirect,
            .row_layout = one_row() == OneRow::kPerRank ? RowLayout::kPerRank : RowLayout::kRagged,
            .row_delivery = is_delivered() ? RowDelivery::kReceiver : RowDelivery::kSender,
            .reduce_at_owner = is_reduced(),
            .unwritten = is_reduced() ? UnwrittenRows::kLeft : UnwrittenRows::kMarked};
  }
  static void check(const Shape& shape, const RunOptions& run = options(), int num_steps = 2) {
    check_steps(shape, run, num_steps);
  }
};

// For INSTANTIATE_TEST_SUITE_P.
inline auto one_row_variants(std::initializer_list<OneRow> rows) {
  return ::testing::Combine(all_targets(), ::testing::Values(StepMode::kSplit, StepMode::kFused),
                            ::testing::ValuesIn(rows));
}
inline std::string one_row_variant_name(const ::testing::TestParamInfo<OneRowVariant>& info) {
  constexpr const char* kNames[] = {"PerRank", "Delivered", "Reduced", "DeliveredAndReduced"};
  const auto [target, mode, rows] = info.param;
  return target_name(target) + mode_name(mode) + kNames[static_cast<size_t>(rows)];
}

// Four experts and at most eight tokens of 128 elements, with what `changes` says beside it.
inline Result<std::unique_ptr<ExpertParallel>> create_small(World& world, ExpertParallelConfig changes) {
  changes.n_experts = 4;
  changes.top_k = 2;
  changes.hidden = 128;
  changes.max_tokens_per_rank = 8;
  return ExpertParallel::create(world, changes);
}

}  // namespace switchyard::testing_support
