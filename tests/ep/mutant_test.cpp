// The logic mutants of testing/logic_mutant.hpp: kernels with one line gone wrong, each of which the checks
// that the real kernels pass must catch. (Mutants of the memory order are in weak_protocol_test.cpp.)
#include <cmath>
#include <iostream>
#include <map>

#include "awaited_readers.hpp"
#include "ep_harness.hpp"
#include "launch/make_kernel_table.hpp"
#include "switchyard/detail/format/all_formats.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/detail/testing/expert_parallel_test_access.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

template <LogicMutant kOne>
struct MutantShape {
  static constexpr EpShape kShape{};
  static constexpr LogicMutant kMutant = kOne;
};

template <LogicMutant kOne>
constexpr KernelTable kMutantSlotted = make_kernel_table<MutantShape<kOne>, RunTimeShape>();
template <LogicMutant kOne>
constexpr KernelTable kMutantDirect = make_kernel_table<RunTimeShape, MutantShape<kOne>>();

// A format whose scales are the same for all experts, and one that has them for each.
template <FixedShape Fixed>
const DispatchKernels* direct_interleaved(TokenFormatKind format) {
  return format == TokenFormatKind::kFP8
             ? &kDispatchKernels<Direct, Fixed, BlockwiseFP8TokenFormat<e4m3>>
             : &kDispatchKernels<Direct, Fixed, NVBlockScaledTokenFormat<NVFP4<ExpertInputScales>>>;
}
template <FixedShape Fixed>
constexpr KernelTable make_interleaved_table() {
  KernelTable table = make_kernel_table<RunTimeShape, RunTimeShape>();
  table.direct.dispatch = &direct_interleaved<Fixed>;
  return table;
}
template <LogicMutant kOne>
constexpr KernelTable kMutantInterleaved = make_interleaved_table<MutantShape<kOne>>();

// The first of the two, carried once to each rank.
template <FixedShape Fixed>
const DispatchKernels* linked_fp8(TokenFormatKind) {
  return &kLinkedDispatchKernels<Fixed, BlockwiseFP8TokenFormat<e4m3>>;
}
constexpr KernelTable linked_fp8_table(const DispatchKernels* (*linked)(TokenFormatKind)) {
  KernelTable table = make_kernel_table<RunTimeShape, RunTimeShape>();
  table.direct.linked_dispatch = linked;
  return table;
}
constexpr KernelTable kScalesOfOwnRow =
    linked_fp8_table(&linked_fp8<MutantShape<LogicMutant::kScalesOfOwnRow>>);

// The options of a world point at their hooks.
const TestHooks* hooks_of(const KernelTable& kernels) {
  static std::map<const KernelTable*, TestHooks> hooks;
  return &hooks.try_emplace(&kernels, TestHooks{.kernels = &kernels}).first->second;
}

RunOptions options_of(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  RunOptions options = weak_run(seed, protocol, hooks_of(kernels));
  if (seed % 8 == 3) options.n_sms = 1;  // one block has tokens enough to use its stages again
  return options;
}

// Padding now and then; repeats come by themselves.
reference::Step make_padded_step(const Shape& shape, uint64_t seed) {
  reference::Step step = make_step(shape, seed);
  std::mt19937_64 random(seed);
  for (auto& ids : step.topk_ids)
    for (int32_t& id : ids)
      if (random() % 8 == 0) id = -1;
  return step;
}

// A check runs what its seed draws on these kernels and says what is wrong, or nothing.
using Check = std::string (*)(uint64_t seed, Protocol protocol, const KernelTable& kernels);

// Two steps, back to back or one by one, against the reference. In the latter case receive buffers hold
// nothing useful when a step begins.
std::string run_two_steps(uint64_t seed, const Shape& shape, const RunOptions& options) {
  EpHarness harness(shape, options);
  const std::vector<reference::Step> steps = {as_run(make_padded_step(shape, seed * 2), options),
                                              as_run(make_padded_step(shape, seed * 2 + 1), options)};
  if (seed / 2 % 2 == 0) return harness.run_back_to_back(steps);
  for (const reference::Step& step : steps) {
    if (const Status status = ExpertParallelTestAccess::poison_receive_buffers(harness.ep(), 0xdd);
        !status.ok())
      return status.to_string();
    if (const std::string difference = harness.run_and_compare(step); !difference.empty()) return difference;
  }
  return "";
}

