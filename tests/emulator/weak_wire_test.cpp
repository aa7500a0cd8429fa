// The wire in weak memory: what its words order, what they do not, and mutants of each.
#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "weak_memory_fixture.hpp"
#include "wire_exchange.hpp"

namespace switchyard {
namespace {

using emulator::LocalWire;
using emulator::Machine;
using testing_support::weak_options;
using testing_support::WireExchange;

class WeakWire : public testing_support::WeakMemoryTest {};

constexpr uint64_t kNumSeeds = 500;

// Of kNumSeeds seeds, those in which `run` finds something wrong; stops at the first if one is enough.
uint64_t num_wrong_seeds(const std::function<std::string(uint64_t seed)>& run, bool stops_at_first = false) {
  uint64_t num_wrong = 0;
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    num_wrong += !run(seed).empty();
    if (stops_at_first && num_wrong > 0) break;
  }
  return num_wrong;
}

std::string run_exchange(uint64_t seed, const std::optional<OrderMutant>& mutant) {
  WireExchange exchange;
  Machine machine(weak_options(seed, mutant));
  return exchange.run(machine, /*num_steps=*/3);
}

TEST_F(WeakWire, RowsAreThereWhenTheSignalIs) {
  for (uint64_t seed = 0; seed < testing_support::seeds(kNumSeeds); ++seed)
    ASSERT_EQ(run_exchange(seed, std::nullopt), "") << "seed " << seed;
}

struct NamedMutant {
  const char* name;
  OrderMutant mutant;
};

class WireMutants : public WeakWire, public ::testing::WithParamInterface<NamedMutant> {};

TEST_P(WireMutants, ShowInSomeSeed) {
  EXPECT_GT(num_wrong_seeds([](uint64_t seed) { return run_exchange(seed, GetParam().mutant); }, true), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Exchange, WireMutants,
    ::testing::Values(NamedMutant{"NothingIsSettled", {"send_rows(", WordKind::kWireSettle}},
                      NamedMutant{"PutsOfOtherBlocksAreNotSettled",
                                  {"send_rows(", WordKind::kWireSettle, Order::kRelease, Scope::kBlock}},
                      NamedMutant{"TheSignalOvertakesWhatWasSettled", {"send_rows(", WordKind::kWireSignal}},
                      NamedMutant{"TheElectionIsRelaxed", {"send_rows(", WordKind::kAdd}},
                      NamedMutant{"TheElectionDoesNotAcquire",
                                  {"send_rows(", WordKind::kAdd, Order::kRelease}},
                      NamedMutant{"TheSignalIsNotAcquired", {"receive_rows(", WordKind::kLoad}}),
    [](const auto& test) { return std::string(test.param.name); });

// The arena of a litmus test, and its three ranks.
constexpr int kRanks = 3;
struct Board {
  alignas(16) uint32_t row[16];
  alignas(16) uint32_t staged[16];
  alignas(8) uint64_t arrived[kRanks];
  uint32_t num_blocks_done;
  uint32_t num_stale;  // written and read plainly
};
struct Rank {
  Wire wire;
  Board* board;
  Board* board_of_rank_1;  // to reach it without the wire
};
using Kernel = void (*)(Rank);

// Runs the kernels of each rank, one after the other on its stream, and returns what went wrong.
using Kernels = std::array<std::vector<Kernel>, kRanks>;
std::string run_litmus(const Kernels& kernels, uint64_t seed, uint32_t num_blocks = 1) {
  Machine machine(weak_options(seed));
  std::array<Board, kRanks> boards{};
  std::vector<emulator::WireArena> arenas;
  for (Board& board : boards) arenas.push_back({reinterpret_cast<std::byte*>(&board), sizeof(Board)});
  LocalWire wire(arenas);
  for (int rank = 0; rank < kRanks; ++rank) {
    emulator::Stream* stream = machine.create_stream();
    for (const Kernel kernel : kernels[static_cast<size_t>(rank)]) {
      const Rank parameters{wire.of_rank(rank), &boards[static_cast<size_t>(rank)], &boards[1]};
      EXPECT_TRUE(target::launch("litmus", kernel, {.num_blocks = num_blocks}, stream, parameters).ok());
    }
  }
  const Status status = machine.synchronize();
  if (!status.ok()) return status.to_string();
  for (const Board& board : boards)
    if (board.num_stale > 0) return "stale";
  return "";
}
uint64_t num_wrong_litmus(const Kernels& kernels) {
  return num_wrong_seeds([&](uint64_t seed) { return run_litmus(kernels, seed); });
}

void put_row(const Rank& rank, int peer, uint32_t value) {
  for (uint32_t& word : rank.board->staged) target::st(&word, value);
  target::wire_put(rank.wire, peer, rank.board->row, rank.board->staged, sizeof(rank.board->row));
}
void settle(const Rank& rank) { target::wire_settle(rank.wire); }
void signal(const Rank& rank, int peer, uint64_t value = 1) {
  target::wire_signal(rank.wire, peer, &rank.board->arrived[rank.wire.rank], value);
}
void wait_for(const Rank& rank, int src, uint64_t value = 1) {
  target::wait_until([&] { return target::ld_acquire_system(&rank.board->arrived[src]) == value; },
                     kNoDeadline);
}
void expect_row(const Rank& rank, uint32_t value) {
  for (const uint32_t& word : rank.board->row) rank.board->num_stale += target::ld(&word) != value;
}

template <typename Body>
void once(Body body) {
  if (target::thread_idx() == 0) body();
}
template <int kSrc>
void receive(Rank rank) {
  once([&] {
    wait_for(rank, kSrc);
    expect_row(rank, 7);
  });
}

TEST_F(WeakWire, TheEndOfAKernelSettlesNothing) {
  const Kernel put = [](Rank rank) { once([&] { put_row(rank, 1, 7); }); };
  const Kernel only_signal = [](Rank rank) { once([&] { signal(rank, 1); }); };
  const Kernel settle_and_signal = [](Rank rank) {
    once([&] {
      settle(rank);
      signal(rank, 1);
    });
  };
  EXPECT_GT(num_wrong_litmus({{{put, only_signal}, {receive<0>}}}), 10u);
  EXPECT_EQ(num_wrong_litmus({{{put, settle_and_signal}, {receive<0>}}}), 0u)
      << "a settle covers the puts of earlier kernels";
}

TEST_F(WeakWire, APutBehindTheSettleIsNotSettled) {
  const Kernel send = [](Rank rank) {
    once([&] {
      settle(rank);
      put_row(rank, 1, 7);
      signal(rank, 1);
    });
  };
  EXPECT_GT(num_wrong_litmus({{{send}, {receive<0>}}}), 10u);
}

// Rank 0 puts to rank 2 and tells rank 1, which tells rank 2.
TEST_F(WeakWire, ASignalToOnePeerOrdersNothingAtAnother) {
  const Kernel send = [](Rank rank) {
    once([&] {
      put_row(rank, 2, 7);
      settle(rank);
      signal(rank, 1);
      signal(rank, 2);
    });
  };
  const Kernel relay = [](Rank rank) {
    once([&] {
      wait_for(rank, 0);
      settle(rank);
      signal(rank, 2);
    });
  };
  EXPECT_GT(num_wrong_litmus({{{send}, {relay}, {receive<1>}}}), 10u);
  EXPECT_EQ(num_wrong_litmus({{{send}, {relay}, {receive<0>}}}), 0u);
}

template <bool kWaitsForAnswer>
void rewrite_source(Rank rank) {
  once([&] {
    put_row(rank, 1, 7);
    settle(rank);
    signal(rank, 1);
    if (kWaitsForAnswer) wait_for(rank, 1);
    for (uint32_t& word : rank.board->staged) target::st(&word, 9u);
  });
}
TEST_F(WeakWire, ASourceIsReadUntilThePeerHasAnswered) {
  const Kernel answer = [](Rank rank) {
    receive<0>(rank);
    once([&] { signal(rank, 0); });
  };
  EXPECT_GT(num_wrong_litmus({{{rewrite_source<false>}, {answer}}}), 10u);
  EXPECT_EQ(num_wrong_litmus({{{rewrite_source<true>}, {answer}}}), 0u);
}

TEST_F(WeakWire, ASignalPassesOnNoStores) {
  const Kernel send = [](Rank rank) {
    once([&] {
      for (uint32_t& word : rank.board_of_rank_1->row) target::st(&word, 7u);
      settle(rank);
      signal(rank, 1);
    });
  };
  EXPECT_GT(num_wrong_litmus({{{send}, {receive<0>}}}), 10u);
}

TEST_F(WeakWire, ASignalIsAcquiredAtSystemScope) {
  const Kernel send = [](Rank rank) {
    once([&] {
      put_row(rank, 1, 7);
      settle(rank);
      signal(rank, 1);
    });
  };
  const Kernel receive_at_device_scope = [](Rank rank) {
    once([&] {
      target::wait_until([&] { return target::ld_acquire_device(&rank.board->arrived[0]) == 1; },
                         kNoDeadline);
      expect_row(rank, 7);
    });
  };
  EXPECT_EQ(num_wrong_litmus({{{send}, {receive<0>}}}), 0u);
  EXPECT_GT(num_wrong_litmus({{{send}, {receive_at_device_scope}}}), 10u);
}

// Both blocks of rank 1 read the row, and the last one to have done so lets rank 0 put the next.
template <Order kOrder>
void read_and_answer(Rank rank) {
  once([&] {
    wait_for(rank, 0);
    expect_row(rank, 7);
    if (target::fetch_add<kOrder, Scope::kDevice>(&rank.board->num_blocks_done, 1u) == 1) signal(rank, 0);
  });
}
TEST_F(WeakWire, APutThatMayOvertakeALoadIsAnErrorThatNamesBoth) {
  const Kernel put_twice = [](Rank rank) {
    if (target::block_idx() != 0) return;
    once([&] {
      put_row(rank, 1, 7);
      settle(rank);
      signal(rank, 1);
      wait_for(rank, 1);
      put_row(rank, 1, 8);
    });
  };
  const auto run = [&](Kernel reader, uint64_t seed) {
    return run_litmus({{{put_twice}, {reader}}}, seed, /*num_blocks=*/2);
  };
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    ASSERT_EQ(run(read_and_answer<Order::kAcqRel>, seed), "") << "seed " << seed;
    ASSERT_NE(run(read_and_answer<Order::kRelaxed>, seed).find("may overtake the load at weak_wire_test.cpp"),
              std::string::npos)
        << "seed " << seed;
  }
}

// Puts that nothing orders arrive in pieces, each early or late.
TEST_F(WeakWire, APutArrivesInPieces) {
  const Kernel put = [](Rank rank) { once([&] { put_row(rank, 1, 7); }); };
  const Kernel look = [](Rank rank) {
    once([&] {
      const uint32_t first = target::ld(&rank.board->row[0]);
      for (const uint32_t& word : rank.board->row) {
        target::ld_relaxed_system(&rank.board->arrived[2]);  // others may run here
        rank.board->num_stale += target::ld(&word) != first;
      }
    });
  };
  EXPECT_GT(num_wrong_litmus({{{put}, {look}}}), 10u);
}

// A wait whose deadline passes only if nothing else can happen: what is in flight arrives before that.
TEST_F(WeakWire, WhatIsInFlightArrivesBeforeADeadlinePasses) {
  const Kernel send = [](Rank rank) {
    once([&] {
      put_row(rank, 1, 7);
      settle(rank);
      signal(rank, 1);
    });
  };
  const Kernel wait = [](Rank rank) {
    once([&] {
      rank.board->num_stale +=
          !target::wait_until([&] { return target::ld_acquire_system(&rank.board->arrived[0]) == 1; },
                              target::now_ns() + 1'000'000);
    });
  };
  EXPECT_EQ(num_wrong_litmus({{{send}, {wait}}}), 0u);
}

TEST_F(WeakWire, TheHostWaitsForKernelsAndNotForTheWire) {
  uint64_t num_late = 0;
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    Machine machine(weak_options(seed));
    std::array<Board, 2> boards{};
    LocalWire wire({{reinterpret_cast<std::byte*>(&boards[0]), sizeof(Board)},
                    {reinterpret_cast<std::byte*>(&boards[1]), sizeof(Board)}});
    const Kernel put = [](Rank rank) { once([&] { put_row(rank, 1, 7); }); };
    const Rank rank{wire.of_rank(0), &boards[0], &boards[1]};
    ASSERT_TRUE(target::launch("put", put, {}, machine.create_stream(), rank).ok());
    ASSERT_TRUE(machine.synchronize().ok());
    num_late += std::any_of(std::begin(boards[1].row), std::end(boards[1].row),
                            [](uint32_t word) { return word != 7; });
    machine.complete_wire();
    for (const uint32_t word : boards[1].row) ASSERT_EQ(word, 7u) << "seed " << seed;
  }
  EXPECT_GT(num_late, 10u);
}

