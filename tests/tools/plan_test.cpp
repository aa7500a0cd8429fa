// The twin of a cluster against worlds of the emulator, numbers counted by hand, and figures that are known.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "reference/traffic.hpp"
#include "workload/plan/plan_routing.hpp"
#include "workload/plan/published_steps.hpp"
#include "workload/workload.hpp"

namespace switchyard::tools {
namespace {

StepPlan plan_of(const PlanShape& shape, const Cluster& cluster, const PlanRouting& routing) {
  const Result<ExpertPlacement> placement = ExpertPlacement::even(shape.n_experts, cluster.n_ranks);
  EXPECT_TRUE(placement.ok()) << placement.status().message();
  Result<StepPlan> plan = plan_step(shape, cluster, routing, placement.value());
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(plan).value();
}

PlanRouting uniform_routing(const PlanShape& shape, const Cluster& cluster, uint64_t seed = 1) {
  return draw_routing(
      {cluster.n_ranks, shape.max_tokens_per_rank, shape.top_k, uniform_popularity(shape.n_experts), seed});
}

TEST(Plan, BytesOfRowsAreThoseThatAnEmulatedWorldCounts) {
  std::mt19937_64 random(5);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<uint64_t>(limit)); };
  constexpr TokenFormatKind kFormats[] = {TokenFormatKind::kBF16, TokenFormatKind::kFP8,
                                          TokenFormatKind::kNVFP4, TokenFormatKind::kMXFP8Tiled};
  for (int draw = 0; draw < 16; ++draw) {
    const int nodes = 1 + below(3);
    Cluster cluster{.n_ranks = nodes * (1 + below(3))};
    cluster.ranks_per_node = cluster.n_ranks / nodes;
    const PlanShape shape{.max_tokens_per_rank = below(9),
                          .hidden = 128 * (1 + below(3)),
                          .n_experts = cluster.n_ranks * (1 + below(3)),
                          .top_k = 1 + below(4),
                          .protocol = draw % 2 == 0 ? Protocol::kDirect : Protocol::kSlotted,
                          .format = kFormats[below(4)],
                          .combine_format = below(2) == 0 ? CombineFormat::kBF16 : CombineFormat::kFP8};
    // Repeated ids and padding among them.
    std::vector<std::vector<int32_t>> ids(static_cast<size_t>(cluster.n_ranks));
    for (std::vector<int32_t>& of_rank : ids)
      for (int i = below(shape.max_tokens_per_rank + 1) * shape.top_k; i > 0; --i)
        of_rank.push_back(below(shape.n_experts + 1) - 1);
    const PlanRouting routing = routing_of_ids(ids, shape.n_experts, shape.top_k);
    const StepPlan plan = plan_of(shape, cluster, routing);

    auto world = World::create({.target = TargetChoice::kHost, .n_ranks = cluster.n_ranks});
    ASSERT_TRUE(world.ok()) << world.status().message();
    const auto ep = ExpertParallel::create(*world.value(), {.n_experts = shape.n_experts,
                                                            .top_k = shape.top_k,
                                                            .hidden = shape.hidden,
                                                            .max_tokens_per_rank = shape.max_tokens_per_rank,
                                                            .protocol = shape.protocol,
                                                            .row_delivery = RowDelivery::kSender,
                                                            .dispatch_format = shape.format,
                                                            .combine_format = shape.combine_format,
                                                            .p2p_world_size = cluster.ranks_per_node});
    ASSERT_TRUE(ep.ok()) << ep.status().message();
    const reference::StepTraffic traffic =
        reference::count_traffic(routing.step, reference::traffic_options(*ep.value()));
    EXPECT_EQ(plan.dispatch.rows.to_other_ranks, traffic.dispatch.to_other_ranks) << draw;
    EXPECT_EQ(plan.dispatch.rows.to_other_groups, traffic.dispatch.to_other_groups) << draw;
    EXPECT_EQ(plan.combine.rows.to_other_ranks, traffic.combine.to_other_ranks) << draw;
    EXPECT_EQ(plan.combine.rows.to_other_groups, traffic.combine.to_other_groups) << draw;
  }
}

