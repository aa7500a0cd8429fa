// The expert-parallel protocols in weak memory, and a mutant for every release and acquire of
// docs/memory-model.md, each of which must be caught.
#include "ep/awaited_readers.hpp"
#include "ep/ep_harness.hpp"
#include "reference/attention_case.hpp"
#include "sweep.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/detail/sync/wait.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"
#include "weak_memory_fixture.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

class WeakMemoryProtocol : public WeakMemoryTest {};

constexpr uint64_t kNumSeeds = 200;
constexpr uint64_t kOverwrittenWord = uint64_t{kOverwritten} << 32 | kOverwritten;

std::vector<reference::Step> two_steps(const Shape& shape, const RunOptions& run, uint64_t seed) {
  return {as_run(make_step(shape, seed * 2), run), as_run(make_step(shape, seed * 2 + 1), run)};
}

// What a seed runs: 2 or 3 ranks, split or fused, step by step or back to back.
template <Protocol kProtocol, bool kExpertsInPlace>
std::string run_protocol(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const TestHooks hooks{.mutant = mutant};
  const bool two_ranks = seed % 3 != 2;
  // A large hidden size gives every block something to do in combine_wait.
  Shape shape{.n_ranks = two_ranks ? 2 : 3,
              .n_experts = two_ranks ? 4 : 6,
              .top_k = 2,
              .hidden = seed % 4 == 1 ? 256 : 16,
              .tokens_per_rank = two_ranks ? std::vector{3, 2} : std::vector{2, 3, 1}};
  RunOptions run = weak_run(seed, kProtocol, &hooks);
  if (seed % 5 == 4) run.num_threads = 64;
  run.experts_in_place = kExpertsInPlace;
  return EpHarness(shape, run).run_steps(two_steps(shape, run, seed), seed / 2 % 2 == 0);
}

constexpr auto run_slotted = run_protocol<Protocol::kSlotted, false>;
constexpr auto run_direct = run_protocol<Protocol::kDirect, false>;
// Peers read the very rows that the next step writes over.
constexpr auto run_direct_in_place = run_protocol<Protocol::kDirect, true>;

TEST_F(WeakMemoryProtocol, SlottedIsRightForEverySeed) {
  for (uint64_t seed = 0; seed < seeds(400); ++seed)
    ASSERT_EQ(run_slotted(seed, std::nullopt), "") << "seed " << seed;
}

TEST_F(WeakMemoryProtocol, DirectIsRightForEverySeed) {
  for (uint64_t seed = 0; seed < seeds(400); ++seed)
    ASSERT_EQ((seed % 2 == 0 ? run_direct : run_direct_in_place)(seed / 2, std::nullopt), "")
        << "seed " << seed;
}

// Tokens that are encoded, with scales that lie by row or in between those of other rows. Senders store the
// latter, or owners fetch them.
std::string run_encoded(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const TestHooks hooks{.mutant = mutant};
  constexpr TokenFormatKind kFormats[] = {TokenFormatKind::kMXFP8, TokenFormatKind::kFP8,
                                          TokenFormatKind::kNVFP4ByExpert, TokenFormatKind::kFP8UE8M0};
  const TokenFormatKind format = kFormats[seed / 2 % 4];
  const Shape shape{.hidden = info_of(format).hidden_multiple(),
                    .tokens_per_rank = {3, 2},
                    .max_tokens_per_rank = seed / 8 % 2 == 0 ? 3 : kMaxTokensOfFetchedScales};
  RunOptions run = weak_run(seed, Protocol::kDirect, &hooks);
  run.num_threads = 64;
  run.format = format;
  return EpHarness(shape, run).run_back_to_back(two_steps(shape, run, seed));
}

TEST_F(WeakMemoryProtocol, DirectWithEncodedTokensIsRightForEverySeed) {
  for (uint64_t seed = 0; seed < seeds(100); ++seed)
    ASSERT_EQ(run_encoded(seed, std::nullopt), "") << "seed " << seed;
}

