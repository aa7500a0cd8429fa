// A layer whose ranks are processes.
#include <gtest/gtest.h>

#include "processes.hpp"
#include "runtime/layer_harness.hpp"
#include "switchyard/moe_layer.hpp"

namespace switchyard {
namespace {

using testing_support::LayerCase;
using testing_support::LayerHarness;

// Each process has the layer of its own rank, and knows the weights of no other.
TEST(MoeLayerInProcesses, EveryRankMayBeAProcess) {
  for (const Protocol protocol : {Protocol::kSlotted, Protocol::kDirect})
    for (const GateUpStart start : {GateUpStart::kBehindDispatch, GateUpStart::kWithRows}) {
      if (protocol == Protocol::kSlotted && start == GateUpStart::kWithRows) continue;
      const LayerCase layer_case{.n_ranks = 2, .protocol = protocol, .gate_up_start = start};
      testing_support::Processes processes;
      const std::string rendezvous = testing_support::unique_address();
      for (int rank = 0; rank < layer_case.n_ranks; ++rank)
        processes.start([=] {
          const auto world = testing_support::join(rank, layer_case.n_ranks, rendezvous);
          LayerHarness harness(*world, layer_case);
          const Status other = harness.layer().run(1 - rank, {});
          if (other.message().find("lives in another process") == std::string::npos) return other.to_string();
          if (const Status status = harness.enqueue(); !status.ok()) return status.to_string();
          if (const Status status = harness.layer().ep().synchronize(); !status.ok())
            return status.to_string();
          return harness.compare();
        });
      EXPECT_EQ(processes.reports(), std::vector<std::string>(2)) << layer_case.name();
    }
}

// The others do not wait for its part of the layer.
TEST(MoeLayerInProcesses, AProcessThatHasNoWeightsIsNamedByAll) {
  testing_support::Processes processes;
  const std::string rendezvous = testing_support::unique_address();
  for (int rank = 0; rank < 2; ++rank)
    processes.start([=]() -> std::string {
      const auto world = testing_support::join(rank, 2, rendezvous);
      const auto memory = testing_support::must(world->rank(rank).allocate<bf16>(8192));
      std::vector<ExpertWeights> weights(2);
      weights[static_cast<size_t>(rank)] = {.gate_up = memory.data(), .down = memory.data()};
      if (rank == 1) weights[1].down = nullptr;
      const MoeLayerConfig config{.ep = {.n_experts = 2, .top_k = 1, .hidden = 64, .max_tokens_per_rank = 4},
                                  .expert_width = 64};
      return MoeLayer::create(*world, config, weights).status().message();
    });
  for (const std::string& report : processes.reports())
    EXPECT_NE(report.find("down"), std::string::npos) << report;
}

TEST(MoeLayerInProcesses, MatmulsAreThoseOfThisProcess) {
  testing_support::Processes processes;
  const std::string rendezvous = testing_support::unique_address();
  const LayerCase layer_case{.n_ranks = 2};
  for (int rank = 0; rank < 2; ++rank)
    processes.start([=]() -> std::string {
      const auto world = testing_support::join(rank, 2, rendezvous);
      LayerHarness harness(*world, layer_case);
      if (harness.layer().gate_up(rank).num_blocks() == 0) return "no blocks";
      try {
        (void)harness.layer().down(1 - rank);
      } catch (const std::out_of_range&) {
        return "";
      }
      return "the matmul of another process is there";
    });
  EXPECT_EQ(processes.reports(), std::vector<std::string>(2));
}

}  // namespace
}  // namespace switchyard