// Two nodes of two ranks with two experts each; rank 0 alone has tokens.
TEST(Plan, BytesOfASmallStepAreAsCountedByHand) {
  const PlanShape shape{.max_tokens_per_rank = 2, .hidden = 128, .n_experts = 8, .top_k = 3};
  const Cluster cluster{.n_ranks = 4, .ranks_per_node = 2};
  const PlanRouting routing = routing_of_ids({{0, 2, 3,   // to itself, and twice to rank 1
                                               4, 5, 6},  // twice to rank 2, once to rank 3
                                              {},
                                              {},
                                              {}},
                                             8, 3);
  const StepPlan plan = plan_of(shape, cluster, routing);
  // A row has 256 bytes and 8 of src_info; to each rank go 2 ready cells and 4 cells of two counts.
  const uint64_t row = 256 + 8, cells = 8 * (2 + 4);
  EXPECT_EQ(plan.dispatch.bytes.link_out, (std::vector<uint64_t>{2 * row + cells, cells, cells, cells}));
  EXPECT_EQ(plan.dispatch.bytes.link_in, (std::vector<uint64_t>{cells, 2 * row + cells, cells, cells}));
  EXPECT_EQ(plan.dispatch.bytes.nic_out,
            (std::vector<uint64_t>{3 * row + 2 * cells, 2 * cells, 2 * cells, 2 * cells}));
  EXPECT_EQ(plan.dispatch.bytes.nic_in,
            (std::vector<uint64_t>{2 * cells, 2 * cells, 2 * row + 2 * cells, 1 * row + 2 * cells}));
  // Rank 0 reads two tokens, keeps both for the wire, which reads three rows, and gets a row of its own.
  EXPECT_EQ(plan.dispatch.bytes.memory[0], 2 * 256u + 2 * 256u + 3 * 256u + row);
  EXPECT_EQ(plan.dispatch.bytes.memory[1], 2 * row);
  // Back: rank 1's rows are read where they lie; those of rank 2 and 3 are put, so written and read again.
  EXPECT_EQ(plan.combine.bytes.link_out, (std::vector<uint64_t>{8, 2 * 256 + 8, 8, 8}));
  EXPECT_EQ(plan.combine.bytes.nic_in[0], 3 * 256u + 2 * 8);
  EXPECT_EQ(plan.combine.bytes.memory, (std::vector<uint64_t>{2 * 256 + 256 + 3 * 2 * 256, 512, 512, 256}));
  EXPECT_EQ(plan.rows_of_rank, (std::vector<uint64_t>{1, 2, 2, 1}));
  EXPECT_EQ(plan.messages_per_token, 3);
  EXPECT_EQ(plan.ranks_per_token, 2);
  EXPECT_EQ(plan.nodes_per_token, 1);

  PlanShape per_rank = shape;
  per_rank.message = per_rank.combine_message = PlanMessage::kRank;
  const StepPlan ranks = plan_of(per_rank, cluster, routing);
  EXPECT_EQ(ranks.dispatch.rows.to_other_ranks, (std::vector<uint64_t>{3 * row, 0, 0, 0}));
  EXPECT_EQ(ranks.dispatch.rows.to_other_groups, (std::vector<uint64_t>{2 * row, 0, 0, 0}));
  EXPECT_EQ(ranks.combine.rows.to_other_ranks, (std::vector<uint64_t>{0, 256, 256, 256}));

  PlanShape per_node = shape;
  per_node.message = per_node.combine_message = PlanMessage::kNode;
  const StepPlan of_nodes = plan_of(per_node, cluster, routing);
  // One row to rank 2, which has rank 0's place in its node and passes it on to rank 3.
  EXPECT_EQ(of_nodes.dispatch.rows.to_other_groups, (std::vector<uint64_t>{row, 0, 0, 0}));
  EXPECT_EQ(of_nodes.dispatch.rows.to_other_ranks, (std::vector<uint64_t>{2 * row, 0, row, 0}));
  EXPECT_EQ(of_nodes.combine.rows.to_other_ranks, (std::vector<uint64_t>{0, 256, 256, 256}));
  EXPECT_EQ(of_nodes.combine.rows.to_other_groups, (std::vector<uint64_t>{0, 0, 256, 0}));
}