// Rows per rank: fetch_choices reads what the ranks have kept.
std::string run_per_rank(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const TestHooks hooks{.mutant = mutant};
  const Shape shape{.n_experts = 6, .top_k = 3, .hidden = 16, .tokens_per_rank = {2, 1}};
  RunOptions run = weak_run(seed, Protocol::kDirect, &hooks);
  run.row_layout = RowLayout::kPerRank;
  return EpHarness(shape, run).run_steps(two_steps(shape, run, seed), seed / 2 % 2 == 0);
}
// Only what is wrong with the choices themselves: values that are stale behind rows that are right, or a
// store of choose_ranks that may overtake the loads of the step before.
std::string run_choices(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const std::string difference = run_per_rank(seed, mutant);
  for (const char* part : {"row_experts is", "row_weights is", "choose_ranks,"})
    if (difference.find(part) != std::string::npos) return difference;
  return "";
}

TEST_F(WeakMemoryProtocol, RowsPerRankAreRightForEverySeed) {
  for (uint64_t seed = 0; seed < seeds(60); ++seed)
    ASSERT_EQ(run_per_rank(seed, std::nullopt), "") << "seed " << seed;
}

// Experts enough for one block to place more bands of scales than it has room for at once.
std::string run_many_scales(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const TestHooks hooks{.mutant = mutant};
  const TokenFormatKind format = seed / 2 % 2 == 0 ? TokenFormatKind::kFP8 : TokenFormatKind::kNVFP4ByExpert;
  const Shape shape{.n_experts = 24,
                    .hidden = info_of(format).hidden_multiple(),
                    .tokens_per_rank = {12, 12},
                    .max_tokens_per_rank = kMaxTokensOfFetchedScales};
  RunOptions run = weak_run(seed, Protocol::kDirect, &hooks);
  run.n_sms = 1;
  run.num_threads = 64;
  run.format = format;
  return EpHarness(shape, run).run_back_to_back({as_run(make_step(shape, seed), run)});
}

TEST_F(WeakMemoryProtocol, DirectWithManyScalesIsRightForEverySeed) {
  for (uint64_t seed = 0; seed < 20; ++seed)
    ASSERT_EQ(run_many_scales(seed, std::nullopt), "") << "seed " << seed;
}

// Expert outputs in fp8, which combine_wait reads by bulk copies.
std::string run_fp8_combine(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const TestHooks hooks{.mutant = mutant};
  const Shape shape{.top_k = 3, .hidden = 128, .tokens_per_rank = {3, 4}};
  RunOptions run = weak_run(seed, seed / 2 % 2 == 0 ? Protocol::kSlotted : Protocol::kDirect, &hooks);
  run.combine_format = CombineFormat::kFP8;
  return EpHarness(shape, run).run_back_to_back(two_steps(shape, run, seed));
}

TEST_F(WeakMemoryProtocol, CombineOfFp8IsRightForEverySeed) {
  for (uint64_t seed = 0; seed < seeds(100); ++seed)
    ASSERT_EQ(run_fp8_combine(seed, std::nullopt), "") << "seed " << seed;
}

std::string run_case(uint64_t seed, const std::optional<OrderMutant>& mutant,
                     const reference::AttentionCase& attention_case) {
  const TestHooks hooks{.mutant = mutant};
  const auto world = must(World::create({.target = TargetChoice::kHost, .host = weak_memory(seed, &hooks)}));
  const auto harness = must(reference::AttentionHarness::create(world->rank(0), attention_case));
  if (const Status status = harness->launch(); !status.ok()) return status.to_string();
  const auto difference = harness->compare();
  return difference.ok() ? difference.value().first_bad : difference.status().to_string();
}

// Attention over a sequence that ends within a block of keys, whose other keys, a neighbour's, are NaN.
std::string run_attention(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  return run_case(seed, mutant,
                  {.query_lens = {17, 17},
                   .key_lens = {40, 60},
                   .num_heads = 1,
                   .head_dim = 64,
                   .num_blocks = 1,
                   .sequence_of_nans = 1});
}

