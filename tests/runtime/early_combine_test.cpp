// A layer whose combine takes each expert's rows when these are complete: on every target that is here, and
// in weak memory, where each part of the signal that is left out must show.
#include <iostream>

#include "layer_harness.hpp"
#include "runtime/ep/exchange_layout.hpp"
#include "sweep.hpp"
#include "switchyard/detail/launch/early_matmul_kernels.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"
#include "switchyard/row_completion.hpp"

namespace switchyard {
namespace {

using testing_support::kFewCases;
using testing_support::LayerCase;
using testing_support::LayerHarness;
using testing_support::must;
using testing_support::seeds;
using testing_support::sweep;
using testing_support::WholeLayerTest;

constexpr LayerCase kWithExperts{
    .n_ranks = 2, .protocol = Protocol::kDirect, .combine_start = CombineStart::kWithExperts};

class EarlyCombine : public WholeLayerTest {};

INSTANTIATE_TEST_SUITE_P(Targets, EarlyCombine, ::testing::Values(TargetChoice::kHost, TargetChoice::kCuda),
                         testing_support::layer_target_name);

TEST_P(EarlyCombine, AnyNumberOfRanksInEveryFormat) {
  for (const int n_ranks : sweep({1, 2, 4}))
    for (const TokenFormatKind format :
         {TokenFormatKind::kBF16, TokenFormatKind::kFP8, TokenFormatKind::kFP8UE8M0})
      for (const SharedExpert shared : {SharedExpert::kNone, SharedExpert::kFused}) {
        LayerCase layer_case = kWithExperts;
        layer_case.n_ranks = n_ranks;
        layer_case.format = format;
        layer_case.shared_expert = shared;
        layer_case.has_router = layer_case.has_bias = shared == SharedExpert::kFused;
        const auto world = make_world(n_ranks);
        LayerHarness harness(*world, layer_case);
        for (int step = 0; step < 2; ++step) EXPECT_EQ(harness.outcome(), "") << layer_case.name();
      }
}

TEST_P(EarlyCombine, MaskedAndAlignedRowsGateUpWithTheRowsAndNoAllToAll) {
  for (LayerCase layer_case :
       {LayerCase{.row_layout = RowLayout::kMasked}, LayerCase{.row_alignment = 16},
        LayerCase{.gate_up_start = GateUpStart::kWithRows}, LayerCase{.routing = Routing::kSkipAllToAll}}) {
    layer_case.n_ranks = 2;
    layer_case.protocol = Protocol::kDirect;
    layer_case.combine_start = CombineStart::kWithExperts;
    const auto world = make_world(2);
    LayerHarness harness(*world, layer_case);
    for (int step = 0; step < 2; ++step) EXPECT_EQ(harness.outcome(), "") << layer_case.name();
  }
}

TEST_P(EarlyCombine, HasTheBitsOfALayerThatWaitsForAllExperts) {
  std::vector<std::vector<bf16>> outputs;
  for (const CombineStart start : {CombineStart::kBehindExperts, CombineStart::kWithExperts}) {
    LayerCase layer_case = kWithExperts;
    layer_case.combine_start = start;
    const auto world = make_world(2);
    LayerHarness harness(*world, layer_case);
    ASSERT_EQ(harness.outcome(), "");
    for (const int rank : {0, 1}) outputs.push_back(harness.output(rank));
  }
  for (const size_t rank : {0, 1}) EXPECT_EQ(outputs[rank], outputs[2 + rank]) << "rank " << rank;
}

TEST_P(EarlyCombine, AGraphOfItReadsTokensAndIdsAnew) {
  const auto world = make_world(2);
  LayerHarness harness(*world, kWithExperts);
  const auto graph = must(world->capture([&] { return harness.enqueue(); }));
  for (const uint64_t seed : {2, 3, 2}) {
    harness.fill(seed);
    ASSERT_TRUE(graph->launch().ok());
    ASSERT_TRUE(graph->synchronize().ok());
    ASSERT_TRUE(harness.layer().ep().synchronize().ok());
    EXPECT_EQ(harness.compare(), "") << "seed " << seed;
  }
}

TEST_P(EarlyCombine, PartsOneByOneAndStepsInFlight) {
  LayerCase layer_case = kWithExperts;
  layer_case.steps_in_flight = 2;
  const auto world = make_world(2);
  LayerHarness harness(*world, layer_case);
  MoeLayer* const flights[] = {must(harness.layer().flight(0)), must(harness.layer().flight(1))};
  std::vector<Buffer<bf16>> outputs;
  for (int rank = 0; rank < 2; ++rank)
    outputs.push_back(must(world->rank(rank).allocate<bf16>(harness.tokens(rank).size())));
  for (const MoePart part : parts_of(harness.layer().config()))
    for (MoeLayer* const flight : flights)
      for (int rank = 0; rank < 2; ++rank) {
        MoeLayerStep step = harness.step(rank);
        if (flight != flights[0]) step.output = outputs[static_cast<size_t>(rank)].data();
        ASSERT_TRUE(flight->run_part(part, rank, step).ok()) << to_string(part);
      }
  ASSERT_TRUE(harness.layer().ep().synchronize().ok());
  EXPECT_EQ(harness.compare(), "");
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(must(outputs[static_cast<size_t>(rank)].download()), harness.output(rank));
}

TEST_P(EarlyCombine, ARankWithoutTokensStillServesTheOthers) {
  const auto world = make_world(2);
  LayerHarness harness(*world, kWithExperts);
  ASSERT_TRUE(harness.layer().run(0, harness.step(0)).ok());
  ASSERT_TRUE(harness.layer().run(1, {}).ok());
  ASSERT_TRUE(harness.layer().ep().synchronize().ok());
  EXPECT_EQ(harness.compare(0), "");
}

TEST_P(EarlyCombine, AfterARankThatDoesNotComeAndAResetTheNextStepIsRight) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  LayerCase layer_case = kWithExperts;
  layer_case.timeout_ns = 300'000'000;
  const auto world = make_world(2);
  LayerHarness harness(*world, layer_case);
  ASSERT_EQ(harness.outcome(), "");
  ASSERT_TRUE(harness.layer().run(0, harness.step(0)).ok());
  Status status = harness.layer().ep().synchronize();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
  ASSERT_TRUE(harness.layer().ep().reset().ok());
  ASSERT_EQ(harness.outcome(), "");
  // Rank 1 comes, but its experts do not: who waits for them says so.
  for (const MoePart part : parts_of(harness.layer().config()))
    for (int rank = 0; rank < 2; ++rank)
      if (!(rank == 1 && part == MoePart::kDown)) {
        ASSERT_TRUE(harness.layer().run_part(part, rank, harness.step(rank)).ok()) << to_string(part);
      }
  status = harness.layer().ep().synchronize();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  // Rank 1 waits for them, too, and either may be the first to say so.
  EXPECT_TRUE(status.message().find("for rank 1, but the output of its expert") != std::string::npos ||
              status.message().find("rank 1 waited") != std::string::npos)
      << status.message();
  EXPECT_EQ(status.message().find("blocks of its own launch"), std::string::npos) << status.message();
  ASSERT_TRUE(harness.layer().ep().reset().ok());
  EXPECT_EQ(harness.outcome(), "");
}

// Every tiling, with groups of no, one and many rows: each group with rows is complete once, for this step.
TEST_P(EarlyCombine, EveryMatmulWithACompletionTellsOfEachGroupOnce) {
  constexpr int kNumExperts = 4, kInner = 128, kColumns = 384;
  constexpr int64_t kMaxRows = 272;
  const auto world = make_world(1);
  const Rank& rank = world->rank(0);
  const auto ep = must(ExpertParallel::create(*world, {.n_experts = kNumExperts,
                                                       .top_k = 1,
                                                       .hidden = kColumns,
                                                       .max_tokens_per_rank = 8,
                                                       .n_sms = 2,
                                                       .combine_start = CombineStart::kWithExperts}));
  const auto sizes = must(rank.allocate<uint32_t>(64));
  const auto experts = must(rank.allocate<int32_t>(64));
  ASSERT_TRUE(ep->dispatch(0, {}, {.row_offsets = sizes.data(), .expert_ids = experts.data()}).ok());
  ASSERT_TRUE(ep->synchronize().ok());
  const RowCompletion completion = must(ep->row_completion(0));
  const OutputCellLayout layout{1, kNumExperts};
  const auto cells = rank.view(completion.cells.mine, layout.bytes().value() / sizeof(uint64_t));
  const auto parts = rank.view(completion.num_parts_done, kNumExperts);
  ASSERT_EQ(completion.num_groups, kNumExperts);
  // The last group would end behind the tensors.
  const auto offsets = must(rank.upload(std::vector<uint32_t>{0, 0, 1, 130, kMaxRows + 50}));
  const auto counts = must(rank.upload(std::vector<uint32_t>{0, 1, 65, 129}));
  for (const MatmulTuning& tuning : kMatmulTunings) {
    if (telling_matmul_kernel(world->target(), tuning) == nullptr) continue;
    const bool is_fp8 = tuning.element == MatmulElement::kFP8;
    const auto rows = must(rank.upload(std::vector<uint8_t>(kMaxRows * kInner * 2, 0x31)));
    const auto weights =
        must(rank.upload(std::vector<uint8_t>(size_t{kNumExperts} * kColumns * kInner * 2, 0x32)));
    const auto scales = must(rank.upload(std::vector<float>(4096, 0.5f)));
    auto matmul = must(GroupedMatmul::create(world->rank(0), {.num_groups = kNumExperts,
                                                              .element = tuning.element,
                                                              .inner = kInner,
                                                              .columns = kColumns,
                                                              .max_rows = kMaxRows,
                                                              .num_blocks = 3,
                                                              .tuning = tuning}));
    for (const bool has_counts : {false, true}) {
      std::vector<std::vector<bf16>> outputs;
      for (const bool tells : {false, true}) {
        auto output = must(rank.upload(std::vector<bf16>(kMaxRows * kColumns, to_bf16(7))));
        ASSERT_TRUE(world->rank(0).view(completion.cells.mine, cells.size()).fill_bytes(0).ok());
        const Status status = matmul->run({.rows = rows.data(),
                                           .weights = weights.data(),
                                           .output = output.data(),
                                           .row_offsets = offsets.data(),
                                           .row_counts = has_counts ? counts.data() : nullptr,
                                           .row_scales = is_fp8 ? scales.data() : nullptr,
                                           .weight_scales = is_fp8 ? scales.data() : nullptr,
                                           .completion = tells ? &completion : nullptr});
        ASSERT_TRUE(status.ok()) << status.to_string();
        ASSERT_TRUE(rank.synchronize().ok());
        outputs.push_back(must(output.download()));
        const std::vector<uint64_t> told = must(cells.download());
        for (int expert = 0; expert < kNumExperts; ++expert)
          EXPECT_EQ(told[static_cast<size_t>(2 + expert)],
                    tells && expert > 0 ? (StepCell{1, 0}.pack()) : uint64_t{0})
              << to_string(tuning) << ", expert " << expert;
        EXPECT_EQ(must(parts.download()), std::vector<uint32_t>(kNumExperts, 0)) << to_string(tuning);
      }
      EXPECT_EQ(outputs[0], outputs[1]) << to_string(tuning);
    }
  }
}

TEST(EarlyCombineMemory, EveryGroupHasACountOfItsParts) {
  for (const SharedExpert shared : {SharedExpert::kNone, SharedExpert::kFused}) {
    const ExpertParallelConfig config{.n_experts = 256,
                                      .top_k = 8,
                                      .hidden = 64,
                                      .max_tokens_per_rank = 4,
                                      .protocol = Protocol::kDirect,
                                      .combine_start = CombineStart::kWithExperts,
                                      .shared_expert = shared};
    const int num_groups = 256 / 4 + (shared == SharedExpert::kFused ? 1 : 0);
    EXPECT_EQ(must(ExchangeLayout::of(config, 4, /*has_wire=*/false)).parts_done.bytes,
              static_cast<uint64_t>(num_groups) * sizeof(uint32_t));
  }
}

TEST_P(EarlyCombine, WithoutMemoryForTokensThereIsNothingToFollow) {
  const auto world = make_world(2);
  LayerHarness harness(*world, kWithExperts);
  MoeLayerConfig config = harness.config();
  config.ep.max_tokens_per_rank = 0;
  alignas(16) static const float kAny[4] = {};
  const ExpertWeights weights{.gate_up = kAny, .down = kAny};
  const auto layer = must(MoeLayer::create(*world, config, {weights, weights}));
  for (int step = 0; step < 3; ++step)
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(layer->run(rank, {}).ok());
  const Status status = layer->ep().synchronize();
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_P(EarlyCombine, WhatItCannotRunIsRefusedByName) {
  const auto world = make_world(2);
  LayerHarness harness(*world, kWithExperts);
  alignas(16) const float any = 0;
  const auto message_of = [&](auto change) {
    MoeLayerConfig config = harness.config();
    change(config);
    const ExpertWeights weights{&any, &any, &any, &any, nullptr, nullptr};
    return MoeLayer::create(*world, config, {weights, weights}).status().message();
  };
  const auto expect_named = [](const std::string& message, const char* name) {
    EXPECT_NE(message.find(name), std::string::npos) << message;
  };
  expect_named(message_of([](auto& c) { c.ep.protocol = Protocol::kSlotted; }),
               "combine_start is with-experts; protocol must be direct");
  expect_named(message_of([](auto& c) { c.launches = StepLaunches::kSplit; }), "launches must be fused");
  expect_named(message_of([](auto& c) { c.weights = WeightFormat::kMXFP4; }), "not mxfp4");
  expect_named(message_of([](auto& c) { c.ep.reduce_at_owner = true; }), "reduce_at_owner must be false");
  expect_named(message_of([](auto& c) { c.ep.p2p_world_size = 1; }), "without a wire");
  expect_named(message_of([](auto& c) { c.ep.combine_start = static_cast<CombineStart>(7); }),
               "combine_start is 7");

  ExpertParallelConfig config = harness.config().ep;
  config.protocol = Protocol::kAutomatic;
  const auto ep = must(ExpertParallel::create(*world, config));
  EXPECT_EQ(ep->config().protocol, Protocol::kDirect);
  EXPECT_TRUE(ep->row_completion(1).ok());
  EXPECT_FALSE(ep->row_completion(2).ok());
  std::vector<Buffer<uint32_t>> memory_of_rank;
  std::vector<DispatchOutput> output;
  for (int rank = 0; rank < 2; ++rank) {
    memory_of_rank.push_back(must(world->rank(rank).allocate<uint32_t>(1024)));
    uint32_t* const begin = memory_of_rank.back().data();
    output.push_back({.row_offsets = begin, .expert_ids = reinterpret_cast<int32_t*>(begin + 64)});
  }
  const Buffer<uint32_t>& memory = memory_of_rank.front();
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_TRUE(ep->dispatch(rank, {}, output[static_cast<size_t>(rank)]).ok());
  expect_named(ep->combine_async(0, {}).message(), "combine_start is with-experts; call combine");
  expect_named(ep->combine(0, {}, {.destination = {.reduction = CombineReduction::kUnreduced}}).message(),
               "the output is weighted");
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ep->combine(rank, {}, {}).ok());
  expect_named(ep->reopen_step(0).message(), "reopen_step: combine_start is with-experts");
  EXPECT_TRUE(ep->synchronize().ok());

  config.combine_start = CombineStart::kBehindExperts;
  const auto behind = must(ExpertParallel::create(*world, config));
  expect_named(behind->row_completion(0).status().message(), "combine_start is behind-experts");
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_TRUE(behind->dispatch(rank, {}, output[static_cast<size_t>(rank)]).ok());
  expect_named(behind->combine(0, {.follows_experts = true}, {}).message(), "follows_experts must be false");

  const RowCompletion completion = must(ep->row_completion(0));
  auto matmul = must(GroupedMatmul::create(
      world->rank(0), {.num_groups = completion.num_groups, .inner = 64, .columns = 128, .max_rows = 64}));
  GroupedMatmulTensors tensors{.rows = memory.data(),
                               .weights = memory.data(),
                               .output = memory.data(),
                               .row_offsets = memory.data(),
                               .expert_ids = reinterpret_cast<const int32_t*>(memory.data()),
                               .completion = &completion};
  expect_named(matmul->run(tensors).message(), "completion: must be null with expert_ids");
  RowCompletion other = completion;
  other.num_groups = 1;
  tensors.expert_ids = nullptr;
  tensors.completion = &other;
  expect_named(matmul->run(tensors).message(), "completion: is of 1 groups, and num_groups is 4");
}

// With combine on another stream than the experts, so that nothing but their signals orders the two, as where
// the GPU lets combine in while they run. Two blocks work for each expert.
std::string run_side_by_side(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const TestHooks hooks{.mutant = mutant};
  const int n_ranks = seed % 2 == 0 ? 1 : 2;
  const auto world = must(World::create({.target = TargetChoice::kHost,
                                         .n_ranks = n_ranks,
                                         .host = testing_support::weak_memory(seed, &hooks)}));
  LayerCase layer_case = kWithExperts;
  layer_case.n_ranks = n_ranks;
  layer_case.shared_expert = seed / 2 % 2 == 0 ? SharedExpert::kNone : SharedExpert::kFused;
  LayerHarness harness(*world, layer_case);
  std::vector<Stream> beside;
  for (int rank = 0; rank < n_ranks; ++rank) beside.push_back(must(world->rank(rank).create_stream()));
  for (const MoePart part : parts_of(harness.layer().config())) {
    if (part == MoePart::kDown)
      if (const Status status = world->synchronize(); !status.ok()) return status.to_string();
    for (int rank = 0; rank < n_ranks; ++rank) {
      const Stream stream = part == MoePart::kCombine ? beside[static_cast<size_t>(rank)] : Stream{};
      if (const Status status = harness.layer().run_part(part, rank, harness.step(rank), stream);
          !status.ok())
        return status.to_string();
    }
  }
  const Status status = harness.layer().ep().synchronize();
  return status.ok() ? harness.compare() : status.to_string();
}

class EarlyCombineInWeakMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kFewCases) GTEST_SKIP() << "a sanitizer's build has no weak memory";
  }
};

