// Mutants of what the protocols do over a wire: an order that is missing, or a line of a kernel gone wrong.
// The steps that the real kernels pass in weak memory must catch each.
#include <map>

#include "emulator/weak_memory_fixture.hpp"
#include "ep_harness.hpp"
#include "launch/make_kernel_table.hpp"
#include "switchyard/detail/format/all_formats.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

class WireProtocol : public WeakMemoryTest {};

// What a seed runs: 2 or 4 ranks in groups, one block or two, split or fused, step by step or back to back.
std::string run_steps(uint64_t seed, Protocol protocol, TokenFormatKind format, const TestHooks& hooks) {
  const bool two_ranks = seed % 3 != 2;
  const Shape shape{.n_ranks = two_ranks ? 2 : 4,
                    .n_experts = two_ranks ? 4 : 8,
                    .top_k = 2,
                    .hidden = format == TokenFormatKind::kFP8 ? 128 : 16,
                    .tokens_per_rank = two_ranks ? std::vector{4, 3} : std::vector{2, 3, 1, 3}};
  RunOptions run = weak_run(seed, protocol, &hooks);
  run.format = format;
  if (seed % 5 == 4) run.n_sms = 1;  // whose carrier fills its stages again
  run.row_delivery = RowDelivery::kSender;
  run.p2p_world_size = two_ranks || seed % 2 == 0 ? 1 : 2;
  return EpHarness(shape, run)
      .run_steps({as_run(make_step(shape, seed * 2), run), as_run(make_step(shape, seed * 2 + 1), run)},
                 seed / 2 % 2 == 0);
}

template <LogicMutant kOne>
struct MutantShape {
  static constexpr EpShape kShape{};
  static constexpr bool kHasWire = true;
  static constexpr LogicMutant kMutant = kOne;
};
struct NoMutantShape {
  static constexpr EpShape kShape{};
  static constexpr bool kHasWire = true;
};

// The library's kernels, but for the dispatch of one format. Its tensor of scales interleaves rows.
template <FixedShape Fixed>
const KernelTable& with_dispatch_of() {
  static const KernelTable table = [] {
    KernelTable copy = kernel_table(Target::kHost);
    copy.wired.direct.dispatch = [](TokenFormatKind format) -> const DispatchKernels* {
      return format == TokenFormatKind::kFP8 ? &kDispatchKernels<Direct, Fixed, BlockwiseFP8TokenFormat<e4m3>>
                                             : nullptr;
    };
    return copy;
  }();
  return table;
}

struct NamedMutant {
  const char* name;
  Protocol protocol;
  TestHooks hooks;
  TokenFormatKind format = TokenFormatKind::kBF16;
  // Values may come out right all the same; what shows is that a store may overtake what came before it.
  bool shows_by_overtaking = false;
};

NamedMutant slotted(const char* name, const OrderMutant& mutant) {
  return {name, Protocol::kSlotted, {.mutant = mutant}};
}
NamedMutant direct(const char* name, const OrderMutant& mutant, bool shows_by_overtaking = false) {
  return {name, Protocol::kDirect, {.mutant = mutant}, TokenFormatKind::kBF16, shows_by_overtaking};
}
template <LogicMutant kOne>
NamedMutant logic(const char* name) {
  return {
      name, Protocol::kDirect, {.kernels = &with_dispatch_of<MutantShape<kOne>>()}, TokenFormatKind::kFP8};
}

// A relaxed settle does nothing; one of block scope settles what its own block has put. A signal that is a
// mutant arrives before what was settled, as if it had been sent before the puts.
std::vector<NamedMutant> mutants() {
  constexpr WordKind kSettle = WordKind::kWireSettle, kSignal = WordKind::kWireSignal;
  constexpr Order kRelaxed = Order::kRelaxed;
  return {
      slotted("MessagesAreNotSettled", {"SlottedDispatchAsync*::send(", kSettle}),
      slotted("TheExpertsSignalOvertakesMessages", {"SlottedDispatchAsync*::watch(", kSignal}),
      slotted("ExpertRowsAreNotSettled", {"SlottedCombineAsync*::run(", kSettle}),
      slotted("TheSignalBackOvertakesExpertRows", {"SlottedCombineAsync*::signal(", kSignal}),
      direct("MM28CountsAreNotSettled", {"FarCounts*::send(", kSettle}),
      direct("MM28TheSignalOvertakesCounts", {"FarCounts*::send", kSignal}),
      direct("MM28CountsAreNotAcquired", {"FarCounts*::await(", WordKind::kLoad, kRelaxed}),
      direct("RowsAndSourcesAreNotSettled", {"FarRows*::put_sources(", kSettle}),
      direct("RowsOfOtherBlocksAreNotSettled",
             {"FarRows*::put_sources(", kSettle, Order::kRelease, Scope::kBlock}),
      direct("TheSignalOvertakesRows", {"DirectDispatchAsync*::finish(", kSignal}),
      direct("AStageIsFilledAgainUnfenced", {"FarRows*::put(", WordKind::kProxyFence}, true),
      direct("PushedRowsAreNotSettled", {"PushedRows*::put(", kSettle}),
      direct("TheSignalOvertakesPushedRows", {"DirectCombineAsync*::run(", kSignal}),
      direct("MM29ElectionIsRelaxed", {"PushedRows*::put(", WordKind::kAdd, kRelaxed}),
      direct("MM29ElectionDoesNotAcquire", {"PushedRows*::put(", WordKind::kAdd, Order::kRelease}),
      direct("MM29ElectionDoesNotRelease", {"PushedRows*::put(", WordKind::kAdd, Order::kAcquire}),
      logic<LogicMutant::kFarScalesNotPut>("FarScalesNotPut"),
      logic<LogicMutant::kKeptRowOverwritten>("KeptRowOverwritten"),
  };
}

class WireProtocolMutants : public WireProtocol, public testing::WithParamInterface<NamedMutant> {};

INSTANTIATE_TEST_SUITE_P(Wire, WireProtocolMutants, testing::ValuesIn(mutants()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(WireProtocolMutants, IsCaught) {
  TestHooks hooks = GetParam().hooks;
  if (hooks.mutant) hooks.mutant->stops_at_overtaking = GetParam().shows_by_overtaking;
  expect_caught(
      [&](uint64_t seed) { return run_steps(seed, GetParam().protocol, GetParam().format, hooks); });
}

// What catches the mutants passes without one, and with kernels that are a test's own.
TEST_F(WireProtocol, IsRightForEverySeed) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (const Protocol protocol : {Protocol::kSlotted, Protocol::kDirect})
      ASSERT_EQ(run_steps(seed, protocol, TokenFormatKind::kBF16, {}), "")
          << "seed " << seed << ", " << to_string(protocol);
    const TestHooks own_kernels{.kernels = &with_dispatch_of<NoMutantShape>()};
    ASSERT_EQ(run_steps(seed, Protocol::kDirect, TokenFormatKind::kFP8, own_kernels), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace switchyard