TEST_F(WeakMemoryProtocol, AttentionIsRightForEverySeed) {
  for (uint64_t seed = 0; seed < 20; ++seed)
    ASSERT_EQ(run_attention(seed, std::nullopt), "") << "seed " << seed;
}

// Decoding over keys that two blocks share: whoever is last combines what both have found.
std::string run_decoding(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  return run_case(seed, mutant,
                  {.query_lens = {1}, .key_lens = {520}, .num_heads = 1, .head_dim = 64, .num_blocks = 2});
}

// More key blocks than there are stages.
std::string run_fp8_decoding(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  return run_case(seed, mutant,
                  {.query_lens = {1},
                   .key_lens = {900},
                   .num_heads = 1,
                   .head_dim = 64,
                   .kv_format = KvFormat::kFP8,
                   .num_blocks = 1});
}

// The same with latents, and with a neighbour of NaN.
std::string run_latents(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  reference::AttentionCase attention_case{
      .query_lens = {1}, .key_lens = {520}, .num_heads = 1, .num_blocks = 2};
  reference::make_latent(attention_case);
  return run_case(seed, mutant, attention_case);
}
std::string run_latents_beside_nans(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  reference::AttentionCase attention_case{
      .query_lens = {1, 1}, .key_lens = {40, 60}, .num_heads = 1, .num_blocks = 1, .sequence_of_nans = 1};
  reference::make_latent(attention_case);
  return run_case(seed, mutant, attention_case);
}

TEST_F(WeakMemoryProtocol, LatentAttentionAndFp8AreRightForEverySeed) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    ASSERT_EQ(run_fp8_decoding(seed, std::nullopt), "") << "seed " << seed;
    ASSERT_EQ(run_latents(seed, std::nullopt), "") << "seed " << seed;
    ASSERT_EQ(run_latents_beside_nans(seed, std::nullopt), "") << "seed " << seed;
  }
}

TEST_F(WeakMemoryProtocol, DecodingIsRightForEverySeed) {
  for (uint64_t seed = 0; seed < 20; ++seed)
    ASSERT_EQ(run_decoding(seed, std::nullopt), "") << "seed " << seed;
}

// Steps that an all-reduce completes. The third one writes where the first one's values were.
std::string run_all_reduce(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const TestHooks hooks{.mutant = mutant};
  const int n_ranks = seed % 3 != 2 ? 2 : 3;
  const Shape shape{.n_ranks = n_ranks,
                    .n_experts = 2 * n_ranks,
                    .hidden = 256,  // every block has some of it
                    .tokens_per_rank = std::vector<int>(static_cast<size_t>(n_ranks), 2)};
  RunOptions run = weak_run(seed, seed % 2 == 0 ? Protocol::kSlotted : Protocol::kDirect, &hooks);
  run.mode = StepMode::kFused;
  run.routing = Routing::kSkipAllToAll;
  std::vector<reference::Step> steps;
  for (uint64_t i = 0; i < 3; ++i) steps.push_back(as_run(make_step(shape, seed * 3 + i), run));
  return EpHarness(shape, run).run_back_to_back(steps);
}

TEST_F(WeakMemoryProtocol, TheAllReduceIsRightForEverySeed) {
  for (uint64_t seed = 0; seed < seeds(100); ++seed)
    ASSERT_EQ(run_all_reduce(seed, std::nullopt), "") << "seed " << seed;
}

// Rows in the caller's memory, which a kernel overwrites behind a combine that awaits their readers.
std::string run_lent(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const TestHooks hooks{.mutant = mutant};
  ManySteps many(seed % 2 == 0 ? RowLayout::kMasked : RowLayout::kPerRank, TargetChoice::kHost, 1,
                 weak_memory(seed, &hooks), {.n_ranks = 2});
  return run_awaited_readers(many, overwriting_kernel(many));
}

TEST_F(WeakMemoryProtocol, RowsMayBeOverwrittenBehindTheirReaders) {
  for (uint64_t seed = 0; seed < seeds(kNumSeeds); ++seed)
    ASSERT_EQ(run_lent(seed, std::nullopt), "") << "seed " << seed;
}