TEST_F(EarlyCombineInWeakMemory, IsRightForEverySeed) {
  for (uint64_t seed = 0; seed < seeds(12); ++seed)
    ASSERT_EQ(run_side_by_side(seed, std::nullopt), "") << seed;
}

// What would not be noticed on the emulator's usual memory.
TEST_F(EarlyCombineInWeakMemory, EveryPartOfTheSignalThatIsLeftOutShows) {
  const std::pair<const char*, OrderMutant> mutants[] = {
      {"MM34: an expert's output is not acquired", {"await_experts(", WordKind::kLoad, Order::kRelaxed}},
      {"MM34: it is not released", {"complete_part(", WordKind::kStore, Order::kRelaxed}},
      {"MM33: the count of its parts is not released", {"complete_part(", WordKind::kAdd, Order::kAcquire}},
      {"MM33: the count of its parts is not acquired", {"complete_part(", WordKind::kAdd, Order::kRelease}}};
  constexpr uint64_t kMaxSeeds = 40;
  for (auto [name, mutant] : mutants) {
    mutant.stops_at_overtaking = false;
    std::string difference;
    uint64_t seed = 0;
    for (; seed < kMaxSeeds && difference.empty(); ++seed) difference = run_side_by_side(seed, mutant);
    EXPECT_NE(difference, "") << name << ": none of " << kMaxSeeds << " seeds shows it";
    std::cout << name << ", seed " << seed - 1 << ": " << difference << "\n";
  }
}

}  // namespace
}  // namespace switchyard
