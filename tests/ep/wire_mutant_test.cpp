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

// Whose steps run: of one protocol, in one format; of the direct one, who writes and who adds up the rows of
// a token that has several on a rank.
struct StepKind {
  Protocol protocol = Protocol::kDirect;
  TokenFormatKind format = TokenFormatKind::kBF16;
  RowDelivery row_delivery = RowDelivery::kSender;
  bool reduce_at_owner = false;
};

// What a seed runs: 2 or 4 ranks in groups, one block or two, split or fused, step by step or back to back.
std::string run_steps(uint64_t seed, const StepKind& kind, const TestHooks& hooks) {
  const bool two_ranks = seed % 3 != 2;
  const Shape shape{.n_ranks = two_ranks ? 2 : 4,
                    .n_experts = two_ranks ? 4 : 8,
                    .top_k = 2,
                    .hidden = kind.format == TokenFormatKind::kFP8 ? 128 : 16,
                    .tokens_per_rank = two_ranks ? std::vector{4, 3} : std::vector{2, 3, 1, 3}};
  RunOptions run = weak_run(seed, kind.protocol, &hooks);
  run.format = kind.format;
  if (seed % 5 == 4) run.n_sms = 1;  // whose carrier fills its stages again
  run.row_delivery = kind.row_delivery;
  run.reduce_at_owner = kind.reduce_at_owner;
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

// The library's kernels, but for the direct dispatch of one format. Its tensor of scales interleaves rows.
template <FixedShape Fixed>
const DispatchKernels* fp8_dispatch(TokenFormatKind format) {
  return format == TokenFormatKind::kFP8 ? &kDispatchKernels<Direct, Fixed, BlockwiseFP8TokenFormat<e4m3>>
                                         : nullptr;
}
template <FixedShape Fixed>
const KernelTable& with_dispatch_of() {
  static const KernelTable table = [] {
    KernelTable copy = kernel_table(Target::kHost);
    copy.wired.direct.dispatch = &fp8_dispatch<Fixed>;
    copy.wired.direct.linked_dispatch = &fp8_dispatch<Linked<Fixed>>;
    return copy;
  }();
  return table;
}

struct NamedMutant {
  std::string name;
  StepKind kind;
  TestHooks hooks;
  // Values may come out right all the same; what shows is that a store may overtake what came before it.
  bool shows_by_overtaking = false;
};

NamedMutant slotted(const char* name, const OrderMutant& mutant) {
  return {name, {.protocol = Protocol::kSlotted}, {.mutant = mutant}};
}
NamedMutant direct(const char* name, const OrderMutant& mutant, bool shows_by_overtaking = false) {
  return {name, {}, {.mutant = mutant}, shows_by_overtaking};
}
// The same where a token comes once to each rank, as it does over a wire unless the sender is asked for.
NamedMutant with_filled_rows(NamedMutant mutant) {
  mutant.name += "WhereTheReceiverFillsRows";
  mutant.kind.row_delivery = RowDelivery::kReceiver;
  return mutant;
}
template <LogicMutant kOne>
NamedMutant logic(const char* name, bool reduce_at_owner = false) {
  return {name,
          {.format = TokenFormatKind::kFP8, .reduce_at_owner = reduce_at_owner},
          {.kernels = &with_dispatch_of<MutantShape<kOne>>()}};
}

// A relaxed settle does nothing; one of block scope settles what its own block has put. A signal that is a
// mutant arrives before what was settled, as if it had been sent before the puts.
std::vector<NamedMutant> order_mutants() {
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
  };
}

std::vector<NamedMutant> mutants() {
  std::vector<NamedMutant> all = order_mutants();
  for (const NamedMutant& mutant : order_mutants())
    if (mutant.kind.protocol == Protocol::kDirect) all.push_back(with_filled_rows(mutant));
  const NamedMutant without_scales = logic<LogicMutant::kFarScalesNotPut>("FarScalesNotPut"),
                    overwritten = logic<LogicMutant::kKeptRowOverwritten>("KeptRowOverwritten");
  all.insert(all.end(),
             {without_scales, with_filled_rows(without_scales), overwritten, with_filled_rows(overwritten),
              with_filled_rows(logic<LogicMutant::kFarLinksNotPut>("FarLinksNotPut")),
              logic<LogicMutant::kFarWeightsNotPut>("FarWeightsNotPut", true),
              with_filled_rows(logic<LogicMutant::kFarWeightsNotPut>("FarWeightsNotPut", true))});
  return all;
}

class WireProtocolMutants : public WireProtocol, public testing::WithParamInterface<NamedMutant> {};

INSTANTIATE_TEST_SUITE_P(Wire, WireProtocolMutants, testing::ValuesIn(mutants()),
                         [](const auto& info) { return info.param.name; });

TEST_P(WireProtocolMutants, IsCaught) {
  TestHooks hooks = GetParam().hooks;
  if (hooks.mutant) hooks.mutant->stops_at_overtaking = GetParam().shows_by_overtaking;
  expect_caught([&](uint64_t seed) { return run_steps(seed, GetParam().kind, hooks); });
}

// What catches the mutants passes without one, and with kernels that are a test's own.
TEST_F(WireProtocol, IsRightForEverySeed) {
  constexpr RowDelivery kReceiver = RowDelivery::kReceiver;
  const StepKind kinds[] = {{.protocol = Protocol::kSlotted}, {}, {.row_delivery = kReceiver}};
  const TestHooks own_kernels{.kernels = &with_dispatch_of<NoMutantShape>()};
  constexpr TokenFormatKind kFP8 = TokenFormatKind::kFP8;
  const StepKind kinds_of_own[] = {{.format = kFP8},
                                   {.format = kFP8, .row_delivery = kReceiver},
                                   {.format = kFP8, .reduce_at_owner = true},
                                   {.format = kFP8, .row_delivery = kReceiver, .reduce_at_owner = true}};
  const auto check = [](uint64_t seed, const StepKind& kind, const TestHooks& hooks) {
    ASSERT_EQ(run_steps(seed, kind, hooks), "")
        << "seed " << seed << ", " << to_string(kind.protocol) << ", rows of the "
        << to_string(kind.row_delivery) << (kind.reduce_at_owner ? ", reduced at the owner" : "");
  };
  for (uint64_t seed = 0; seed < 100 && !HasFatalFailure(); ++seed) {
    for (const StepKind& kind : kinds) check(seed, kind, {});
    for (const StepKind& kind : kinds_of_own) check(seed, kind, own_kernels);
  }
}

}  // namespace
}  // namespace switchyard