// What the host does with a fault record, done by a kernel on another stream: the host does not go through
// the weak memory. Says whether all of the record is there once its state says so.
struct FaultParams {
  WaitContext context;
  uint32_t* num_stale;
};
void report_fault(FaultParams params) {
  if (target::thread_idx() == 0)
    raise_fault(params.context, FaultKind::kTimeout, {Phase::kCombineWait, 3, 5, 7}, 11, 13);
}
void read_fault(FaultParams params) {
  if (target::thread_idx() != 0) return;
  FaultRecord& record = *params.context.record;
  target::wait_until([&] { return target::ld_acquire_system(&record.state) == FaultRecord::kWritten; },
                     kNoDeadline);
  *params.num_stale += target::ld(&record.kind) != FaultKind::kTimeout ||
                       target::ld(&record.late_rank) != 3 || target::ld(&record.expert) != 5 ||
                       target::ld(&record.elapsed_ns) != 13;
}
std::string run_fault_record(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  emulator::Machine machine(weak_options(seed, mutant));
  FaultRecord record{};
  uint64_t poison = 0;
  uint64_t* const poison_of_rank[] = {&poison};
  uint32_t num_stale = 0;
  FaultParams params{{.record = &record,
                      .my_poison = &poison,
                      .poison_of_rank = poison_of_rank,
                      .my_rank = 0,
                      .n_ranks = 1,
                      .timeout_ns = 1},
                     &num_stale};
  Status status = target::launch("report", report_fault, {}, machine.create_stream(), params);
  if (status.ok()) status = target::launch("read", read_fault, {}, machine.create_stream(), params);
  if (status.ok()) status = machine.synchronize();
  if (!status.ok()) return status.to_string();
  return num_stale == 0 ? "" : "a stale fault record";
}

TEST_F(WeakMemoryProtocol, AFaultRecordIsWhole) {
  SWITCHYARD_SKIP_IF_UNCHECKED();
  for (uint64_t seed = 0; seed < seeds(kNumSeeds); ++seed)
    ASSERT_EQ(run_fault_record(seed, std::nullopt), "");
}

// An output that is right, checked three times in a row: it must be found right, and counted.
std::string run_check_output(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  const TestHooks hooks{.mutant = mutant};
  const auto world = must(World::create({.target = TargetChoice::kHost, .host = weak_memory(seed, &hooks)}));
  Rank& rank = world->rank(0);
  const std::vector<uint64_t> output(512, kOverwrittenWord);
  auto memory = must(rank.upload(output));
  auto check = must(rank.upload(
      std::vector<OutputTally>{{.expected = output_hash(output.data(), 512 * sizeof(uint64_t))}}));
  for (int i = 0; i < 3; ++i) {
    const Status status = kernel_table(rank).check_output(
        {.num_blocks = 3, .num_threads = 64}, rank.stream(),
        {check.data(), reinterpret_cast<std::byte*>(memory.data()), 512 * sizeof(uint64_t), nullptr, 0});
    if (!status.ok()) return status.to_string();
  }
  if (const Status status = rank.synchronize(); !status.ok()) return status.to_string();
  const OutputTally seen = must(check.download()).front();
  return seen.num_checked == 3 && seen.num_different == 0 ? "" : "an output was counted wrong";
}

TEST_F(WeakMemoryProtocol, ARightOutputIsFoundRight) {
  for (uint64_t seed = 0; seed < seeds(kNumSeeds); ++seed)
    ASSERT_EQ(run_check_output(seed, std::nullopt), "");
}

// The mutants: the tag of a row in docs/memory-model.md, and which side of it is weakened.
struct NamedMutant {
  const char* name;
  OrderMutant mutant;
  std::string (*run)(uint64_t seed, const std::optional<OrderMutant>& mutant) = run_slotted;
  // Values may come out right all the same; what shows is that a store may overtake what came before it.
  bool shows_by_overtaking = false;
};

constexpr Order kRelaxed = Order::kRelaxed;