std::string run_steps(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  const bool two_ranks = seed % 3 != 2;
  const Shape shape{.n_ranks = two_ranks ? 2 : 3,
                    .n_experts = two_ranks ? 4 : 6,
                    .top_k = 3,
                    .hidden = 16,
                    .tokens_per_rank = two_ranks ? std::vector{4, 3} : std::vector{2, 3, 4}};
  return run_two_steps(seed, shape, options_of(seed, protocol, kernels));
}

// The same with masked rows.
std::string run_masked(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  RunOptions options = options_of(seed, protocol, kernels);
  options.row_layout = RowLayout::kMasked;
  options.unwritten = UnwrittenRows::kMarked;
  return run_two_steps(seed, {.n_experts = 4, .top_k = 3, .hidden = 16, .tokens_per_rank = {4, 3}}, options);
}

// The same with rows per rank.
std::string run_per_rank(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  RunOptions options = options_of(seed, protocol, kernels);
  options.row_layout = RowLayout::kPerRank;
  return run_two_steps(seed, {.n_experts = 4, .top_k = 3, .hidden = 16, .tokens_per_rank = {4, 3}}, options);
}

// Steps without a combine, in a graph that is replayed: nothing but their own signals keeps the choices of
// rank 0 from being kept anew while rank 1, which receives all rows, still reads them.
std::string run_replayed_per_rank(uint64_t seed, Protocol, const KernelTable& kernels) {
  constexpr int kNumTokens = 48, kTopK = 2, kHidden = 16, kNumReplays = 3;
  const auto world = must(World::create(
      {.target = TargetChoice::kHost, .n_ranks = 2, .host = weak_memory(seed, hooks_of(kernels))}));
  const auto ep = must(ExpertParallel::create(*world, {.n_experts = 4,
                                                       .top_k = kTopK,
                                                       .hidden = kHidden,
                                                       .max_tokens_per_rank = kNumTokens,
                                                       .n_sms = 1,
                                                       .num_threads = 32,
                                                       .protocol = Protocol::kDirect,
                                                       .row_layout = RowLayout::kPerRank}));
  const Rank &sender = world->rank(0), &receiver = world->rank(1);
  const auto tokens = must(sender.upload(std::vector<bf16>(kNumTokens * kHidden)));
  const auto weights = must(sender.upload(std::vector<float>(kNumTokens * kTopK, 1.0f)));
  // Of two steps that take turns: the experts of rank 1, in either order.
  std::vector<Buffer<int32_t>> ids, found;
  for (const int first : {2, 3}) {
    std::vector<int32_t> of_step;
    for (int i = 0; i < kNumTokens * kTopK; ++i) of_step.push_back(i % 2 == 0 ? first : 5 - first);
    ids.push_back(must(sender.upload(of_step)));
    found.push_back(must(receiver.allocate<int32_t>(kNumTokens * kTopK)));
  }
  const auto sizes = must(sender.allocate<uint32_t>(64)),
             received_sizes = must(receiver.allocate<uint32_t>(64));
  const auto experts = must(sender.allocate<int32_t>(4)),
             received_experts = must(receiver.allocate<int32_t>(4));
  const auto graph = must(world->capture([&]() -> Status {
    for (size_t step = 0; step < ids.size(); ++step) {
      SWITCHYARD_RETURN_IF_ERROR(ep->dispatch(0,
                                              {tokens.data(), ids[step].data(), kNumTokens, weights.data()},
                                              {.row_offsets = sizes.data(), .expert_ids = experts.data()}));
      SWITCHYARD_RETURN_IF_ERROR(ep->dispatch(1, {},
                                              {.row_offsets = received_sizes.data(),
                                               .expert_ids = received_experts.data(),
                                               .row_experts = found[step].data()}));
      for (int rank = 0; rank < 2; ++rank) SWITCHYARD_RETURN_IF_ERROR(ep->abandon_step(rank));
    }
    return Status();
  }));
  Status status;
  for (int i = 0; i < kNumReplays && status.ok(); ++i) status = graph->launch();
  if (status.ok()) status = ep->synchronize();
  if (!status.ok()) return status.to_string();
  for (size_t step = 0; step < ids.size(); ++step) {
    const std::vector<int32_t> sent = must(ids[step].download()), local = must(found[step].download());
    for (size_t i = 0; i < sent.size(); ++i)
      if (local[i] != sent[i] - 2)
        return "row_experts[" + std::to_string(i) + "] of step " + std::to_string(step) + " is " +
               std::to_string(local[i]) + ", expected " + std::to_string(sent[i] - 2);
  }
  return "";
}

