// Tokens in shared memory: the carriers of a block, a warp each, prefetch the block's tokens into their
// stages by bulk loads, a turn ahead of the tokens that they send.
#pragma once

#include "switchyard/detail/ep/direct/dispatch_shared.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The tokens of this block.
struct TokenRange {
  int begin;
  int end;

  SWITCHYARD_DEVICE static TokenRange of_block(int num_tokens) {
    return {first_of(target::block_idx(), num_tokens), first_of(target::block_idx() + 1, num_tokens)};
  }
  SWITCHYARD_DEVICE int size() const { return end - begin; }

 private:
  // Ids, and the product of tokens and blocks, stay below 2^32: 32-bit divisions are faster.
  SWITCHYARD_DEVICE static int first_of(int block_idx, int num_tokens) {
    return static_cast<int>(static_cast<uint32_t>(num_tokens) * static_cast<uint32_t>(block_idx) /
                            static_cast<uint32_t>(target::num_blocks()));
  }
};

template <FixedShape Fixed>
struct StagedTokens {
  const void* input_tokens;
  const uint32_t token_bytes;   // to load of each
  const uint32_t token_stride;  // bytes from a token to the next
  const DirectStages stages;
  const TokenRange tokens;
  DirectDispatchShared& shared;
  const Carriers carriers = Carriers::share(tokens.size(), stages, target::num_warps());

  SWITCHYARD_DEVICE bool is_carrier() const { return target::warp_idx() < carriers.num_carriers; }
  SWITCHYARD_DEVICE int token_of_turn(int turn) const {
    return tokens.begin + target::warp_idx() + turn * carriers.num_carriers;
  }
  SWITCHYARD_DEVICE bool has_turn(int turn) const { return token_of_turn(turn) < tokens.end; }

  // The addresses of the turn's token, of its codes and of its scales.
  SWITCHYARD_DEVICE std::byte* token(int turn) const {
    return stages.stage(shared.stage_memory(), stage_of_turn(turn));
  }
  SWITCHYARD_DEVICE std::byte* codes(int turn) const {
    return stages.codes(shared.stage_memory(), stage_of_turn(turn));
  }
  SWITCHYARD_DEVICE std::byte* scales(int turn) const {
    return stages.scales(shared.stage_memory(), stage_of_turn(turn));
  }

  // A sync_block must follow.
  SWITCHYARD_DEVICE void init() const {
    if (target::thread_idx() < carriers.num_carriers * carriers.stages_each)
      shared.loaded[target::thread_idx()].init(1);
  }

  SWITCHYARD_DEVICE void start_load(int turn) const {
    if (target::lane_idx() != 0 || !has_turn(turn)) return;
    target::TransferBarrier& barrier = shared.loaded[stage_of_turn(turn)];
    barrier.arrive_expect(token_bytes);
    target::bulk_load(token(turn),
                      static_cast<const std::byte*>(input_tokens) +
                          static_cast<uint64_t>(token_of_turn(turn)) * token_stride,
                      token_bytes, barrier);
  }
  SWITCHYARD_DEVICE void await_load(int turn) const {
    target::wait_until([&] { return shared.loaded[stage_of_turn(turn)].done(carriers.parity_of_turn(turn)); },
                       kNoDeadline);
  }

  SWITCHYARD_DEVICE void start_loads() const {
    if (!is_carrier()) return;
    SWITCHYARD_ROLLED
    for (int turn = 0; turn < carriers.stages_each; ++turn) start_load(turn);
  }
  // A block must not end while loads into its shared memory are in flight.
  SWITCHYARD_DEVICE void drain_loads() const {
    if (!is_carrier()) return;
    const int num_loads = mutate<Fixed, LogicMutant::kLoadsNotDrained>(carriers.stages_each, 0);
    SWITCHYARD_ROLLED
    for (int turn = 0; turn < num_loads && has_turn(turn); ++turn) await_load(turn);
  }

 private:
  SWITCHYARD_DEVICE int stage_of_turn(int turn) const {
    return carriers.stage_of_turn(target::warp_idx(), turn);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