const NamedMutant kMutants[] = {
    {"MM01FinishedReleaseIsRelaxed", {"DispatchAsync*::send(", WordKind::kAdd, kRelaxed}},
    {"MM01FinishedReleaseIsBlockScope",
     {"DispatchAsync*::send(", WordKind::kAdd, Order::kRelease, Scope::kBlock}},
    {"MM01FinishedAcquireIsRelaxed", {"DispatchAsync*::watch(", WordKind::kLoad, kRelaxed}},
    {"MM01BulkCopiesAreNotWaitedFor", {"DispatchAsync*::send(", WordKind::kBulkWait}},
    {"MM02CellReleaseIsRelaxed", {"DispatchAsync*::watch(", WordKind::kStore, kRelaxed}},
    {"MM02CellReleaseIsDeviceScope",
     {"DispatchAsync*::watch(", WordKind::kStore, Order::kRelease, Scope::kDevice}},
    {"MM02CellAcquireIsRelaxed", {"DispatchWait*::collect_counts(", WordKind::kLoad, kRelaxed}},
    {"MM04ElectionIsRelaxed", {"CombineAsync*::run(", WordKind::kAdd, kRelaxed}},
    {"MM04ElectionDoesNotAcquire", {"CombineAsync*::run(", WordKind::kAdd, Order::kRelease}},
    {"MM04ElectionDoesNotRelease", {"CombineAsync*::run(", WordKind::kAdd, Order::kAcquire}},
    {"MM05CellReleaseIsRelaxed", {"CombineAsync*::signal(", WordKind::kStore, kRelaxed}},
    {"MM05CellReleaseIsDeviceScope",
     {"CombineAsync*::signal(", WordKind::kStore, Order::kRelease, Scope::kDevice}},
    {"MM05CellAcquireIsRelaxed", {"CombineWait*::collect_rows(", WordKind::kLoad, kRelaxed}},
    {"MM07RecordReleaseIsRelaxed", {"record_fault(", WordKind::kStore, kRelaxed}, run_fault_record},
    {"MM08CountReleaseIsRelaxed",
     {"RowCounts*::send_counts(", WordKind::kStore, kRelaxed},
     run_direct_in_place,
     true},
    {"MM08CountReleaseIsDeviceScope",
     {"RowCounts*::send_counts(", WordKind::kStore, Order::kRelease, Scope::kDevice},
     run_direct_in_place,
     true},
    {"MM08CountAcquireIsRelaxed",
     {"RowCounts*::collect_counts(", WordKind::kLoad, kRelaxed},
     run_direct_in_place,
     true},
    {"MM09ElectionIsRelaxed", {"DirectDispatchAsync*::finish(", WordKind::kAdd, kRelaxed}, run_direct},
    {"MM09ElectionDoesNotAcquire",
     {"DirectDispatchAsync*::finish(", WordKind::kAdd, Order::kRelease},
     run_direct},
    {"MM09ElectionDoesNotRelease",
     {"DirectDispatchAsync*::finish(", WordKind::kAdd, Order::kAcquire},
     run_direct},
    {"MM09BulkCopiesAreNotWaitedFor", {"CarryTokens*::run(", WordKind::kBulkWait}, run_direct},
    {"MM10ReadyReleaseIsRelaxed", {"DirectDispatchAsync*::finish(", WordKind::kStore, kRelaxed}, run_direct},
    {"MM10ReadyReleaseIsDeviceScope",
     {"DirectDispatchAsync*::finish(", WordKind::kStore, Order::kRelease, Scope::kDevice},
     run_direct},
    {"MM10ReadyAcquireIsRelaxed",
     {"DirectDispatchWait*::collect_rows(", WordKind::kLoad, kRelaxed},
     run_direct},
    {"MM11OutputReleaseIsRelaxed", {"DirectCombineAsync*::run(", WordKind::kStore, kRelaxed}, run_direct},
    {"MM11OutputReleaseIsDeviceScope",
     {"DirectCombineAsync*::run(", WordKind::kStore, Order::kRelease, Scope::kDevice},
     run_direct},
    {"MM11OutputAcquireIsRelaxed",
     {"DirectCombineWait*::find_outputs(", WordKind::kLoad, kRelaxed},
     run_direct},
    {"MM09EncodedCopiesAreNotWaitedFor", {"CarryEncoded*::run(", WordKind::kBulkWait}, run_encoded},
    {"MM09EncodedElectionIsRelaxed",
     {"DirectDispatchAsync*::finish(", WordKind::kAdd, kRelaxed},
     run_encoded},
    {"MM10EncodedReadyReleaseIsRelaxed",
     {"DirectDispatchAsync*::finish(", WordKind::kStore, kRelaxed},
     run_encoded},
    {"MM10EncodedReadyAcquireIsRelaxed",
     {"DirectDispatchWait*::collect_rows(", WordKind::kLoad, kRelaxed},
     run_encoded},
    // The counts (MM-08) order the same choices, and sooner: only without both it shows.
    {"MM10AndMM08ChoicesReleasesAreRelaxed", {"", WordKind::kStore, kRelaxed}, run_choices},
    {"MM10AndMM08ChoicesReleasesAreDeviceScope",
     {"", WordKind::kStore, Order::kRelease, Scope::kDevice},
     run_choices},
    {"MM10AndMM08ChoicesAcquiresAreRelaxed", {"", WordKind::kLoad, kRelaxed}, run_choices},
    {"SlottedMessagesAreNotFenced", {"DispatchAsync*::send(", WordKind::kProxyFence}},
    {"RowsOfTheStepBeforeAreNotFenced",
     {"CarryTokens*::run(", WordKind::kProxyFence},
     run_direct_in_place,
     true},
    {"CodesInPlaceAreNotFenced", {"CarryEncoded*::carry(", WordKind::kProxyFence}, run_encoded},
    {"CodesByExpertAreNotFenced", {"CarryEncoded*::carry_encoded_for(", WordKind::kProxyFence}, run_encoded},
    {"ScalesOfSendersAreNotFenced", {"StoreScales*::run(", WordKind::kProxyFence}, run_encoded},
    {"ABandIsFilledAgainUnfenced", {"StoreScales*::store(", WordKind::kProxyFence}, run_many_scales, true},
    {"RowsToCombineAreNotFenced", {"RowSum*::RowSum(", WordKind::kProxyFence}, run_fp8_combine},
    {"AStageOfRowsIsFilledAgainUnfenced",
     {"RowSum*::run_whole(", WordKind::kProxyFence},
     run_fp8_combine,
     true},
    {"ZeroedValuesAreNotFenced",
     {"AttentionConsumer*::zero_masked_values(", WordKind::kProxyFence},
     run_attention},
    {"ZeroedLatentsAreNotFenced",
     {"MlaConsumer*::zero_masked_values(", WordKind::kProxyFence},
     run_latents_beside_nans},
    {"LoadedCodesAreNotFenced", {"CodeConsumer*::give_back(", WordKind::kProxyFence}, run_fp8_decoding, true},
    {"MM12ElectionIsRelaxed", {"CheckOutput::is_last_block(", WordKind::kAdd, kRelaxed}, run_check_output},
    {"MM12ElectionDoesNotAcquire",
     {"CheckOutput::is_last_block(", WordKind::kAdd, Order::kRelease},
     run_check_output},
    {"MM12ElectionDoesNotRelease",
     {"CheckOutput::is_last_block(", WordKind::kAdd, Order::kAcquire},
     run_check_output},
    {"MM13ElectionIsRelaxed", {"AllReduce*::publish_values(", WordKind::kAdd, kRelaxed}, run_all_reduce},
    {"MM13ElectionDoesNotAcquire",
     {"AllReduce*::publish_values(", WordKind::kAdd, Order::kRelease},
     run_all_reduce},
    {"MM13ElectionDoesNotRelease",
     {"AllReduce*::publish_values(", WordKind::kAdd, Order::kAcquire},
     run_all_reduce},
    {"MM14CellReleaseIsRelaxed", {"AllReduce*::publish_values(", WordKind::kStore, kRelaxed}, run_all_reduce},
    {"MM14CellReleaseIsDeviceScope",
     {"AllReduce*::publish_values(", WordKind::kStore, Order::kRelease, Scope::kDevice},
     run_all_reduce},
    {"MM14CellAcquireIsRelaxed", {"AllReduce*::collect(", WordKind::kLoad, kRelaxed}, run_all_reduce},
    {"MM15ElectionIsRelaxed",
     {"DirectDispatchWait*::count_step(", WordKind::kAdd, kRelaxed},
     run_encoded,
     true},
    {"MM15ElectionDoesNotAcquire",
     {"DirectDispatchWait*::count_step(", WordKind::kAdd, Order::kRelease},
     run_encoded,
     true},
    {"MM15ElectionDoesNotRelease",
     {"DirectDispatchWait*::count_step(", WordKind::kAdd, Order::kAcquire},
     run_encoded,
     true},
    {"MM30ElectionIsRelaxed", {"TileConsumer*::is_last_split(", WordKind::kAdd, kRelaxed}, run_decoding},
    {"MM30ElectionDoesNotAcquire",
     {"TileConsumer*::is_last_split(", WordKind::kAdd, Order::kRelease},
     run_decoding},
    {"MM30ElectionDoesNotRelease",
     {"TileConsumer*::is_last_split(", WordKind::kAdd, Order::kAcquire},
     run_decoding},
    {"MM35ElectionIsRelaxed",
     {"DirectCombineWait*::await_readers(", WordKind::kAdd, kRelaxed},
     run_lent,
     true},
    {"MM35ElectionDoesNotAcquire",
     {"DirectCombineWait*::await_readers(", WordKind::kAdd, Order::kRelease},
     run_lent,
     true},
    {"MM35ElectionDoesNotRelease",
     {"DirectCombineWait*::await_readers(", WordKind::kAdd, Order::kAcquire},
     run_lent,
     true},
    {"MM36CellReleaseIsRelaxed",
     {"DirectCombineWait*::await_readers(", WordKind::kStore, kRelaxed},
     run_lent,
     true},
    {"MM36CellReleaseIsDeviceScope",
     {"DirectCombineWait*::await_readers(", WordKind::kStore, Order::kRelease, Scope::kDevice},
     run_lent,
     true},
    {"MM36CellAcquireIsRelaxed",
     {"DirectCombineWait*::await_readers(", WordKind::kLoad, kRelaxed},
     run_lent,
     true},
    {"MM30ElectionAmongLatentsIsRelaxed",
     {"TileConsumer*::is_last_split(", WordKind::kAdd, kRelaxed},
     run_latents},
};

