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

}  // namespace
}  // namespace switchyard
