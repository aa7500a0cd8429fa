// A whole layer on every target that is here, against plain loops.
#include "switchyard/moe_layer.hpp"

#include <gtest/gtest.h>

#include "layer_harness.hpp"
#include "sweep.hpp"

namespace switchyard {
namespace {

using testing_support::kLayerMaxTokens;
using testing_support::LayerCase;
using testing_support::LayerHarness;
using testing_support::must;
using testing_support::sweep;
using testing_support::WholeLayerTest;

class MoeLayerTest : public WholeLayerTest {
 protected:
  void expect_right(const LayerCase& layer_case) {
    const auto world = make_world(layer_case.n_ranks);
    LayerHarness harness(*world, layer_case);
    ASSERT_TRUE(harness.enqueue().ok()) << layer_case.name();
    const Status status = harness.layer().ep().synchronize();
    ASSERT_TRUE(status.ok()) << layer_case.name() << ": " << status.to_string();
    EXPECT_EQ(harness.compare(), "") << layer_case.name();
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, MoeLayerTest, ::testing::Values(TargetChoice::kHost, TargetChoice::kCuda),
                         testing_support::layer_target_name);

constexpr Protocol kProtocols[] = {Protocol::kSlotted, Protocol::kDirect};
constexpr TokenFormatKind kFormats[] = {TokenFormatKind::kBF16, TokenFormatKind::kFP8,
                                        TokenFormatKind::kFP8UE8M0};

TEST_P(MoeLayerTest, AnyNumberOfRanksInBothProtocolsAndAllFormats) {
  for (const int n_ranks : sweep({1, 2, 4}))
    for (const Protocol protocol : kProtocols)
      for (const TokenFormatKind format : kFormats)
        expect_right({.n_ranks = n_ranks, .protocol = protocol, .format = format});
}

TEST_P(MoeLayerTest, SharedExpertRouterAndBiases) {
  for (const Protocol protocol : kProtocols)
    for (const TokenFormatKind format : kFormats) {
      expect_right({.n_ranks = 2,
                    .protocol = protocol,
                    .format = format,
                    .shared_expert = SharedExpert::kFused,
                    .has_router = true});
      expect_right({.n_ranks = 2,
                    .protocol = protocol,
                    .format = format,
                    .activation = Activation::kClampedSwiGLU,
                    .gate_layout = GateLayout::kInterleaved,
                    .has_bias = true,
                    .width = 128});
    }
}

TEST_P(MoeLayerTest, WeightsThatAreCodes) {
  for (const WeightFormat weights : {WeightFormat::kMXFP4, WeightFormat::kNVFP4, WeightFormat::kMXFP8})
    for (const TokenFormatKind format : sweep({TokenFormatKind::kFP8, TokenFormatKind::kMXFP8,
                                               TokenFormatKind::kNVFP4, TokenFormatKind::kBF16}))
      expect_right({.n_ranks = 2,
                    .protocol = Protocol::kDirect,
                    .format = format,
                    .weights = weights,
                    .shared_expert = SharedExpert::kFused,
                    .has_bias = true});
}

TEST_P(MoeLayerTest, RowsInEveryTokenFormat) {
  for (const TokenFormatKind format : kTokenFormatKinds)
    for (const Protocol protocol : sweep(kProtocols))
      expect_right({.n_ranks = 2,
                    .protocol = protocol,
                    .format = format,
                    .shared_expert = SharedExpert::kFused,
                    .has_router = true,
                    .row_layout = protocol == Protocol::kDirect ? RowLayout::kMasked : RowLayout::kRagged});
}

// No multiple of 16 bytes, and more than there are.
TEST_P(MoeLayerTest, WeightsThatAreAskedForAhead) {
  for (const int64_t prefetch_bytes : {1000, 1 << 30})
    for (const bool has_router : {false, true})
      expect_right({.protocol = Protocol::kDirect,
                    .format = has_router ? TokenFormatKind::kFP8 : TokenFormatKind::kBF16,
                    .has_router = has_router,
                    .prefetch_bytes = prefetch_bytes});
}

TEST_P(MoeLayerTest, CombineInFP8AndWithoutAnAllToAll) {
  for (const Protocol protocol : kProtocols)
    for (const TokenFormatKind format : kFormats)
      expect_right({.n_ranks = 2,
                    .protocol = protocol,
                    .format = format,
                    .combine_format = CombineFormat::kFP8,
                    .shared_expert = SharedExpert::kFused,
                    .has_bias = true});
  // The experts' rows of fp8 as owners and a wire take them, and between the halves of a dispatch.
  const LayerCase direct{
      .n_ranks = 2, .protocol = Protocol::kDirect, .combine_format = CombineFormat::kFP8, .hidden = 384};
  LayerCase reduced = direct, wired = direct, early = direct, masked = direct, skipped = direct;
  reduced.reduce_at_owner = true;
  wired.p2p_world_size = 1;
  early.gate_up_start = GateUpStart::kWithRows;
  masked.row_layout = RowLayout::kMasked;
  masked.format = TokenFormatKind::kFP8;
  skipped.routing = Routing::kSkipAllToAll;
  for (const LayerCase& layer_case : {reduced, wired, early, masked, skipped}) expect_right(layer_case);
  for (const TokenFormatKind format : kFormats)
    expect_right({.n_ranks = 2, .format = format, .routing = Routing::kSkipAllToAll});
}

TEST_P(MoeLayerTest, AGraphOfItReadsTokensAndIdsAnew) {
  for (const TokenFormatKind format : kFormats) {
    const auto world = make_world(2);
    LayerHarness harness(*world, {.n_ranks = 2,
                                  .protocol = Protocol::kDirect,
                                  .format = format,
                                  .shared_expert = SharedExpert::kFused,
                                  .has_router = true});
    const auto graph = must(world->capture([&] { return harness.enqueue(); }));
    for (const uint64_t seed : {2, 3, 2}) {
      harness.fill(seed);
      ASSERT_TRUE(graph->launch().ok());
      ASSERT_TRUE(graph->synchronize().ok());
      ASSERT_TRUE(harness.layer().ep().synchronize().ok());
      EXPECT_EQ(harness.compare(), "") << to_string(format) << ", seed " << seed;
    }
  }
}

TEST_P(MoeLayerTest, ARankWithoutTokensStillServesTheOthers) {
  for (const Protocol protocol : kProtocols) {
    const auto world = make_world(2);
    LayerHarness harness(*world, {.n_ranks = 2, .protocol = protocol});
    ASSERT_TRUE(harness.layer().run(0, harness.step(0)).ok());
    ASSERT_TRUE(harness.layer().run(1, {}).ok());
    ASSERT_TRUE(harness.layer().ep().synchronize().ok());
    EXPECT_EQ(harness.compare(0), "") << to_string(protocol);
  }
}

TEST_P(MoeLayerTest, PartsInTheirOrderAreTheWholeStep) {
  for (const StepLaunches launches : {StepLaunches::kFused, StepLaunches::kSplit})
    for (const GateUpStart start : {GateUpStart::kBehindDispatch, GateUpStart::kWithRows}) {
      const LayerCase layer_case{.n_ranks = 2,
                                 .protocol = Protocol::kDirect,
                                 .has_router = true,
                                 .gate_up_start = start,
                                 .launches = launches};
      const auto world = make_world(2);
      LayerHarness harness(*world, layer_case);
      for (const MoePart part : parts_of(harness.layer().config()))
        for (int rank = 0; rank < 2; ++rank) {
          const Status status = harness.layer().run_part(part, rank, harness.step(rank));
          ASSERT_TRUE(status.ok()) << layer_case.name() << ", " << to_string(part) << status.to_string();
        }
      ASSERT_TRUE(harness.layer().ep().synchronize().ok()) << layer_case.name();
      EXPECT_EQ(harness.compare(), "") << layer_case.name();
    }
}

TEST_P(MoeLayerTest, RowsMayBeMaskedAlignedOrReducedAtTheOwner) {
  for (const Protocol protocol : kProtocols)
    for (const RowLayout layout : {RowLayout::kRagged, RowLayout::kMasked})
      for (const TokenFormatKind format : {TokenFormatKind::kBF16, TokenFormatKind::kFP8UE8M0})
        expect_right({.n_ranks = 2,
                      .protocol = protocol,
                      .format = format,
                      .shared_expert = SharedExpert::kFused,
                      .launches = StepLaunches::kSplit,
                      .row_layout = layout,
                      .row_alignment = 16,
                      .reduce_at_owner = protocol == Protocol::kDirect});
}
// Rows that only fill up a group are not multiplied.
TEST_P(MoeLayerTest, UnwrittenRowsAreLeftOut) {
  for (const TokenFormatKind format : {TokenFormatKind::kBF16, TokenFormatKind::kFP8UE8M0}) {
    const auto world = make_world(2);
    LayerHarness harness(*world, {.n_ranks = 2,
                                  .protocol = Protocol::kDirect,
                                  .format = format,
                                  .launches = StepLaunches::kSplit,
                                  .row_layout = RowLayout::kMasked});
    const MoeLayerConfig& config = harness.layer().config();
    const auto hidden = static_cast<size_t>(config.ep.hidden);
    const auto capacity = static_cast<size_t>(config.ep.max_rows_per_expert);
    std::vector<Buffer<bf16>> outputs;
    std::vector<bf16> marked;
    for (int rank = 0; rank < 2; ++rank) {
      const RowBuffers own = must(harness.layer().ep().row_buffers(rank));
      marked.assign(static_cast<size_t>(own.max_rows) * hidden, to_bf16(77));
      outputs.push_back(world->rank(rank).view(own.expert_outputs, marked.size()));
      ASSERT_TRUE(outputs.back().upload(marked).ok());
    }
    ASSERT_TRUE(harness.enqueue().ok());
    ASSERT_TRUE(harness.layer().ep().synchronize().ok());
    EXPECT_EQ(harness.compare(), "") << to_string(format);
    for (int rank = 0; rank < 2; ++rank) {
      const auto counts = must(world->rank(rank)
                                   .view(harness.layer().rows(rank).dispatched.row_counts,
                                         static_cast<size_t>(harness.layer().ep().num_groups()))
                                   .download());
      const std::vector<bf16> rows = must(outputs[static_cast<size_t>(rank)].download());
      for (size_t group = 0; group < counts.size(); ++group)
        for (size_t row = counts[group]; row < capacity; ++row)
          ASSERT_EQ(rows[(group * capacity + row) * hidden], to_bf16(77))
              << to_string(format) << ", row " << row << " of group " << group << ", which has "
              << counts[group];
    }
  }
}

TEST_P(MoeLayerTest, StepsMayBeInFlightAtOnce) {
  for (const Protocol protocol : kProtocols) {
    const auto world = make_world(2);
    LayerHarness harness(*world, {.n_ranks = 2, .protocol = protocol, .steps_in_flight = 2});
    MoeLayer* const flights[] = {must(harness.layer().flight(0)), must(harness.layer().flight(1))};
    EXPECT_EQ(flights[0], &harness.layer());
    // The other flight has other tokens. What becomes of them alone comes first.
    std::vector<Buffer<bf16>> tokens, outputs;
    std::vector<std::vector<bf16>> expected;
    const auto other_step = [&](int rank) {
      MoeLayerStep step = harness.step(rank);
      step.tokens = tokens[static_cast<size_t>(rank)].data();
      step.output = outputs[static_cast<size_t>(rank)].data();
      return step;
    };
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<bf16> others = harness.tokens(rank);
      for (bf16& value : others) value = to_bf16(-2 * to_float(value));
      tokens.push_back(must(world->rank(rank).upload(others)));
      outputs.push_back(must(world->rank(rank).allocate<bf16>(others.size())));
    }
    for (int rank = 0; rank < 2; ++rank)
      ASSERT_TRUE(harness.layer().run(rank, other_step(rank)).ok()) << to_string(protocol);
    ASSERT_TRUE(harness.layer().ep().synchronize().ok());
    for (Buffer<bf16>& output : outputs) {
      expected.push_back(must(output.download()));
      ASSERT_TRUE(output.fill_bytes(0xff).ok());
    }
    for (const MoePart part : parts_of(harness.layer().config()))
      for (MoeLayer* const flight : flights)
        for (int rank = 0; rank < 2; ++rank)
          ASSERT_TRUE(
              flight->run_part(part, rank, flight == flights[0] ? harness.step(rank) : other_step(rank)).ok())
              << to_string(part);
    ASSERT_TRUE(harness.layer().ep().synchronize().ok());
    EXPECT_EQ(harness.compare(), "") << to_string(protocol);
    for (size_t rank = 0; rank < 2; ++rank)
      EXPECT_EQ(must(outputs[rank].download()), expected[rank]) << to_string(protocol);
    EXPECT_NE(flights[1]->flight(0).status().message().find("create()"), std::string::npos);
    EXPECT_NE(harness.layer().flight(2).status().message().find("0..1"), std::string::npos);
  }
}

// As engines have them: ids of 64 bits, gaps between tokens and between rows of the output, and tokens that
// are encoded already. No bit of the output differs.
TEST_P(MoeLayerTest, InputsMayBeAsEnginesHaveThem) {
  constexpr size_t kGap = 8;  // elements
  for (const TokenFormatKind format : kFormats) {
    const auto world = make_world(1);
    LayerHarness harness(*world, {.format = format});
    ASSERT_TRUE(harness.enqueue().ok());
    ASSERT_TRUE(harness.layer().ep().synchronize().ok());
    const std::vector<bf16> expected = harness.output(0), tokens = harness.tokens(0);
    const Rank& rank = world->rank(0);
    MoeLayerStep step = harness.step(0);
    const size_t num_tokens = static_cast<size_t>(step.num_tokens), hidden = tokens.size() / num_tokens;
    std::vector<bf16> spread((hidden + kGap) * num_tokens);
    std::vector<uint8_t> codes, scales;
    for (size_t token = 0; token < num_tokens; ++token) {
      const auto begin = tokens.begin() + static_cast<ptrdiff_t>(token * hidden);
      const std::vector<bf16> values(begin, begin + static_cast<ptrdiff_t>(hidden));
      std::copy(values.begin(), values.end(),
                spread.begin() + static_cast<ptrdiff_t>(token * (hidden + kGap)));
      if (format == TokenFormatKind::kBF16) continue;
      const reference::EncodedToken encoded = reference::encode_token(format, values, 1);
      codes.insert(codes.end(), encoded.codes.begin(), encoded.codes.end());
      scales.insert(scales.end(), encoded.scales.begin(), encoded.scales.end());
    }
    const auto wide_ids =
        must(rank.upload(std::vector<int64_t>(harness.ids(0).begin(), harness.ids(0).end())));
    const auto spread_tokens = must(rank.upload(spread));
    auto output = must(rank.upload(spread));
    const auto token_codes = must(rank.upload(codes)), token_scales = must(rank.upload(scales));
    step.topk_ids = nullptr;
    step.topk_ids_64 = wide_ids.data();
    step.output = output.data();
    step.output_stride_bytes = (hidden + kGap) * sizeof(bf16);
    for (const bool is_encoded : {false, true}) {
      if (is_encoded && format == TokenFormatKind::kBF16) continue;
      step.tokens = is_encoded ? static_cast<const void*>(token_codes.data()) : spread_tokens.data();
      step.token_stride_bytes = is_encoded ? 0 : step.output_stride_bytes;
      step.format = is_encoded ? InputFormat::kEncoded : InputFormat::kBF16;
      step.scales = is_encoded ? token_scales.data() : nullptr;
      ASSERT_TRUE(output.upload(spread).ok());
      const Status status = harness.layer().run(0, step);
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_TRUE(harness.layer().ep().synchronize().ok());
      const std::vector<bf16> rows = must(output.download());
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_EQ(rows[i / hidden * (hidden + kGap) + i % hidden], expected[i])
            << to_string(format) << (is_encoded ? ", encoded" : "") << ", element " << i;
    }
  }
}

TEST_P(MoeLayerTest, WhatPartsWriteCanBeReadAndChangedBetweenThem) {
  const auto world = make_world(1);
  LayerHarness harness(*world, {.has_router = true});
  MoeLayer& layer = harness.layer();
  const Rank& rank = world->rank(0);
  const size_t num_ids = harness.ids(0).size();
  ASSERT_TRUE(layer.run_part(MoePart::kRoute, 0, harness.step(0)).ok());
  ASSERT_TRUE(rank.synchronize().ok());
  const MoeLayerRows rows = layer.rows(0);
  std::vector<int32_t> ids = must(rank.view(rows.routed_ids, num_ids).download());
  EXPECT_EQ(ids, harness.ids(0));
  // Half of the choices become padding.
  for (size_t i = 0; i < num_ids; i += 2) ids[i] = -1;
  const auto padded_ids = must(rank.upload(ids));
  MoeLayerStep step = harness.step(0);
  step.logits = nullptr;
  step.topk_ids = padded_ids.data();
  step.topk_weights = rows.routed_weights;
  for (const MoePart part : parts_of(layer.config())) {
    if (part != MoePart::kRoute) {
      ASSERT_TRUE(layer.run_part(part, 0, step).ok()) << to_string(part);
    }
  }
  ASSERT_TRUE(layer.ep().synchronize().ok());
  uint32_t num_rows = 0;
  for (const uint32_t count :
       must(rank.view(rows.dispatched.row_counts, testing_support::kLayerExperts).download()))
    num_rows += count;
  EXPECT_EQ(num_rows, num_ids / 2);
  const std::vector<bf16> output = harness.output(0);
  const auto whole = must(rank.upload(harness.ids(0)));
  step.topk_ids = whole.data();
  std::vector<float> weights = must(rank.view(rows.routed_weights, num_ids).download());
  for (size_t i = 0; i < num_ids; i += 2) weights[i] = 0;
  const auto half = must(rank.upload(weights));
  step.topk_weights = half.data();
  ASSERT_TRUE(layer.run(0, step).ok());
  ASSERT_TRUE(layer.ep().synchronize().ok());
  // A choice whose weight is 0 adds nothing either.
  EXPECT_EQ(harness.output(0), output);
}

TEST_P(MoeLayerTest, AfterAResetWithOtherRanksItSaysSo) {
  for (const Protocol protocol : kProtocols) {
    const auto world = make_world(2);
    LayerHarness harness(*world, {.n_ranks = 2, .protocol = protocol});
    ASSERT_TRUE(harness.layer().ep().reset().ok());
    ASSERT_TRUE(harness.enqueue().ok());
    ASSERT_TRUE(harness.layer().ep().synchronize().ok());
    EXPECT_EQ(harness.compare(), "") << to_string(protocol);
    ASSERT_TRUE(harness.layer().ep().reset({0}).ok());
    const Status status = harness.layer().run(0, harness.step(0));
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find("reset with other ranks; create the layer anew"), std::string::npos)
        << status.message();
  }
}

// Whatever is wrong with a step is said in front of its first launch, so that the right step may follow.
TEST_P(MoeLayerTest, AStepThatIsRefusedHasEnqueuedNothing) {
  const auto world = make_world(1);
  LayerHarness harness(*world, {.protocol = Protocol::kDirect});
  const auto expect_refused = [&](const char* message, auto change) {
    MoeLayerStep step = harness.step(0);
    change(step);
    const Status status = harness.layer().run(0, step);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
    ASSERT_TRUE(harness.enqueue().ok()) << "behind a step without " << message;
  };
  expect_refused("topk_weights is 0x", [](auto& s) { s.topk_weights += 2; });
  expect_refused("topk_ids is 0x", [](auto& s) { s.topk_ids += 1; });
  expect_refused("output is 0x", [](auto& s) { s.output += 4; });
  expect_refused("tokens is 0x", [](auto& s) { s.tokens = static_cast<const std::byte*>(s.tokens) + 2; });
  expect_refused("output_stride_bytes is 7", [](auto& s) {
    s.num_tokens = 0;
    s.output_stride_bytes = 7;
  });
  ASSERT_TRUE(harness.layer().ep().synchronize().ok());
  EXPECT_EQ(harness.compare(), "");
}

TEST(MoeLayerParts, FollowFromTheConfiguration) {
  const auto names_of = [](const MoeLayerConfig& config) {
    std::string names;
    for (const MoePart part : parts_of(config))
      names += std::string(names.empty() ? "" : " ") + to_string(part);
    return names;
  };
  MoeLayerConfig config;
  EXPECT_EQ(names_of(config), "route dispatch gate_up down combine");
  config.gate_up_start = GateUpStart::kWithRows;
  EXPECT_EQ(names_of(config), "route dispatch gate_up down combine");
  config.launches = StepLaunches::kSplit;
  EXPECT_EQ(names_of(config), "route dispatch_async gate_up dispatch_wait down combine_async combine_wait");
  config.gate_up_start = GateUpStart::kBehindDispatch;
  EXPECT_EQ(names_of(config), "route dispatch_async dispatch_wait gate_up down combine_async combine_wait");
  config = {.ep = {.routing = Routing::kSkipAllToAll, .allreduce_world_size = 0}};
  EXPECT_EQ(names_of(config), "route dispatch gate_up down combine all_reduce");
  config.ep.allreduce_world_size = 1;  // the caller adds up
  EXPECT_EQ(names_of(config), "route dispatch gate_up down combine");
}

TEST_P(MoeLayerTest, RowsOfFP8AreWhatDownWritesAndCombineReads) {
  const auto world = make_world(1);
  LayerHarness harness(*world, {.protocol = Protocol::kDirect, .combine_format = CombineFormat::kFP8});
  ASSERT_EQ(harness.outcome(), "");
  const MoeLayerRows rows = harness.layer().rows(0);
  EXPECT_EQ(rows.expert_outputs, nullptr);
  const RowBuffers own = must(harness.layer().ep().row_buffers(0));
  ASSERT_EQ(rows.encoded_outputs, own.encoded_outputs);
  EXPECT_EQ(harness.layer().down(0).shape().output, MatmulOutput::kFP8Rows);
  // A scale that is NaN reaches the token.
  const MoeLayerConfig& config = harness.layer().config();
  Buffer<float> scales = world->rank(0).view(
      reinterpret_cast<float*>(rows.encoded_outputs + static_cast<ptrdiff_t>(config.ep.hidden)), 1);
  for (const MoePart part : parts_of(config)) {
    if (part == MoePart::kCombine) {
      ASSERT_TRUE(scales.upload(std::vector<float>{NAN}).ok());
    }
    ASSERT_TRUE(harness.layer().run_part(part, 0, harness.step(0)).ok()) << to_string(part);
    ASSERT_TRUE(world->rank(0).synchronize().ok());
  }
  ASSERT_TRUE(harness.layer().ep().synchronize().ok());
  EXPECT_NE(harness.compare(), "");
}

// The matmuls of coded weights write bf16, which the slotted protocol encodes.
TEST_P(MoeLayerTest, CombineInFP8IsSlottedWithCodedWeights) {
  const auto world = make_world(2);
  const LayerCase layer_case{.n_ranks = 2,
                             .protocol = Protocol::kAutomatic,
                             .weights = WeightFormat::kMXFP8,
                             .combine_format = CombineFormat::kFP8,
                             .launches = StepLaunches::kSplit};
  LayerHarness harness(*world, layer_case);
  EXPECT_EQ(harness.layer().config().ep.protocol, Protocol::kSlotted);
  EXPECT_EQ(harness.outcome(), "");
  MoeLayerConfig direct = harness.config();
  direct.ep.protocol = Protocol::kDirect;
  alignas(16) static constexpr float kSome[8] = {};
  const ExpertWeights weights{kSome, kSome, kSome, kSome};
  EXPECT_NE(MoeLayer::create(*world, direct, {weights, weights})
                .status()
                .message()
                .find("the protocol must be slotted: matmuls with weights mxfp8 write bf16"),
            std::string::npos);
}

TEST_P(MoeLayerTest, WhatItCannotRunIsRefusedByName) {
  const auto world = make_world(1);
  LayerHarness harness(*world, {});
  const auto message_of = [&](auto change) {
    MoeLayerConfig config = harness.config();
    change(config);
    return MoeLayer::create(*world, config, {ExpertWeights{}}).status().message();
  };
  const auto expect_named = [](const std::string& message, const char* name) {
    EXPECT_NE(message.find(name), std::string::npos) << message;
  };
  expect_named(message_of([](auto&) {}), "gate_up of rank 0");
  expect_named(message_of([](auto& c) { c.expert_width = 12; }), "expert_width: 12");
  expect_named(message_of([](auto& c) {
                 c.expert_width = 40;
                 c.ep.dispatch_format = TokenFormatKind::kFP8;
               }),
               "expert_width: 40 must be a positive multiple of 64");
  expect_named(message_of([](auto& c) { c.activation = Activation::kNone; }), "activation");
  expect_named(message_of([](auto& c) {
                 c.gate_up_start = GateUpStart::kWithRows;
                 c.ep.protocol = Protocol::kDirect;
                 c.ep.row_layout = RowLayout::kMasked;
               }),
               "gate_up_start: with the rows; row_layout must be ragged");
  expect_named(message_of([](auto& c) { c.weights = WeightFormat::kMXFP8; }), "gate_up of rank 0");
  expect_named(message_of([](auto& c) {
                 c.weights = WeightFormat::kMXFP8;
                 c.ep.combine_format = CombineFormat::kFP8;
                 c.ep.reduce_at_owner = true;
               }),
               "combine_format: fp8 with weights mxfp8");
  expect_named(message_of([](auto& c) { c.ep.row_layout = RowLayout::kPerRank; }), "row_layout: per-rank");
  alignas(16) static constexpr float kSome[8] = {};
  const auto message_of_weights = [&](const ExpertWeights& weights) {
    return MoeLayer::create(*world, harness.config(), {weights}).status().message();
  };
  expect_named(message_of_weights({.gate_up = kSome, .down = kSome + 1}), "down of rank 0 is 0x");
  expect_named(message_of_weights({.gate_up = kSome, .down = kSome, .gate_up_tensor_scales = kSome}),
               "tensor scales of rank 0 must be null with weights as-rows");
  expect_named(message_of([](auto& c) { c.prefetch_bytes = -1; }), "prefetch_bytes: -1");
  expect_named(message_of([](auto& c) {
                 c.gate_up_start = GateUpStart::kWithRows;
                 c.ep.dispatch_format = TokenFormatKind::kMXFP8;
               }),
               "gate_up_start: with the rows; dispatch_format must be bf16 or fp8-by-row, not mxfp8");
  expect_named(message_of([](auto& c) {
                 c.weights = WeightFormat::kNVFP4;
                 c.ep.hidden = 32;
               }),
               "hidden: 32 must be a multiple of 64 with weights nvfp4");
  expect_named(message_of([](auto& c) {
                 c.weights = WeightFormat::kMXFP4;
                 c.expert_width = 32;
               }),
               "expert_width: 32 must be a positive multiple of 64");
  MoeLayerStep step = harness.step(0);
  step.num_tokens = kLayerMaxTokens + 1;
  expect_named(harness.layer().run(0, step).message(), "num_tokens: 22 must be 0..21");
  step = harness.step(0);
  step.topk_weights = nullptr;
  expect_named(harness.layer().run(0, step).message(), "topk_weights");
  expect_named(harness.layer().run(1, step).message(), "rank: 1");
  expect_named(harness.layer().run_part(MoePart::kDispatchWait, 0, harness.step(0)).message(),
               "part: dispatch_wait is none");
  const auto message_of_step = [&](auto change) {
    MoeLayerStep changed = harness.step(0);
    change(changed);
    return harness.layer().run(0, changed).message();
  };
  const int64_t wide_id = 0;
  expect_named(message_of_step([&](auto& s) { s.topk_ids_64 = &wide_id; }), "topk_ids_64");
  expect_named(message_of_step([](auto& s) { s.format = InputFormat::kFP16; }), "format: fp16");
  expect_named(message_of_step([](auto& s) { s.format = InputFormat::kEncoded; }), "format: encoded");
  expect_named(message_of_step([](auto& s) { s.scales = s.tokens; }), "scales: must be null");
  expect_named(message_of_step([](auto& s) { s.token_stride_bytes = 520; }), "token_stride_bytes is 520");
  expect_named(message_of_step([](auto& s) { s.output_stride_bytes = 256; }), "output_stride_bytes is 256");
}

}  // namespace
}  // namespace switchyard