class OrderMutants : public WeakMemoryProtocol, public testing::WithParamInterface<NamedMutant> {};

INSTANTIATE_TEST_SUITE_P(MemoryModel, OrderMutants, testing::ValuesIn(kMutants),
                         [](const auto& info) { return info.param.name; });

// By the values it leaves, where those show it: the machine is then told not to stop where a store may
// overtake something.
TEST_P(OrderMutants, IsCaught) {
  if (GetParam().run == run_fault_record) SWITCHYARD_SKIP_IF_UNCHECKED();
  OrderMutant mutant = GetParam().mutant;
  mutant.stops_at_overtaking = GetParam().shows_by_overtaking;
  expect_caught([&](uint64_t seed) { return GetParam().run(seed, mutant); });
}

// MM-03 and MM-06 need no mutant: a block counts itself out only after its waits have seen the cells filled,
// and reads no cell again, so that no load is left that the last block's reset could overtake.
TEST_F(WeakMemoryProtocol, TheElectionsOfMM03AndMM06MayBeRelaxed) {
  for (const char* function : {"DispatchWait*::reset_cells(", "CombineWait*::reset_cells("})
    for (uint64_t seed = 0; seed < seeds(100); ++seed)
      ASSERT_EQ(run_slotted(seed, OrderMutant{function, WordKind::kAdd, kRelaxed}), "") << function << seed;
}

}  // namespace
}  // namespace switchyard