// The same with rows that their receiver fills: six of a token on two ranks.
std::string run_received(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  RunOptions options = options_of(seed, protocol, kernels);
  options.row_delivery = RowDelivery::kReceiver;
  return run_two_steps(seed, {.n_experts = 6, .top_k = 6, .hidden = 16, .tokens_per_rank = {4, 3}}, options);
}

// The same with sums that the owner makes.
std::string run_reduced(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  RunOptions options = options_of(seed, protocol, kernels);
  options.row_delivery = seed % 2 == 0 ? RowDelivery::kSender : RowDelivery::kReceiver;
  options.reduce_at_owner = true;
  return run_two_steps(seed, {.n_experts = 6, .top_k = 6, .hidden = 16, .tokens_per_rank = {4, 3}}, options);
}

// The same where scales lie in between those of other rows, with a shared expert. Tokens may come encoded.
// Senders store the scales, or owners fetch them.
std::string run_interleaved(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  RunOptions options = options_of(seed, protocol, kernels);
  options.format = seed / 4 % 2 == 0 ? TokenFormatKind::kFP8 : TokenFormatKind::kNVFP4ByExpert;
  options.style.is_encoded = options.format == TokenFormatKind::kFP8 && seed % 2 == 1;
  options.shared_expert = SharedExpert::kFused;
  const Shape shape{.n_experts = 4,
                    .top_k = 3,
                    .hidden = info_of(options.format).hidden_multiple(),
                    .tokens_per_rank = {4, 3},
                    .max_tokens_per_rank = seed / 8 % 2 == 0 ? 4 : kMaxTokensOfFetchedScales};
  return run_two_steps(seed, shape, options);
}

// The same where such scales come once to each rank.
std::string run_interleaved_received(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  RunOptions options = options_of(seed, protocol, kernels);
  options.format = TokenFormatKind::kFP8;
  options.row_delivery = RowDelivery::kReceiver;
  options.shared_expert = SharedExpert::kFused;
  return run_two_steps(seed, {.n_experts = 6, .top_k = 6, .hidden = 128, .tokens_per_rank = {4, 3}}, options);
}

// The same with experts in odd places, some of them twice; and the rows of each expert are counted.
std::string run_placed(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  const Shape shape{.n_ranks = 3, .n_experts = 5, .top_k = 3, .hidden = 16, .tokens_per_rank = {2, 3, 4}};
  RunOptions options = options_of(seed, protocol, kernels);
  options.placement = must(ExpertPlacement::from_lists(5, {{4, 0}, {3, 1, 4}, {0, 2}}));
  options.counts_experts = true;
  EpHarness harness(shape, options);
  std::vector<int64_t> counts(5);
  for (uint64_t i = 0; i < 2; ++i) {
    const reference::Step step = as_run(make_padded_step(shape, seed * 2 + i), options);
    if (const std::string difference = harness.run_and_compare(step); !difference.empty()) return difference;
    for (const int id : step.topk_ids[1])
      if (id >= 0) ++counts[static_cast<size_t>(id)];
  }
  return must(harness.ep().expert_counts(1)) == counts ? "" : "the counts of rows per expert are wrong";
}

// A good step, a broken one with others behind it, which must name the bad id and do nothing else, and a good
// one after reset(). The broken step's messages for the last expert fill their slots to the end of the
// buffer.
std::string run_behind_a_broken_step(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  const Shape shape{.hidden = 16, .tokens_per_rank = {3, 3}};
  EpHarness harness(shape, options_of(seed, protocol, kernels));
  const auto run_good_step = [&](uint64_t step_seed) {
    return harness.run_and_compare(make_padded_step(shape, step_seed));
  };
  if (const std::string difference = run_good_step(seed * 2); !difference.empty()) return difference;
  reference::Step broken = make_step(shape, seed);
  std::fill(broken.topk_ids[1].begin(), broken.topk_ids[1].end(), shape.n_experts - 1);
  broken.topk_ids[1][0] = 99;
  Status status = harness.enqueue_steps(broken, 2);
  if (status.ok()) status = harness.ep().synchronize();
  if (status.code() != StatusCode::kInvalidArgument ||
      status.message().find("topk_ids of rank 1 holds 99") == std::string::npos)
    return status.to_string();
  if (const Status reset = harness.ep().reset(); !reset.ok()) return reset.to_string();
  return run_good_step(seed * 2 + 1);
}