TEST(Plan, ATokenHasAsManyDistinctRanksAsTheFormulaSays) {
  const PlanShape shape{.max_tokens_per_rank = 2000, .hidden = 128};
  const Cluster cluster{};
  const StepPlan plan = plan_of(shape, cluster, uniform_routing(shape, cluster));
  double others = 1;  // none of 8 different experts of 256 is among the 32 of a rank
  for (int i = 0; i < 8; ++i) others *= (224.0 - i) / (256 - i);
  EXPECT_NEAR(plan.ranks_per_token, 8 * (1 - others), 0.03);
  EXPECT_EQ(plan.messages_per_token, 8);
}

TEST(Plan, TheSlowestResourceBinds) {
  const PlanShape shape{.max_tokens_per_rank = 512};
  Cluster cluster{.n_ranks = 16, .ranks_per_node = 8};
  const PlanRouting routing = uniform_routing(shape, cluster);
  EXPECT_EQ(plan_of(shape, cluster, routing).dispatch.bound(), Resource::kNic);
  cluster.nic_gb_s = 1e5;
  EXPECT_EQ(plan_of(shape, cluster, routing).dispatch.bound(), Resource::kLink);
  cluster.link_gb_s = 1e5;
  EXPECT_EQ(plan_of(shape, cluster, routing).dispatch.bound(), Resource::kMemory);
  const PlanShape one_token{.max_tokens_per_rank = 1};
  const StepPlan small = plan_of(one_token, cluster, uniform_routing(one_token, cluster));
  EXPECT_EQ(small.dispatch.bound(), Resource::kLatency);
  EXPECT_EQ(small.combine.bound(), Resource::kLatency);
  cluster.nic_latency_us += 10;
  const StepPlan later = plan_of(one_token, cluster, uniform_routing(one_token, cluster));
  EXPECT_NEAR(later.dispatch.us() - small.dispatch.us(), 20, 1e-9);  // counts, then rows
  EXPECT_NEAR(later.combine.us() - small.combine.us(), 10, 1e-9);
}

TEST(Plan, OneRankSendsNothingAndNoTokensMoveNothing) {
  for (const Protocol protocol : {Protocol::kDirect, Protocol::kSlotted}) {
    PlanShape shape{.max_tokens_per_rank = 64, .hidden = 128, .protocol = protocol};
    const Cluster alone{.n_ranks = 1};
    const StepPlan plan = plan_of(shape, alone, uniform_routing(shape, alone));
    EXPECT_EQ(plan.dispatch.rows.total_to_other_ranks(), 0u);
    EXPECT_EQ(plan.dispatch.link_us + plan.dispatch.nic_us, 0);
    EXPECT_GT(plan.dispatch.memory_us, 0);
    shape.max_tokens_per_rank = 0;
    const Cluster cluster{.n_ranks = 512};
    const StepPlan empty = plan_of(shape, cluster, uniform_routing(shape, cluster));
    EXPECT_EQ(empty.combine.rows.total_to_other_ranks(), 0u);
    EXPECT_EQ(empty.dispatch.memory_us, 0);
    EXPECT_TRUE(std::isfinite(empty.step_us) && empty.step_us > 0);
    EXPECT_EQ(empty.messages_per_token, 0);
  }
}

