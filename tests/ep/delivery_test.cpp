// Who writes the rows of a token that has several on a rank: its own rank, or the one that owns them.
// EpHarness checks rows, offsets, counts and outputs against the reference, which knows of no difference.
// What holds for all ways of sending one row is in one_row_test.cpp.
#include "format_sweep.hpp"
#include "step_test.hpp"
#include "switchyard/row_readiness.hpp"

namespace switchyard {
namespace {

using testing_support::create_small;
using testing_support::EpHarness;
using testing_support::make_step;
using testing_support::must;
using testing_support::OneRow;
using testing_support::OneRowTest;
using testing_support::RunOptions;
using testing_support::Shape;
using testing_support::step_formats;

class DeliveryTest : public OneRowTest {};

INSTANTIATE_TEST_SUITE_P(Targets, DeliveryTest, testing_support::one_row_variants({OneRow::kDelivered}),
                         testing_support::one_row_variant_name);

TEST_P(DeliveryTest, EveryFormat) {
  for (const TokenFormatKind format : step_formats()) {
    if (info_of(format).encodes_by_expert) continue;
    RunOptions run = options();
    run.format = format;
    if (!HasFatalFailure())
      check({.n_experts = 6, .top_k = 4, .hidden = 256, .tokens_per_rank = {5, 3}}, run, 1);
  }
}
// Scales of a row whose bytes are no multiple of 16.
TEST_P(DeliveryTest, HiddenSizesOfOddNumbersOfBytes) {
  for (const TokenFormatKind format : step_formats())
    for (const int hidden : testing_support::sweep({96, 160})) {
      if (info_of(format).encodes_by_expert || !check_hidden(format, hidden).ok()) continue;
      RunOptions run = options();
      run.format = format;
      if (!HasFatalFailure())
        check({.n_experts = 6, .top_k = 4, .hidden = hidden, .tokens_per_rank = {5, 3}}, run, 1);
    }
}
TEST_P(DeliveryTest, OverAWireInEveryFormat) {
  for (const TokenFormatKind format : step_formats()) {
    if (info_of(format).encodes_by_expert) continue;
    for (const int group : testing_support::sweep({1, 2})) {
      RunOptions run = options();
      run.format = format;
      run.p2p_world_size = group;
      if (!HasFatalFailure())
        check({.n_ranks = 4, .n_experts = 8, .top_k = 5, .hidden = 256, .tokens_per_rank = {5, 3, 0, 4}}, run,
              1);
    }
  }
}
TEST_P(DeliveryTest, TheSenderGivesTheSame) {
  const Shape shape{.n_experts = 8, .top_k = 6, .tokens_per_rank = {9, 4}};
  RunOptions sender = options();
  sender.row_delivery = RowDelivery::kSender;
  const reference::Step step = as_run(make_step(shape, 7), sender);
  EpHarness by_sender(shape, sender), by_receiver(shape, options());
  by_sender.run_and_check(step);
  by_receiver.run_and_check(step);
  EXPECT_EQ(by_sender.last_output(), by_receiver.last_output());
}
TEST(Delivery, WhatItCannotDoIsRefused) {
  auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  const auto error_of = [&](ExpertParallelConfig changes) {
    changes.row_delivery = RowDelivery::kReceiver;
    const auto ep = create_small(*world, changes);
    return ep.ok() ? "" : ep.status().message();
  };
  EXPECT_EQ(error_of({}), "");
  EXPECT_EQ(
      error_of({.protocol = Protocol::kSlotted}),
      "row_delivery is receiver; it must be sender or automatic where protocol is slotted: every row is "
      "a message");
  EXPECT_EQ(
      error_of({.dispatch_format = TokenFormatKind::kNVFP4ByExpert, .expert_input_scales = {1, 1, 1, 1}}),
      "row_delivery is receiver; it must be sender or automatic in format nvfp4-by-expert, which encodes a "
      "token for each expert");
}

TEST(Delivery, IsTheSendersBetweenRanksThatShareMemoryAndTheReceiversOverAWire) {
  auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  const auto chosen = [&](const ExpertParallelConfig& changes) {
    return must(create_small(*world, changes))->config().row_delivery;
  };
  EXPECT_EQ(chosen({}), RowDelivery::kSender);
  EXPECT_EQ(chosen({.protocol = Protocol::kDirect, .p2p_world_size = 1}), RowDelivery::kReceiver);
  EXPECT_EQ(chosen({.protocol = Protocol::kSlotted, .p2p_world_size = 1}), RowDelivery::kSender);
  EXPECT_EQ(chosen({.row_layout = RowLayout::kPerRank, .row_delivery = RowDelivery::kReceiver}),
            RowDelivery::kSender)
      << "a token comes once anyway";
  EXPECT_EQ(chosen({.row_delivery = RowDelivery::kReceiver}), RowDelivery::kReceiver);
}

TEST(Delivery, RowsThatTheReceiverFillsAreNotThereEarly) {
  auto world = must(World::create({.target = TargetChoice::kHost, .n_ranks = 2}));
  auto ep = must(create_small(*world, {.row_delivery = RowDelivery::kReceiver}));
  EXPECT_EQ(ep->row_readiness(0, 1).status().message(),
            "row_readiness: row_delivery is receiver, so rows are complete behind dispatch_wait only");
}

}  // namespace
}  // namespace switchyard
