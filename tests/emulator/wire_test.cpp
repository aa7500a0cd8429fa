// The words of the wire on the ranks of one process, in fast mode.
#include "switchyard/detail/target/wire.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "local_wire.hpp"
#include "machine.hpp"

namespace switchyard {
namespace {

using emulator::LocalWire;
using emulator::Machine;

constexpr int kNumRanks = 3;
constexpr int kNumWarps = 4;
constexpr int kNumBlocks = 2;
constexpr int kRowWords = 5;  // 20 bytes: no multiple of 16
constexpr uint64_t kNumSteps = 8;

struct Arena {
  // [step % 2][rank that sends][block][warp]; two steps, as a rank may be one ahead.
  uint32_t rows[2][kNumRanks][kNumBlocks][kNumWarps][kRowWords];
  uint32_t staged[2][kNumRanks][kNumBlocks][kNumWarps][kRowWords];  // [..][rank that receives][..]
  alignas(8) uint64_t arrived[kNumRanks];                           // by the rank that sent
  uint32_t num_blocks_done;
  alignas(8) uint64_t step;
  uint32_t num_wrong;
};

struct Exchange {
  Wire wire;
  Arena* arena;
};

uint32_t word_of(uint64_t step, int src, int dst, int block_idx, int warp_idx, int i) {
  return static_cast<uint32_t>(
      ((((step * 7 + static_cast<uint64_t>(src)) * 7 + static_cast<uint64_t>(dst)) * 7 +
        static_cast<uint64_t>(block_idx)) *
           7 +
       static_cast<uint64_t>(warp_idx)) *
          7 +
      static_cast<uint64_t>(i));
}

// Each warp puts a row to each other rank; the last block settles and signals.
void send_rows(Exchange exchange) {
  Arena& arena = *exchange.arena;
  const int block_idx = target::block_idx(), warp_idx = target::warp_idx();
  const int rank = exchange.wire.rank;
  const uint64_t step = arena.step + 1;
  for (int peer = 0; peer < kNumRanks; ++peer) {
    if (peer == rank) continue;
    uint32_t* staged = arena.staged[step % 2][peer][block_idx][warp_idx];
    if (target::lane_idx() < kRowWords)
      target::st(&staged[target::lane_idx()],
                 word_of(step, rank, peer, block_idx, warp_idx, target::lane_idx()));
    target::sync_warp();
    target::wire_put_warp(exchange.wire, peer, arena.rows[step % 2][rank][block_idx][warp_idx], staged,
                          kRowWords * sizeof(uint32_t));
  }
  target::sync_block();
  if (target::thread_idx() != 0) return;
  if (target::atomic_add_acq_rel_device(&arena.num_blocks_done, 1u) != kNumBlocks - 1) return;
  target::st_relaxed_device(&arena.num_blocks_done, 0u);
  target::wire_settle(exchange.wire);
  for (int peer = 0; peer < kNumRanks; ++peer)
    if (peer != rank) target::wire_signal(exchange.wire, peer, &arena.arrived[rank], step);
}

void receive_rows(Exchange exchange) {
  Arena& arena = *exchange.arena;
  const int rank = exchange.wire.rank;
  if (target::thread_idx() != 0) return;
  const uint64_t step = arena.step + 1;
  for (int src = 0; src < kNumRanks; ++src) {
    if (src == rank) continue;
    target::wait_until([&] { return target::ld_acquire_system(&arena.arrived[src]) >= step; }, kNoDeadline);
    for (int block_idx = 0; block_idx < kNumBlocks; ++block_idx)
      for (int warp_idx = 0; warp_idx < kNumWarps; ++warp_idx)
        for (int i = 0; i < kRowWords; ++i)
          arena.num_wrong += target::ld(&arena.rows[step % 2][src][block_idx][warp_idx][i]) !=
                             word_of(step, src, rank, block_idx, warp_idx, i);
  }
  arena.step = step;
}

TEST(Wire, RowsAreThereWhenTheSignalIs) {
  auto arenas = std::make_unique<Arena[]>(kNumRanks);
  std::vector<emulator::WireArena> of_rank;
  for (int rank = 0; rank < kNumRanks; ++rank)
    of_rank.push_back({reinterpret_cast<std::byte*>(&arenas[rank]), sizeof(Arena)});
  LocalWire wire(of_rank);
  Machine machine;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    emulator::Stream* stream = machine.create_stream();
    const Exchange exchange{wire.of_rank(rank), &arenas[rank]};
    for (uint64_t step = 0; step < kNumSteps; ++step) {
      const LaunchShape shape{.num_blocks = kNumBlocks, .num_threads = kNumWarps * kWarpSize};
      ASSERT_TRUE(target::launch("send_rows", send_rows, shape, stream, exchange).ok());
      ASSERT_TRUE(target::launch("receive_rows", receive_rows, {}, stream, exchange).ok());
    }
  }
  const Status status = machine.synchronize();
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (int rank = 0; rank < kNumRanks; ++rank) {
    EXPECT_EQ(arenas[rank].step, kNumSteps);
    EXPECT_EQ(arenas[rank].num_wrong, 0u) << "rank " << rank;
  }
}

// What a single put, or the signal behind it, is refused for.
struct Attempt {
  Wire wire;
  int peer;
  std::byte* dst;
  std::byte* src;
  uint64_t bytes;
  uint64_t* cell;
};

std::string message_of(int peer, int64_t dst, int64_t src, uint64_t bytes, int64_t cell) {
  alignas(16) static std::byte memory[2][256];
  LocalWire wire({{memory[0], sizeof(memory[0])}, {memory[1], sizeof(memory[1])}});
  Machine machine;
  emulator::Stream* stream = machine.create_stream();
  auto kernel = +[](Attempt attempt) {
    if (target::thread_idx() != 0) return;
    target::wire_put(attempt.wire, attempt.peer, attempt.dst, attempt.src, attempt.bytes);
    target::wire_signal(attempt.wire, attempt.peer, attempt.cell, 1);
  };
  const Attempt attempt{wire.of_rank(0), peer,  memory[0] + dst,
                        memory[0] + src, bytes, reinterpret_cast<uint64_t*>(memory[0] + cell)};
  EXPECT_TRUE(target::launch("attempt", kernel, {}, stream, attempt).ok());
  return machine.synchronize().message();
}

TEST(Wire, WhatLiesOutsideAnArenaIsRefusedWithArgumentAndLimit) {
  EXPECT_EQ(message_of(1, 0, 128, 128, 248), "");
  const auto has = [](const std::string& message, const std::string& part) {
    return message.find(part) != std::string::npos && message.find("wire_test.cpp:") != std::string::npos;
  };
  EXPECT_TRUE(has(message_of(2, 0, 0, 4, 0), "peer is 2, but must be 0..1"));
  EXPECT_TRUE(has(message_of(1, 192, 0, 68, 0), "dst is 192 bytes behind the beginning of rank 0's arena"));
  EXPECT_TRUE(has(message_of(1, 192, 0, 68, 0), "for 68 bytes; it must lie in the arena's 256 bytes"));
  EXPECT_TRUE(has(message_of(1, 0, -4, 4, 0), "src is -4 bytes behind"));
  EXPECT_TRUE(has(message_of(1, 0, 0, 6, 0), "src is 0 bytes behind"));
  EXPECT_TRUE(has(message_of(1, 2, 0, 8, 0), "dst is 2 bytes behind"));
  EXPECT_TRUE(has(message_of(1, 0, 0, 4, 256), "cell is 256 bytes behind"));
  EXPECT_TRUE(has(message_of(1, 0, 0, 4, 4), "both be multiples of 8"));
}

}  // namespace
}  // namespace switchyard
