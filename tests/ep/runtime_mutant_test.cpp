// Mutants of what the runtime tells the kernels: the right kernels with one address or one table gone wrong.
// Each must be caught by the checks that pass without it, on the same seeds, in weak memory. (Mutants of the
// kernels are in mutant_test.cpp.)
#include <iostream>
#include <span>

#include "flights.hpp"
#include "switchyard/detail/testing/expert_parallel_test_access.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

// Runs what the seed draws, and says what is wrong, or nothing. `is_mutant`: with the mutant.
using RuntimeCheck = std::string (*)(uint64_t seed, Protocol protocol, bool is_mutant);

// Two micro-batches, interleaved as the seed draws; the mutant is flight 1, which uses memory of flight 0.
// Flight 0 has had a step before, so that the steps of the two have different numbers.
template <FlightMemory kMemory>
std::string run_two_flights(uint64_t seed, Protocol protocol, bool is_mutant) {
  Flights flights({.protocol = protocol, .host = weak_memory(seed), .timeout_ns = 1'000'000'000});
  Status status;
  for (int phase = 0; phase < kNumPhases; ++phase)
    for (int rank = 0; rank < 2 && status.ok(); ++rank) status = flights.launch(0, phase, rank);
  if (status.ok()) status = flights.ep(0).synchronize();
  if (status.ok()) status = ExpertParallelTestAccess::poison_receive_buffers(flights.ep(0), 0xdd);
  if (!status.ok()) return status.to_string();
  if (is_mutant) ExpertParallelTestAccess::use_memory_of(flights.ep(1), flights.ep(0), kMemory);
  flights.prepare(seed);
  return flights.run(flights.drawn_order(seed));
}

// Experts 1 and 4 have replicas on several of four ranks.
ExpertPlacement with_replicas() {
  return must(ExpertPlacement::from_lists(6, {{4, 1}, {}, {5, 0, 1, 4}, {1, 3, 2}}));
}

std::string run_with_table(uint64_t seed, const RunOptions& options, const std::vector<int>& tokens_per_rank,
                           const std::vector<int32_t>& table_of_rank_0) {
  const Shape shape{
      .n_ranks = 4, .n_experts = 6, .top_k = 3, .hidden = 16, .tokens_per_rank = tokens_per_rank};
  EpHarness harness(shape, options);
  if (!table_of_rank_0.empty()) {
    const Status status =
        ExpertParallelTestAccess::overwrite_seat_table(harness.ep(), /*rank=*/0, table_of_rank_0);
    if (!status.ok()) return status.to_string();
  }
  return harness.run_and_compare(as_run(make_step(shape, seed), options));
}

RunOptions with_replicas(uint64_t seed, Protocol protocol) {
  RunOptions options = weak_run(seed, protocol);
  options.placement = with_replicas();
  return options;
}

// The mutant: rank 0 picks the replicas that rank 3 would pick.
std::string run_replicas(uint64_t seed, Protocol protocol, bool is_mutant) {
  std::vector<int32_t> table;
  for (int expert = 0; expert < 6 && is_mutant; ++expert) {
    const ExpertSeat seat = with_replicas().seat_for(expert, 3);
    table.push_back(seat.rank * 4 + seat.seat);
  }
  return run_with_table(seed, with_replicas(seed, protocol), {4, 3, 0, 2}, table);
}

// Ranks that have the same tokens and add up their outputs; one of them works for each expert. The mutant:
// rank 0 takes the next replica for the one that works, so that two ranks work for an expert, or none.
std::string run_replicas_of_the_same_tokens(uint64_t seed, Protocol protocol, bool is_mutant) {
  RunOptions options = with_replicas(seed, protocol);
  options.routing = Routing::kSkipAllToAll;
  std::vector<int32_t> table;
  for (int expert = 0; expert < 6 && is_mutant; ++expert) {
    const std::span<const ExpertSeat> seats = options.placement->seats_of(expert);
    const ExpertSeat seat = seats[static_cast<size_t>(expert + 1) % seats.size()];
    table.push_back(seat.rank == 0 ? seat.seat : -1);
  }
  return run_with_table(seed, options, {4, 4, 4, 4}, table);
}

struct RuntimeMutant {
  const char* name;
  Protocol protocol;
  RuntimeCheck check;
};
const RuntimeMutant kRuntimeMutants[] = {
    {"SlotOfOtherMicroBatch", Protocol::kSlotted, run_two_flights<FlightMemory::kDispatchSlots>},
    {"SlotOfOtherMicroBatch", Protocol::kDirect, run_two_flights<FlightMemory::kDispatchSlots>},
    {"CellOfOtherMicroBatch", Protocol::kSlotted, run_two_flights<FlightMemory::kDispatchCells>},
    {"CellOfOtherMicroBatch", Protocol::kDirect, run_two_flights<FlightMemory::kDispatchCells>},
    // Direct: where a rank's rows lie is told relative to what the mutant changes.
    {"CombineSlotOfOtherMicroBatch", Protocol::kSlotted, run_two_flights<FlightMemory::kCombineSlots>},
    {"CombineCellOfOtherMicroBatch", Protocol::kSlotted, run_two_flights<FlightMemory::kCombineCells>},
    {"CombineCellOfOtherMicroBatch", Protocol::kDirect, run_two_flights<FlightMemory::kCombineCells>},
    {"ReplicaPickedAsAnotherRankWould", Protocol::kSlotted, run_replicas},
    {"ReplicaPickedAsAnotherRankWould", Protocol::kDirect, run_replicas},
    {"ReplicaPickedDifferentlyOnTwoRanks", Protocol::kSlotted, run_replicas_of_the_same_tokens},
    {"ReplicaPickedDifferentlyOnTwoRanks", Protocol::kDirect, run_replicas_of_the_same_tokens},
};

class RuntimeMutants : public testing::TestWithParam<RuntimeMutant> {};

INSTANTIATE_TEST_SUITE_P(Addresses, RuntimeMutants, testing::ValuesIn(kRuntimeMutants), [](const auto& info) {
  return info.param.name + protocol_name(info.param.protocol);
});

TEST_P(RuntimeMutants, IsCaught) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a mutant is a race, and may leave its memory";
#endif
  constexpr uint64_t kMaxSeeds = 20;
  for (uint64_t seed = 0; seed < kMaxSeeds; ++seed) {
    ASSERT_EQ(GetParam().check(seed, GetParam().protocol, false), "") << "seed " << seed;
    const std::string difference = GetParam().check(seed, GetParam().protocol, true);
    if (difference.empty()) continue;
    std::cout << "seed " << seed << ": " << difference << "\n";
    return;
  }
  FAIL() << "none of " << kMaxSeeds << " seeds shows it";
}

}  // namespace
}  // namespace switchyard
