// The words of the wire between ranks of one process: what every target must do. Compiled for the host and,
// through cuda_tests.cu, for CUDA.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "switchyard/detail/target/wire.hpp"
#include "target_fixture.hpp"
#if !defined(__CUDACC__)
#include "local_wire.hpp"
#endif

#define WireWords SWITCHYARD_SUITE(WireWords)

namespace switchyard {
namespace {

class WireWords : public testing_support::OneRankTest {};

INSTANTIATE_TEST_SUITE_P(Modes, WireWords, testing_support::modes_of_target(), testing_support::mode_name);

constexpr int kMaxRowWords = 1024;
constexpr uint64_t kNumRounds = 8;

struct WireArenaLayout {
  alignas(16) uint32_t row[kMaxRowWords];  // two puts, one by a warp and one by a thread
  alignas(16) uint32_t staged[kMaxRowWords];
  alignas(16) uint64_t full;   // rounds that the peer has sent
  alignas(16) uint64_t empty;  // rounds that the peer has read
  uint32_t num_wrong;
};

struct RoundsParams {
  Wire wires[2];               // by rank
  WireArenaLayout* arenas[2];  // the same
  int first_word, num_words;   // of the row that is sent; the first half is the warp's
};

SWITCHYARD_DEVICE void await_cell(const uint64_t* cell, uint64_t value) {
  if (target::thread_idx() == 0)
    // acquire: pairs with wire_signal()
    target::wait_until([&] { return target::ld_acquire_system(cell) >= value; }, kNoDeadline);
  target::sync_block();
}

// Rank 0's part: every thread stages some words, warp 0 and a thread of warp 1 put them, thread 0 signals.
SWITCHYARD_DEVICE void send_round(const RoundsParams& params, uint32_t round) {
  const Wire& wire = params.wires[0];
  WireArenaLayout& arena = *params.arenas[0];
  await_cell(&arena.empty, round);
  for (int i = target::thread_idx(); i < params.num_words; i += target::num_threads())
    target::st(&arena.staged[params.first_word + i], round * 10000 + static_cast<uint32_t>(i));
  target::sync_block();
  const int half = params.first_word + params.num_words / 2;
  const int num_left = params.first_word + params.num_words - half;
  if (target::warp_idx() == 0)
    target::wire_put_warp(wire, 1, &arena.row[params.first_word], &arena.staged[params.first_word],
                          static_cast<uint64_t>(params.num_words / 2) * sizeof(uint32_t));
  if (target::thread_idx() == kWarpSize)
    target::wire_put(wire, 1, &arena.row[half], &arena.staged[half],
                     static_cast<uint64_t>(num_left) * sizeof(uint32_t));
  target::sync_block();
  if (target::thread_idx() != 0) return;
  target::wire_settle(wire);
  target::wire_signal(wire, 1, &arena.full, uint64_t{round} + 1);  // pairs with receive_round()
}

SWITCHYARD_DEVICE void receive_round(const RoundsParams& params, uint32_t round) {
  WireArenaLayout& arena = *params.arenas[1];
  await_cell(&arena.full, uint64_t{round} + 1);
  for (int i = target::thread_idx(); i < params.num_words; i += target::num_threads())
    if (target::ld(&arena.row[params.first_word + i]) != round * 10000 + static_cast<uint32_t>(i))
      target::atomic_add_relaxed_device(&arena.num_wrong, 1u);
  target::sync_block();
  if (target::thread_idx() == 0)
    target::wire_signal(params.wires[1], 0, &arena.empty, uint64_t{round} + 1);  // pairs with send_round()
}

// Block 0 is rank 0, and block 1 is rank 1.
SWITCHYARD_KERNEL void send_rounds(RoundsParams params) {
  for (uint32_t round = 0; round < kNumRounds; ++round)
    target::block_idx() == 0 ? send_round(params, round) : receive_round(params, round);
}

TEST_P(WireWords, WhatIsSettledIsThereWhenTheSignalIs) {
  for (const auto& [first_word, num_words] :
       {std::pair(0, 1024), std::pair(0, 1000), std::pair(1, 1001), std::pair(3, 2), std::pair(4, 64)}) {
    const auto arenas = zeros<WireArenaLayout>(2);
    WireArenaLayout* const arena_of_rank[2] = {arenas.data(), arenas.data() + 1};
    RoundsParams params{{}, {arena_of_rank[0], arena_of_rank[1]}, first_word, num_words};
#if defined(__CUDACC__)
    const auto table = upload<std::byte*>(
        {reinterpret_cast<std::byte*>(arena_of_rank[0]), reinterpret_cast<std::byte*>(arena_of_rank[1])});
    for (int rank = 0; rank < 2; ++rank)
      params.wires[rank] = {.rank = rank,
                            .arena = reinterpret_cast<std::byte*>(arena_of_rank[rank]),
                            .arena_of_rank = table.data()};
#else
    emulator::LocalWire wire({{reinterpret_cast<std::byte*>(arena_of_rank[0]), sizeof(WireArenaLayout)},
                              {reinterpret_cast<std::byte*>(arena_of_rank[1]), sizeof(WireArenaLayout)}});
    for (int rank = 0; rank < 2; ++rank) params.wires[rank] = wire.of_rank(rank);
#endif
    run(send_rounds, {.num_blocks = 2, .num_threads = 2 * kWarpSize}, params);
    const std::vector<WireArenaLayout> seen = download(arenas);
    EXPECT_EQ(seen[0].empty, kNumRounds);
    EXPECT_EQ(seen[1].full, kNumRounds);
    EXPECT_EQ(seen[1].num_wrong, 0u) << num_words << " words from " << first_word;
    // Nothing beside the row is written.
    for (int i = 0; i < first_word; ++i) EXPECT_EQ(seen[1].row[i], 0u) << "word " << i;
    for (int i = first_word + num_words; i < kMaxRowWords; ++i) EXPECT_EQ(seen[1].row[i], 0u) << "word " << i;
  }
}

}  // namespace
}  // namespace switchyard
