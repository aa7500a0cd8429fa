// Ranks that send each other rows over the wire, step after step: what the tests of the wire share.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "local_wire.hpp"
#include "machine.hpp"
#include "switchyard/detail/target/wire.hpp"

namespace switchyard::testing_support {

inline constexpr int kNumRanks = 3;
inline constexpr int kNumWarps = 4;
inline constexpr int kNumBlocks = 2;
inline constexpr int kRowWords = 5;  // 20 bytes: no multiple of 16

struct Arena {
  // [step % 2][rank that sends][block][warp]; two steps, as a rank may be one ahead.
  uint32_t rows[2][kNumRanks][kNumBlocks][kNumWarps][kRowWords];
  uint32_t staged[2][kNumRanks][kNumBlocks][kNumWarps][kRowWords];  // [..][rank that receives][..]
  // [step % 2][rank that sent]: signals of two steps may be in flight, and are not ordered.
  alignas(8) uint64_t arrived[2][kNumRanks];
  uint32_t num_blocks_done;
  alignas(8) uint64_t step;
  uint32_t num_wrong;
};

// The parameters of both kernels.
struct ExchangeRank {
  Wire wire;
  Arena* arena;
};

inline uint32_t word_of(uint64_t step, int src, int dst, int block_idx, int warp_idx, int i) {
  return static_cast<uint32_t>(
      ((((step * 7 + static_cast<uint64_t>(src)) * 7 + static_cast<uint64_t>(dst)) * 7 +
        static_cast<uint64_t>(block_idx)) *
           7 +
       static_cast<uint64_t>(warp_idx)) *
          7 +
      static_cast<uint64_t>(i));
}

// Each warp puts a row to each other rank; the last block settles and signals.
inline void send_rows(ExchangeRank exchange) {
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
    if (peer != rank) target::wire_signal(exchange.wire, peer, &arena.arrived[step % 2][rank], step);
}

inline void receive_rows(ExchangeRank exchange) {
  Arena& arena = *exchange.arena;
  const int rank = exchange.wire.rank;
  if (target::thread_idx() != 0) return;
  const uint64_t step = arena.step + 1;
  for (int src = 0; src < kNumRanks; ++src) {
    if (src == rank) continue;
    target::wait_until([&] { return target::ld_acquire_system(&arena.arrived[step % 2][src]) == step; },
                       kNoDeadline);
    for (int block_idx = 0; block_idx < kNumBlocks; ++block_idx)
      for (int warp_idx = 0; warp_idx < kNumWarps; ++warp_idx)
        for (int i = 0; i < kRowWords; ++i)
          arena.num_wrong += target::ld(&arena.rows[step % 2][src][block_idx][warp_idx][i]) !=
                             word_of(step, src, rank, block_idx, warp_idx, i);
  }
  arena.step = step;
}

class WireExchange {
 public:
  // Returns what went wrong, or nothing.
  std::string run(emulator::Machine& machine, uint64_t num_steps) {
    for (int rank = 0; rank < kNumRanks; ++rank) {
      emulator::Stream* stream = machine.create_stream();
      const ExchangeRank exchange{wire_.of_rank(rank), &arenas_[static_cast<size_t>(rank)]};
      const LaunchShape shape{.num_blocks = kNumBlocks, .num_threads = kNumWarps * kWarpSize};
      for (uint64_t step = 0; step < num_steps; ++step) {
        EXPECT_TRUE(target::launch("send_rows", send_rows, shape, stream, exchange).ok());
        EXPECT_TRUE(target::launch("receive_rows", receive_rows, {}, stream, exchange).ok());
      }
    }
    const Status status = machine.synchronize();
    if (!status.ok()) return status.to_string();
    for (const Arena& arena : arenas_)
      if (arena.step != num_steps || arena.num_wrong != 0)
        return std::to_string(arena.num_wrong) + " wrong words in " + std::to_string(arena.step) + " steps";
    return "";
  }

 private:
  std::vector<emulator::WireArena> arena_of_rank() {
    std::vector<emulator::WireArena> of_rank;
    for (Arena& arena : arenas_) of_rank.push_back({reinterpret_cast<std::byte*>(&arena), sizeof(Arena)});
    return of_rank;
  }

  std::vector<Arena> arenas_{kNumRanks};
  emulator::LocalWire wire_{arena_of_rank()};
};

}  // namespace switchyard::testing_support
