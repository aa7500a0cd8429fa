// Experts that start early, in a weak memory, and where they cannot. tests/runtime/interleaved_test.cpp has
// them on every target.
#include "switchyard/row_readiness.hpp"

#include "early_experts.hpp"
#include "ep_harness.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard {
namespace {

using testing_support::EpHarness;
using testing_support::kFewCases;
using testing_support::make_step;
using testing_support::must;
using testing_support::Shape;

TEST(RowReadiness, AnExpertMayStartWhenItsRowsAreThere) {
  const Shape shape{.n_ranks = 3, .n_experts = 6, .top_k = 3, .hidden = 32, .tokens_per_rank = {5, 0, 7}};
  for (uint64_t seed = 0; seed < (kFewCases ? 2 : testing_support::seeds(60)); ++seed) {
    EpHarness harness(shape, {.protocol = Protocol::kDirect,
                              .n_sms = 2,
                              .num_threads = 32,
                              // ThreadSanitizer does not see a weak memory.
                              .host = kFewCases ? HostDeviceOptions{} : testing_support::weak_memory(seed)});
    const auto launch_experts = [&](int rank) {
      return testing_support::launch_early_experts(harness.world(), harness.ep(), rank, {.num_blocks = 2});
    };
    ASSERT_EQ(harness.run_with_early_experts(make_step(shape, seed), launch_experts), "") << "seed " << seed;
  }
}

TEST(RowReadiness, IsOfTheDirectProtocol) {
  EpHarness harness({}, {.protocol = Protocol::kSlotted});
  EXPECT_EQ(harness.ep().row_readiness(0, 1).status().code(), StatusCode::kFailedPrecondition);
}

// The kernel holds its multiprocessors while it waits for ranks whose dispatch needs some of them.
TEST(RowReadiness, BlocksThatLeaveThePeersNoRoomAreRefused) {
  SWITCHYARD_SKIP_IF_ABSENT(TargetChoice::kCuda);
  EpHarness harness({.n_ranks = 2}, {.target = TargetChoice::kCuda, .protocol = Protocol::kDirect});
  const int most = device_of(harness.world().rank(0)).num_multiprocessors() / 2;
  EXPECT_TRUE(harness.ep().row_readiness(0, most).ok());
  for (const int num_blocks : {0, most + 1}) {
    const Status status = harness.ep().row_readiness(0, num_blocks).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("num_blocks is " + std::to_string(num_blocks)), std::string::npos);
  }
}

TEST(RowReadiness, IsNotOfScalesThatDispatchWaitStores) {
  const auto readiness_of = [](TokenFormatKind format) {
    EpHarness harness({.hidden = 128}, {.protocol = Protocol::kDirect, .format = format});
    return harness.ep().row_readiness(0, 1).status();
  };
  EXPECT_TRUE(readiness_of(TokenFormatKind::kMXFP8).ok());
  EXPECT_EQ(readiness_of(TokenFormatKind::kFP8).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(readiness_of(TokenFormatKind::kNVFP4).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace switchyard