TEST_F(WeakWire, WhatIsInFlightToMemoryThatIsFreedIsDropped) {
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    Machine machine(weak_options(seed));
    std::array<Board, 2> boards{};
    LocalWire wire({{reinterpret_cast<std::byte*>(&boards[0]), sizeof(Board)},
                    {reinterpret_cast<std::byte*>(&boards[1]), sizeof(Board)}});
    for (const Board& board : boards) machine.add_memory(&board, sizeof(board));
    const Kernel put = [](Rank rank) {
      once([&] {
        put_row(rank, 1, 7);
        signal(rank, 1);
      });
    };
    const Rank rank{wire.of_rank(0), &boards[0], &boards[1]};
    ASSERT_TRUE(target::launch("put", put, {}, machine.create_stream(), rank).ok());
    ASSERT_TRUE(machine.synchronize().ok());
    machine.remove_memory(&boards[1]);
    boards[1] = Board{};
    machine.complete_wire();
    for (const uint32_t word : boards[1].row) ASSERT_EQ(word, 0u) << "seed " << seed;
    ASSERT_EQ(boards[1].arrived[0], 0u) << "seed " << seed;
  }
}

TEST_F(WeakWire, TheSameSeedGivesTheSameTrace) {
  const auto trace = [](uint64_t seed) {
    WireExchange exchange;
    Machine machine(weak_options(seed));
    EXPECT_EQ(exchange.run(machine, /*num_steps=*/2), "");
    return machine.trace_hash();
  };
  for (uint64_t seed = 0; seed < 10; ++seed) EXPECT_EQ(trace(seed), trace(seed));
}

}  // namespace
}  // namespace switchyard