TEST(Plan, ManyTokensAreDrawnInPartAndCountedInFull) {
  const Cluster cluster{.n_ranks = 512};
  const PlanShape many{.max_tokens_per_rank = 65535, .hidden = 2048, .top_k = 32};
  const PlanRouting routing =
      draw_routing({512, 65535, 32, uniform_popularity(many.n_experts), /*seed=*/1, /*max_ids=*/200'000});
  EXPECT_LE(routing.step.topk_ids.size() * routing.step.topk_ids[0].size(), 200'000u);
  EXPECT_NEAR(routing.num_tokens(511), 65535, 1e-6);
  const StepPlan plan = plan_of(many, cluster, routing);
  const double rows = 512.0 * 65535 * 32;
  double counted = 0;
  for (const uint64_t of_rank : plan.rows_of_rank) counted += static_cast<double>(of_rank);
  EXPECT_NEAR(counted / rows, 1, 1e-3);
  EXPECT_NEAR(static_cast<double>(plan.dispatch.rows.total_to_other_ranks()) / (rows * 4096 * 511 / 512), 1,
              0.01);
}

TEST(Plan, UnevenExpertsAndRanksWithoutAnyArePlanned) {
  const PlanShape shape{.max_tokens_per_rank = 8, .hidden = 128, .n_experts = 5, .top_k = 2};
  const Cluster cluster{.n_ranks = 7, .ranks_per_node = 4};  // a last node of three
  const StepPlan plan = plan_of(shape, cluster, uniform_routing(shape, cluster));
  EXPECT_EQ(cluster.num_nodes(), 2);
  EXPECT_EQ(plan.rows_of_rank[5] + plan.rows_of_rank[6], 0u);
  EXPECT_GT(plan.rows_of_rank[4], 0u);
}

TEST(Plan, WhatIsKnownIsCloseOrExplained) {
  for (const PublishedStep& step : published_steps()) {
    const Result<StepPlan> plan = plan_published(step);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const PublishedTimes times = published_times(step, plan.value());
    const bool close = is_close(plan.value().dispatch.us(), times.dispatch_us) &&
                       is_close(plan.value().combine.us(), times.combine_us);
    EXPECT_TRUE(close || std::string(step.reason) != "") << step.who << ", " << step.setting;
    const bool is_large = step.shape.max_tokens_per_rank >= 128;  // what the L2 holds no part of
    EXPECT_TRUE(close || !step.is_measured_here || !is_large) << step.setting;
  }
}

TEST(Plan, DrawnRoutingsHaveDifferentExpertsByTheirShares) {
  const PlanDraw draw{2, 500, 3, {5, 0, 3, 1, 1}, 7};
  const PlanRouting routing = draw_routing(draw);
  for (const std::vector<int32_t>& ids : routing.step.topk_ids)
    for (size_t i = 0; i < ids.size(); i += 3) {
      EXPECT_TRUE(ids[i] != ids[i + 1] && ids[i] != ids[i + 2] && ids[i + 1] != ids[i + 2]);
      for (size_t k = 0; k < 3; ++k) EXPECT_TRUE(ids[i + k] >= 0 && ids[i + k] < 5 && ids[i + k] != 1);
    }
  const std::vector<double> rows = rows_per_expert(routing, 5);
  EXPECT_GT(rows[0], rows[2]);
  EXPECT_GT(rows[2], rows[3]);
  // Fewer are wanted than a token has choices: the others are padding.
  const PlanRouting padded = draw_routing({1, 4, 3, {1e-12, 0, 1e300}, 7});
  for (size_t i = 0; i < padded.step.topk_ids[0].size(); i += 3) {
    EXPECT_EQ(padded.step.topk_ids[0][i], 2);
    EXPECT_EQ(padded.step.topk_ids[0][i + 1], 0);
    EXPECT_EQ(padded.step.topk_ids[0][i + 2], -1);
  }
  EXPECT_EQ(draw_routing(draw).step.topk_ids, routing.step.topk_ids);
}

}  // namespace
}  // namespace switchyard::tools