// A good step, one that the last rank has no room for, with the same behind it, and a good one right after.
std::string run_over_capacity(uint64_t seed, Protocol protocol, const KernelTable& kernels,
                              RowDelivery row_delivery) {
  const Shape shape{.n_experts = 4, .top_k = 2, .hidden = 16, .tokens_per_rank = {3, 3}};
  RunOptions options = options_of(seed, protocol, kernels);
  options.row_delivery = row_delivery;
  options.capacity_factor = 10.5 / 6;  // 11 rows
  EpHarness harness(shape, options);
  reference::Step good = make_padded_step(shape, seed * 2), crowd = good;
  good.topk_ids = {{0, 3, 0, 3, 1, 2}, {2, 1, 3, 0, 3, 1}};
  for (auto& ids : crowd.topk_ids) std::fill(ids.begin(), ids.end(), shape.n_experts - 1);
  if (const std::string difference = harness.run_and_compare(good); !difference.empty()) return difference;
  Status status = ExpertParallelTestAccess::poison_receive_buffers(harness.ep(), 0xdd);
  if (status.ok()) status = harness.enqueue_steps(crowd, 2);
  if (status.ok()) status = harness.ep().synchronize();
  if (status.code() != StatusCode::kResourceExhausted)
    return "not said to be over capacity: " + status.to_string();
  if (!harness.outputs_are_untouched()) return "an output of a step that was skipped has been written";
  return harness.run_and_compare(good);
}
std::string run_over_capacity(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  return run_over_capacity(seed, protocol, kernels, RowDelivery::kSender);
}
std::string run_received_over_capacity(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  return run_over_capacity(seed, protocol, kernels, RowDelivery::kReceiver);
}

// A step that the last rank has no room for, and a combine of it, and another: neither may write anything.
std::string run_reopened_over_capacity(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  const Shape shape{.n_experts = 4, .top_k = 2, .hidden = 16, .tokens_per_rank = {3, 3}};
  RunOptions options = options_of(seed, protocol, kernels);
  options.capacity_factor = 10.5 / 6;  // 11 rows
  EpHarness harness(shape, options);
  reference::Step crowd = make_padded_step(shape, seed);
  for (auto& ids : crowd.topk_ids) std::fill(ids.begin(), ids.end(), shape.n_experts - 1);
  Status status = harness.enqueue_steps(crowd, 1);
  for (int rank = 0; rank < shape.n_ranks && status.ok(); ++rank) status = harness.ep().reopen_step(rank);
  if (status.ok()) status = harness.enqueue_combine(crowd);
  if (status.ok()) status = harness.ep().synchronize();
  if (status.code() != StatusCode::kResourceExhausted)
    return "not said to be over capacity: " + status.to_string();
  return harness.outputs_are_untouched() ? "" : "an output of a step that was skipped has been written";
}

// Rows in the caller's memory, which are overwritten behind a combine that awaits their readers.
std::string run_lent(uint64_t seed, Protocol, const KernelTable& kernels) {
  constexpr int kManyTokens = 24;  // so that other ranks still read when rank 0, which has none, has ended
  ManySteps many(RowLayout::kMasked, TargetChoice::kHost, 1, weak_memory(seed, hooks_of(kernels)),
                 {.n_ranks = 2, .num_tokens = kManyTokens});
  return run_awaited_readers(many, overwriting_kernel(many));
}

