// Experts that start early: a kernel in front of dispatch_wait works on each expert as soon as its rows are
// there.
#include "ep_harness.hpp"
#include "switchyard/row_readiness.hpp"

namespace switchyard {
namespace {

using testing_support::EpHarness;
using testing_support::kFewCases;
using testing_support::make_step;
using testing_support::must;
using testing_support::Shape;

struct EarlyExperts {
  RowReadiness readiness;
  const bf16* rows;
  bf16* expert_outputs;
  int32_t n_local_experts;
  int32_t hidden;
};

// Every block has experts of its own; rows become their outputs.
void early_experts_kernel(EarlyExperts experts) {
  for (int expert_idx = target::block_idx(); expert_idx < experts.n_local_experts;
       expert_idx += target::num_blocks()) {
    const bool arrived = target::thread_idx() != 0 || wait_for_expert_rows(experts.readiness, expert_idx);
    if (target::sync_block_any(!arrived)) return;
    const int64_t first = target::ld(&experts.readiness.row_offsets[expert_idx]);
    const int64_t num_rows = target::ld(&experts.readiness.row_offsets[expert_idx + 1]) - first;
    target::copy_row(experts.expert_outputs + first * experts.hidden, experts.rows + first * experts.hidden,
                     static_cast<uint64_t>(num_rows * experts.hidden) * sizeof(bf16), target::thread_idx(),
                     target::num_threads());
  }
}

TEST(RowReadiness, AnExpertMayStartWhenItsRowsAreThere) {
  const Shape shape{.n_ranks = 3, .n_experts = 6, .top_k = 3, .hidden = 32, .tokens_per_rank = {5, 0, 7}};
  for (uint64_t seed = 0; seed < (kFewCases ? 2 : testing_support::seeds(60)); ++seed) {
    EpHarness harness(shape, {.protocol = Protocol::kDirect,
                              .n_sms = 2,
                              .num_threads = 32,
                              // ThreadSanitizer does not see a weak memory.
                              .host = kFewCases ? HostDeviceOptions{} : testing_support::weak_memory(seed)});
    const auto launch_experts = [&](int rank) {
      const RowBuffers rows = must(harness.ep().row_buffers(rank));
      return target::launch("early_experts", early_experts_kernel, {.num_blocks = 2},
                            harness.world().rank(rank).stream(),
                            EarlyExperts{must(harness.ep().row_readiness(rank, 2)), rows.rows,
                                         rows.expert_outputs, harness.ep().n_local_experts(), shape.hidden});
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
  const int most = harness.world().rank(0).device().num_multiprocessors() / 2;
  EXPECT_TRUE(harness.ep().row_readiness(0, most).ok());
  for (const int num_blocks : {0, most + 1}) {
    const Status status = harness.ep().row_readiness(0, num_blocks).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("num_blocks is " + std::to_string(num_blocks)), std::string::npos);
  }
}

TEST(RowReadiness, IsNotOfScalesThatDispatchWaitPlaces) {
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