// All-reduces in a row behind a step: each makes four of what the first one has left on all ranks.
std::string run_all_reduces(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  constexpr int kNumTokens = 24, kHidden = 16, kNumReductions = 12;
  const Shape shape{.n_ranks = 4,
                    .n_experts = 4,
                    .top_k = 2,
                    .hidden = kHidden,
                    .tokens_per_rank = std::vector<int>(4, kNumTokens)};
  RunOptions options = options_of(seed, protocol, kernels);
  options.routing = Routing::kSkipAllToAll;
  EpHarness harness(shape, options);
  const std::string difference = harness.run_and_compare(as_run(make_step(shape, seed), options));
  if (!difference.empty()) return difference;
  std::vector<Buffer<bf16>> values;
  for (int rank = 0; rank < shape.n_ranks; ++rank)
    values.push_back(must(harness.world().rank(rank).upload(
        std::vector<bf16>(kNumTokens * kHidden, to_bf16(static_cast<float>(rank + 1))))));
  Status status;
  for (int i = 0; i < kNumReductions; ++i)
    for (int rank = 0; rank < shape.n_ranks && status.ok(); ++rank)
      status = harness.ep().all_reduce(rank, values[static_cast<size_t>(rank)].data(), kNumTokens);
  if (status.ok()) status = harness.ep().synchronize();
  if (!status.ok()) return status.to_string();
  const float expected = std::ldexp(1 + 2 + 3 + 4, 2 * (kNumReductions - 1));
  for (const Buffer<bf16>& of_rank : values)
    for (const bf16 value : must(of_rank.download()))
      if (to_float(value) != expected)
        return "a sum is " + std::to_string(to_float(value)) + " instead of " + std::to_string(expected);
  return "";
}

// The first step breaks, so that nothing a combine_wait waits for has ever come: it must write nothing.
std::string run_broken_from_the_start(uint64_t seed, Protocol protocol, const KernelTable& kernels) {
  const Shape shape{.hidden = 16, .tokens_per_rank = {3, 3}};
  EpHarness harness(shape, options_of(seed, protocol, kernels));
  reference::Step broken = make_step(shape, seed);
  broken.topk_ids[1][0] = 99;
  Status status = harness.enqueue_steps(broken, 2);
  if (status.ok()) status = harness.ep().synchronize();
  if (status.code() != StatusCode::kInvalidArgument) return status.to_string();
  return harness.outputs_are_untouched() ? "" : "an output of a step that broke has been written";
}

struct NamedMutant {
  const char* name;
  Protocol protocol;
  const KernelTable& kernels;
  Check check;
};

#define SWITCHYARD_MUTANT(name, check) \
  { #name, Protocol::kSlotted, kMutantSlotted < LogicMutant::k##name>, check }
#define SWITCHYARD_DIRECT_MUTANT(name, check) \
  { #name, Protocol::kDirect, kMutantDirect < LogicMutant::k##name>, check }
#define SWITCHYARD_INTERLEAVED_MUTANT(name) \
  { #name, Protocol::kDirect, kMutantInterleaved < LogicMutant::k##name>, run_interleaved }
const NamedMutant kMutants[] = {
    SWITCHYARD_MUTANT(SlotOffByOne, run_steps),
    SWITCHYARD_MUTANT(PaddingDispatched, run_steps),
    SWITCHYARD_MUTANT(RepeatsSentEach, run_steps),
    SWITCHYARD_MUTANT(StageNotWaitedFor, run_steps),
    SWITCHYARD_MUTANT(SignalsBeforeFinished, run_steps),
    SWITCHYARD_MUTANT(ReservedNotPutBack, run_steps),
    SWITCHYARD_MUTANT(FinishedNotPutBack, run_steps),
    SWITCHYARD_MUTANT(DispatchIgnoresPoison, run_behind_a_broken_step),
    SWITCHYARD_MUTANT(ReceiveSlotOffByOne, run_steps),
    SWITCHYARD_MUTANT(RowsWithoutRankOffset, run_steps),
    SWITCHYARD_MUTANT(CellsResetTooEarly, run_steps),
    SWITCHYARD_MUTANT(CounterOverlaps, run_steps),
    SWITCHYARD_MUTANT(FirstBlockSignals, run_steps),
    SWITCHYARD_MUTANT(ExtraRowsNotPutBack, run_steps),
    SWITCHYARD_MUTANT(CombineIgnoresPoison, run_behind_a_broken_step),
    SWITCHYARD_MUTANT(PaddingCombined, run_steps),
    SWITCHYARD_MUTANT(WeightsReversed, run_steps),
    SWITCHYARD_MUTANT(CombineCellsResetTooEarly, run_steps),
    SWITCHYARD_MUTANT(SuccessorAdmittedAtOnce, run_steps),
    SWITCHYARD_DIRECT_MUTANT(SuccessorAdmittedAtOnce, run_steps),
    SWITCHYARD_DIRECT_MUTANT(AssignedWithoutRanksBefore, run_steps),
    SWITCHYARD_DIRECT_MUTANT(AssignedWithoutBlocksBefore, run_steps),
    SWITCHYARD_DIRECT_MUTANT(CountsNotAwaited, run_steps),
    SWITCHYARD_DIRECT_MUTANT(CapacityOffByOne, run_over_capacity),
    SWITCHYARD_DIRECT_MUTANT(CapacityOfOwnRankOnly, run_over_capacity),
    SWITCHYARD_DIRECT_MUTANT(DirectStageNotWaitedFor, run_steps),
    SWITCHYARD_DIRECT_MUTANT(LoadsNotDrained, run_over_capacity),
    SWITCHYARD_DIRECT_MUTANT(FirstBlockReady, run_steps),
    SWITCHYARD_DIRECT_MUTANT(RowsNotAwaited, run_steps),
    SWITCHYARD_DIRECT_MUTANT(StepNotCounted, run_steps),
    SWITCHYARD_DIRECT_MUTANT(SkippedStepCombined, run_over_capacity),
    SWITCHYARD_DIRECT_MUTANT(OutputNotAwaited, run_steps),
    SWITCHYARD_DIRECT_MUTANT(PaddingPulled, run_steps),
    SWITCHYARD_DIRECT_MUTANT(CombineWaitIgnoresPoison, run_broken_from_the_start),
    SWITCHYARD_INTERLEAVED_MUTANT(ScaleSourceOffByOne),
    SWITCHYARD_INTERLEAVED_MUTANT(SharedScalesNotTold),
    SWITCHYARD_INTERLEAVED_MUTANT(LastScaleBandForgotten),
    SWITCHYARD_INTERLEAVED_MUTANT(StepCountedByFirstBlock),
    SWITCHYARD_INTERLEAVED_MUTANT(ScalesBehindSignal),
    SWITCHYARD_INTERLEAVED_MUTANT(InputScalesOfFirstToken),
    {"ScalesOfOwnRow", Protocol::kDirect, kScalesOfOwnRow, run_interleaved_received},
    SWITCHYARD_MUTANT(MaskedGroupsPacked, run_masked),
    SWITCHYARD_DIRECT_MUTANT(MaskedGroupsPacked, run_masked),
    SWITCHYARD_MUTANT(RowCountOfOneRank, run_masked),
    SWITCHYARD_DIRECT_MUTANT(RowCountOfOneRank, run_masked),
    SWITCHYARD_DIRECT_MUTANT(RanksNotDistinct, run_per_rank),
    SWITCHYARD_DIRECT_MUTANT(ChoicesOfRankZero, run_per_rank),
    SWITCHYARD_DIRECT_MUTANT(ChoicesOfOtherRanks, run_per_rank),
    SWITCHYARD_DIRECT_MUTANT(ChoicesKeptOnce, run_replayed_per_rank),
    SWITCHYARD_DIRECT_MUTANT(SiblingNotLinked, run_received),
    SWITCHYARD_DIRECT_MUTANT(LinksNotStored, run_received),
    SWITCHYARD_DIRECT_MUTANT(LinkedToItself, run_received),
    SWITCHYARD_DIRECT_MUTANT(LinkOfNextRow, run_received),
    SWITCHYARD_DIRECT_MUTANT(LastSiblingNotFilled, run_received),
    SWITCHYARD_DIRECT_MUTANT(OwnRowsNotCarried, run_received),
    SWITCHYARD_DIRECT_MUTANT(SkippedStepFilled, run_received_over_capacity),
    SWITCHYARD_DIRECT_MUTANT(RowWeightsNotStored, run_reduced),
    SWITCHYARD_DIRECT_MUTANT(SiblingAddedTwice, run_reduced),
    SWITCHYARD_DIRECT_MUTANT(SiblingLeftOut, run_reduced),
    SWITCHYARD_DIRECT_MUTANT(SumsOfOwnRankOnly, run_reduced),
    SWITCHYARD_DIRECT_MUTANT(SiblingsAddedAgain, run_reduced),
    SWITCHYARD_DIRECT_MUTANT(SumWeightedAgain, run_reduced),
    SWITCHYARD_DIRECT_MUTANT(OwnSiblingsLeftOut, run_reduced),
    SWITCHYARD_DIRECT_MUTANT(SkipForgotten, run_reopened_over_capacity),
    SWITCHYARD_DIRECT_MUTANT(FirstBlockHasRead, run_lent),
    SWITCHYARD_DIRECT_MUTANT(ReadersNotAwaited, run_lent),
    SWITCHYARD_MUTANT(NextSeat, run_placed),
    SWITCHYARD_DIRECT_MUTANT(NextSeat, run_placed),
    SWITCHYARD_DIRECT_MUTANT(CombineIgnoresSeats, run_placed),
    SWITCHYARD_MUTANT(ExpertCountsOfOneStep, run_placed),
    SWITCHYARD_DIRECT_MUTANT(ExpertCountsOfOneStep, run_placed),
    SWITCHYARD_MUTANT(OneBuffer, run_all_reduces),
};
#undef SWITCHYARD_MUTANT
#undef SWITCHYARD_DIRECT_MUTANT
#undef SWITCHYARD_INTERLEAVED_MUTANT

class LogicMutants : public testing::TestWithParam<NamedMutant> {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a mutant may leave its memory, and only the weak memory stops it: not in this build";
#endif
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, LogicMutants, testing::ValuesIn(kMutants), [](const auto& info) {
  return info.param.name + testing_support::protocol_name(info.param.protocol);
});

// On every seed that is tried the real kernels pass the same check.
TEST_P(LogicMutants, IsCaught) {
  constexpr uint64_t kMaxSeeds = 40;
  for (uint64_t seed = 0; seed < kMaxSeeds; ++seed) {
    ASSERT_EQ(GetParam().check(seed, GetParam().protocol, kernel_table(Target::kHost)), "")
        << "seed " << seed;
    const std::string difference = GetParam().check(seed, GetParam().protocol, GetParam().kernels);
    if (difference.empty()) continue;
    std::cout << "seed " << seed << ": " << difference << "\n";
    return;
  }
  FAIL() << "none of " << kMaxSeeds << " seeds shows it";
}

// Neither the checks nor kernels being a test's own are what catches the mutants.
struct NoMutantShape {
  static constexpr EpShape kShape{};
};
constexpr KernelTable kNoMutantKernels = make_kernel_table<NoMutantShape, NoMutantShape>();
constexpr KernelTable kNoMutantInterleaved = make_interleaved_table<NoMutantShape>();

TEST(LogicMutantChecks, PassWithATestsOwnKernelsThatAreNoMutant) {
  for (uint64_t seed = 0; seed < 40; ++seed)
    for (const Check check : {run_steps, run_masked, run_placed, run_behind_a_broken_step})
      for (const Protocol protocol : {Protocol::kSlotted, Protocol::kDirect})
        ASSERT_EQ(check(seed, protocol, kNoMutantKernels), "")
            << "seed " << seed << ", " << to_string(protocol);
  for (uint64_t seed = 0; seed < 40; ++seed)
    ASSERT_EQ(run_interleaved(seed, Protocol::kDirect, kNoMutantInterleaved), "") << "seed " << seed;
}

// A world has the library's kernels unless it is given others, and those are no mutants.
template <typename Fixed>
concept SaysMutant = requires {
  Fixed::kMutant;
};
static_assert(!SaysMutant<RunTimeShape> && SaysMutant<MutantShape<LogicMutant::kSlotOffByOne>>);

TEST(LogicMutantChecks, RunMutantsOnlyInWorldsThatAreGivenThem) {
  EXPECT_EQ(&kernel_table(must(World::create({.target = TargetChoice::kHost}))->rank(0)),
            &kernel_table(Target::kHost));
  EXPECT_EQ(&kernel_table(must(World::create({.target = TargetChoice::kHost,
                                              .host = {.hooks = hooks_of(kNoMutantKernels)}}))
                              ->rank(0)),
            &kNoMutantKernels);
}

}  // namespace
}  // namespace switchyard
