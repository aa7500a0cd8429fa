// dispatch_async, direct protocol: ranks tell each other how many rows they have for every expert; from that
// each computes where every row of its own goes, and bulk copies carry a token from shared memory straight
// to its top_k rows. Rows are ordered by expert, then source rank, then token, then k; no atomic decides.
#pragma once

#include "switchyard/detail/ep/direct/carry_encoded.hpp"
#include "switchyard/detail/ep/direct/id_counts.hpp"
#include "switchyard/detail/ep/direct/staged_scales.hpp"
#include "switchyard/detail/ep/direct/stages.hpp"
#include "switchyard/detail/ep/direct/wait_for_step.hpp"
#include "switchyard/detail/ep/pair_table.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct alignas(128) DirectDispatchShared {
  static constexpr int kMaxNumbers = 1024;

  uint32_t num_before[kMaxExperts + 1];     // rows that blocks before this one send to each expert
  uint32_t num_from_here[kMaxExperts + 1];  // and this one and those behind it; then the shared expert's
  uint32_t next_row[kMaxExperts];           // of this block, counted from this rank's first of the expert
  uint32_t my_first_row[kMaxExperts];       // where this rank's rows of each expert begin on its owner
  uint32_t first_row[kMaxExperts];          // other ranks' rows of each expert, then where it begins there
  uint32_t numbers[kMaxNumbers];            // of the block's first ids: see number_of()
  uint32_t shared_rows[kMaxRanks];          // of each rank's shared expert, aligned
  uint32_t num_own_rows;
  target::TransferBarrier loaded[DirectStages::kMaxStages];
  bool is_last_block;
  // Behind it: DirectStages, as many as the launch gave room for.

  // What to give a launch that may have `limit`.
  template <typename Format>
  SWITCHYARD_HD static constexpr uint64_t bytes(const Format& format, int hidden, uint64_t limit);
};
template <typename Format>
SWITCHYARD_HD constexpr uint64_t DirectDispatchShared::bytes(const Format& format, int hidden,
                                                             uint64_t limit) {
  return sizeof(DirectDispatchShared) +
         DirectStages::of(format, hidden, limit - sizeof(DirectDispatchShared)).bytes();
}

template <FixedShape Fixed, typename FormatOf>
struct DirectDispatchAsync {
  using Format = FormatOf;
  using Params = DispatchParams<Format>;

  const Params& params;
  // Loaded first and looked at later: loads take their time, and so does working out all the rest.
  const uint32_t step = 1 + static_cast<uint32_t>(target::ld(DirectCounters{params.ep_counters}.num_steps()));
  const bool is_well = finds_no_poison(params.fault);
  const IdBatch first_ids =
      IdBatch::load(params.topk_ids, ShapeOf<Fixed>{params.shape}.top_k() * params.num_tokens, 0);
  ShapeOf<Fixed> shape{params.shape};
  DirectCounters counters{params.ep_counters};
  DirectDispatchShared& shared = target::shared_storage<DirectDispatchShared>();
  const uint32_t token_bytes =
      static_cast<uint32_t>(shape.hidden()) * static_cast<uint32_t>(sizeof(typename Format::Input));
  const uint32_t row_bytes = output_row_bytes(params.format, token_bytes);
  const DirectStages stages =
      DirectStages::of(params.format, shape.hidden(), target::shared_bytes() - sizeof(DirectDispatchShared));
  // The tokens of this block.
  const int token_begin = first_token_of(target::block_idx());
  const int token_end = first_token_of(target::block_idx() + 1);
  const Carriers carriers = Carriers::share(token_end - token_begin, stages, target::num_warps());

  SWITCHYARD_DEVICE explicit DirectDispatchAsync(const Params& params_in) : params(params_in) {}

  // Tokens go as they are, or become rows of their own size.
  SWITCHYARD_DEVICE static uint32_t output_row_bytes(const Format& format, uint32_t token_bytes) {
    if constexpr (EncodedRowFormat<Format>)
      return format.row_bytes();
    else
      return token_bytes;
  }
  // Where the stages are.
  SWITCHYARD_DEVICE std::byte* room() const { return reinterpret_cast<std::byte*>(&shared + 1); }

  // Ids and the product of tokens and blocks stay below 2^32, which divides faster than more would.
  SWITCHYARD_DEVICE int first_token_of(int block_idx) const {
    return static_cast<int>(static_cast<uint32_t>(params.num_tokens) * static_cast<uint32_t>(block_idx) /
                            static_cast<uint32_t>(target::num_blocks()));
  }
  SWITCHYARD_DEVICE int first_id() const { return token_begin * shape.top_k(); }
  SWITCHYARD_DEVICE int id_end() const { return token_end * shape.top_k(); }

  SWITCHYARD_DEVICE void run() {
    const int first_expert = expert_of_turn(0);
    begin();
    start_loads();  // the first tokens are on their way while the ranks agree where they go
    if (!count_rows()) return drain_loads();  // an earlier step broke and was not reset
    send_counts();
    rank_rows();                                  // while the counts are on their way
    if (!collect_counts()) return drain_loads();  // a fault: the host resets everything
    if (!place_experts()) {
      drain_loads();
    } else {
      place_rows();
      if constexpr (EncodedRowFormat<Format>)
        CarryEncoded<DirectDispatchAsync>(*this).run(first_expert);
      else
        carry_rows(first_expert);
    }
    finish();
  }

  SWITCHYARD_DEVICE void begin() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kBegin);
    SWITCHYARD_ROLLED
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads()) {
      shared.num_before[expert_idx] = 0;
      shared.num_from_here[expert_idx] = 0;
      shared.my_first_row[expert_idx] = 0;
      shared.first_row[expert_idx] = 0;
    }
    if (target::thread_idx() == 0) {
      shared.num_before[shape.n_experts()] = 0;
      shared.num_from_here[shape.n_experts()] = static_cast<uint32_t>(params.shared_expert.num_tokens);
    }
    SWITCHYARD_ROLLED
    for (int rank = target::thread_idx(); rank < shape.n_ranks(); rank += target::num_threads())
      shared.shared_rows[rank] = rank == params.my_rank
                                     ? align_up(static_cast<uint32_t>(params.shared_expert.num_tokens),
                                                params.format.row_alignment())
                                     : 0;
    if (target::thread_idx() < carriers.num_carriers * carriers.stages_each)
      shared.loaded[target::thread_idx()].init(1);
    target::sync_block();
  }

  // Counts this rank's rows per expert. Says whether all threads of the block are well.
  SWITCHYARD_DEVICE bool count_rows() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kCountRows);
    const IdCounts<Fixed> counts{shape,      params.topk_ids,   params.num_tokens * shape.top_k(),
                                 first_id(), shared.num_before, shared.num_from_here};
    const int largest_id = counts.count(first_ids);
    if (kChecked && !shape.is_id(largest_id)) report_bad_id(largest_id);
    return sync_block_all_well(is_well);
  }
  SWITCHYARD_DEVICE uint32_t num_rows(int expert_idx) const {
    return shared.num_before[expert_idx] + shared.num_from_here[expert_idx];
  }

  SWITCHYARD_DEVICE void report_bad_id(int id) const {
    if (target::block_idx() != 0) return;
    raise_fault(params.fault, FaultKind::kBadExpertId,
                {Phase::kDispatchAsync, params.my_rank, -1, static_cast<uint64_t>(shape.num_ids())},
                static_cast<uint64_t>(static_cast<int64_t>(id)), 0);
  }

  // Of the experts, and of the shared one where there is one.
  SWITCHYARD_DEVICE int num_counts() const { return shape.n_experts() + params.shared_expert.num_groups; }
  SWITCHYARD_DEVICE CountTableLayout count_table() const { return {shape.n_ranks(), num_counts()}; }

  SWITCHYARD_DEVICE CountCell own_cell(int cell_idx) const {
    const int expert_idx = cell_idx * CountCell::kExperts;
    const uint32_t next_count = expert_idx + 1 < num_counts() ? num_rows(expert_idx + 1) : 0;
    return {step, {num_rows(expert_idx), next_count}};
  }

  // Every block tells some of the other ranks. This one's blocks have all counted for themselves.
  SWITCHYARD_DEVICE void send_counts() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kSendCounts);
    SWITCHYARD_ROLLED
    for (int rank = target::block_idx(); rank < shape.n_ranks(); rank += target::num_blocks()) {
      if (rank == params.my_rank) continue;
      SWITCHYARD_ROLLED
      for (int cell_idx = target::thread_idx(); cell_idx < count_table().cells_per_rank();
           cell_idx += target::num_threads())
        // release MM-08: this rank has done with the step before, so its rows and expert output may be
        // written over; pairs with the acquire in collect_counts() over there
        target::st_release(params.signal_scope,
                           count_table().cell(params.count_tables.of_rank[rank], params.my_rank, cell_idx),
                           own_cell(cell_idx).pack());
    }
  }

  // Waits for the counts of the other ranks and sums them up.
  SWITCHYARD_DEVICE bool collect_counts() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kCollectCounts);
    bool arrived = true;
    const int num_waiting = target::num_warps() == 1 ? kWarpSize : target::num_threads() - kWarpSize;
    const int cells_per_rank = count_table().cells_per_rank();
    SWITCHYARD_ROLLED
    for (int idx = target::thread_idx();
         target::thread_idx() < num_waiting && idx < (shape.n_ranks() - 1) * cells_per_rank;
         idx += num_waiting) {
      const int other_rank = idx / cells_per_rank, cell_idx = idx - other_rank * cells_per_rank;
      const int src_rank = other_rank + (other_rank >= params.my_rank);
      const int expert_idx = cell_idx * CountCell::kExperts;
      const uint64_t* address =
          count_table().cell(params.count_tables.of_rank[params.my_rank], src_rank, cell_idx);
      CountCell cell{};
      arrived &= mutate<Fixed, LogicMutant::kCountsNotAwaited>(
          [&] {
            // acquire MM-08: the rank has done with the step before; pairs with the release in its
            // send_counts()
            return wait_for_step(params.fault, Phase::kDispatchAsync, src_rank, -1, step, address, cell);
          },
          [&] {
            cell = CountCell::unpack(target::ld_acquire_system(address));
            return true;
          });
      for (int i = 0; i < CountCell::kExperts; ++i) add_count(src_rank, expert_idx + i, cell.counts[i]);
    }
    return sync_block_all_well(arrived);
  }
  SWITCHYARD_DEVICE void add_count(int src_rank, int expert_idx, uint32_t count) {
    if (count == 0) return;
    if (expert_idx == shape.n_experts()) {
      shared.shared_rows[src_rank] = align_up(count, uint32_t{params.format.row_alignment()});
      return;
    }
    target::atomic_add_relaxed_block(&shared.first_row[expert_idx], count);
    if (src_rank < mutate<Fixed, LogicMutant::kPlacedWithoutRanksBefore>(params.my_rank, 0))
      target::atomic_add_relaxed_block(&shared.my_first_row[expert_idx], count);
  }

  // Where each expert's rows begin on its owner. False if they do not fit, on any rank: all ranks see the
  // same counts, so all of them skip the step.
  SWITCHYARD_DEVICE bool place_experts() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kPlaceExperts);
    bool is_too_much = false;
    for (int owner = target::warp_idx(); owner < shape.n_ranks(); owner += target::num_warps())
      is_too_much |= !fits(owner, place_experts_of(owner));
    const bool is_skipped = target::sync_block_any(is_too_much);
    if (target::block_idx() == 0) publish_offsets(is_skipped);
    return !is_skipped;
  }
  // Lays an owner's experts end to end behind its shared expert. By a warp; all rows of the owner.
  SWITCHYARD_DEVICE uint32_t place_experts_of(int owner) {
    const uint32_t alignment = params.format.row_alignment();
    const int first_expert = owner * shape.n_local_experts();
    const ScanRun run(shape.n_local_experts(), target::lane_idx(), kWarpSize);
    const auto rows_of = [&](int expert_idx) {
      return align_up(shared.first_row[expert_idx] + num_rows(expert_idx), alignment);
    };
    uint32_t num_owned = 0;
    SWITCHYARD_ROLLED
    for (int i = run.begin; i < run.end; ++i) num_owned += rows_of(first_expert + i);
    const uint32_t row_end = shared.shared_rows[owner] + warp_inclusive_sum(num_owned);
    uint32_t row = row_end - num_owned;
    SWITCHYARD_ROLLED
    for (int expert_idx = first_expert + run.begin; expert_idx < first_expert + run.end; ++expert_idx) {
      const uint32_t next_row = row + rows_of(expert_idx);
      shared.first_row[expert_idx] = row;
      shared.my_first_row[expert_idx] += row;
      row = next_row;
    }
    return target::shuffle(row_end, kWarpSize - 1);
  }
  // Whether the owner has room. By a warp.
  SWITCHYARD_DEVICE bool fits(int owner, uint32_t num_rows) {
    if (owner == params.my_rank && target::lane_idx() == 0) shared.num_own_rows = num_rows;
    const uint32_t capacity =
        mutate<Fixed, LogicMutant::kCapacityOffByOne>(params.max_rows, params.max_rows + 1);
    if (mutate<Fixed, LogicMutant::kCapacityOfOwnRankOnly>(num_rows <= capacity,
                                                           num_rows <= capacity || owner != params.my_rank))
      return true;
    if (target::block_idx() == 0 && target::lane_idx() == 0)
      record_fault(*params.fault.skipped, params.my_rank, FaultKind::kOverCapacity,
                   {Phase::kDispatchAsync, owner, -1, params.max_rows}, num_rows, 0);
    return false;
  }

  SWITCHYARD_DEVICE void publish_offsets(bool is_skipped) {
    const uint32_t* first_row = shared.first_row + params.my_rank * shape.n_local_experts();
    const int first_group = params.shared_expert.num_groups;
    SWITCHYARD_ROLLED
    for (int expert_idx = target::thread_idx(); expert_idx <= shape.n_local_experts();
         expert_idx += target::num_threads()) {
      const uint32_t row = expert_idx < shape.n_local_experts() ? first_row[expert_idx] : shared.num_own_rows;
      target::st(counters.row_offset(first_group + expert_idx), is_skipped ? 0 : static_cast<int32_t>(row));
    }
    if (target::thread_idx() != 0) return;
    if (first_group > 0) target::st(counters.row_offset(0), 0);
    target::st(counters.is_skipped(), static_cast<int32_t>(is_skipped));
  }

  // The warp that numbers rows; where there are others, those wait for the counts.
  SWITCHYARD_DEVICE bool is_ranker() const { return target::warp_idx() == target::num_warps() - 1; }

  // Ids of the block that the ranker has in hand at once.
  struct RankedIds {
    static constexpr int kWarpfuls = 8;
    int experts[kWarpfuls];
  };
  SWITCHYARD_DEVICE RankedIds load_ranked(int first_id) const {
    RankedIds ids;
    for (int i = 0; i < RankedIds::kWarpfuls; ++i) {
      const int id_idx = first_id + i * kWarpSize + target::lane_idx();
      ids.experts[i] = id_idx < id_end() ? expert_of(id_idx) : -1;
    }
    return ids;
  }

  // Numbers this block's rows of each expert in the order of (token, k), from where the blocks before it end.
  // By one warp. Only next_row ties one warpful of ids to the next: everything else is done ahead.
  SWITCHYARD_DEVICE void rank_rows() {
    if (!is_ranker()) return;
    RankedIds ids = load_ranked(first_id());
    SWITCHYARD_ROLLED
    for (int expert_idx = target::lane_idx(); expert_idx < shape.n_experts(); expert_idx += kWarpSize)
      shared.next_row[expert_idx] = shared.num_before[expert_idx];
    target::sync_warp();
    for (int first = first_id(); first < id_end();) {
      uint32_t same[RankedIds::kWarpfuls];
      for (int i = 0; i < RankedIds::kWarpfuls; ++i)
        same[i] = target::match_any(static_cast<uint32_t>(ids.experts[i]));
      const int next = first + RankedIds::kWarpfuls * kWarpSize;
      const RankedIds next_ids = load_ranked(next);
      for (int i = 0; i < RankedIds::kWarpfuls && first + i * kWarpSize < id_end(); ++i)
        rank_warpful(first + i * kWarpSize + target::lane_idx(), ids.experts[i], same[i]);
      first = next;
      ids = next_ids;
    }
  }

  // `same`: the lanes that have this expert.
  SWITCHYARD_DEVICE void rank_warpful(int id_idx, int expert_idx, uint32_t same) {
    const uint32_t same_below = same & ((1u << target::lane_idx()) - 1);
    const uint32_t next_row = expert_idx >= 0 ? shared.next_row[expert_idx] : 0;
    target::sync_warp();
    if (expert_idx >= 0) {
      if (same_below == 0)
        shared.next_row[expert_idx] = next_row + static_cast<uint32_t>(target::popcount(same));
      target::st(number_of(id_idx), next_row + static_cast<uint32_t>(target::popcount(same_below)));
    }
    target::sync_warp();
  }

  SWITCHYARD_DEVICE int expert_of(int id_idx) const { return shape.expert_of_id(params.topk_ids[id_idx]); }

  // Where a row's number among this rank's rows of its expert waits for the counts: here if all of the block
  // fit, else where the row's place will be.
  SWITCHYARD_DEVICE bool has_numbers_here() const {
    return id_end() - first_id() <= DirectDispatchShared::kMaxNumbers;
  }
  SWITCHYARD_DEVICE uint32_t* number_of(int id_idx) const {
    return has_numbers_here() ? &shared.numbers[id_idx - first_id()] : &params.row_of[id_idx];
  }

  // Every (token, k) of this block gets its row on the expert's owner. All at once: src_info is written in
  // pieces smaller than memory likes, which the caches join only if they come together. Carriers need not
  // wait for it if they can find their rows themselves.
  SWITCHYARD_DEVICE void place_rows() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kPlaceRows);
    const bool leaves_out_carriers = finds_rows_itself();
    if (leaves_out_carriers && is_carrier()) return;
    const int num_left_out = leaves_out_carriers ? carriers.num_carriers * kWarpSize : 0;
    SWITCHYARD_ROLLED
    for (int id_idx = first_id() + target::thread_idx() - num_left_out; id_idx < id_end();
         id_idx += target::num_threads() - num_left_out) {
      const int expert_idx = expert_of(id_idx);
      if (expert_idx < 0) continue;
      const uint32_t row = shared.my_first_row[expert_idx] + target::ld(number_of(id_idx));
      target::st(&params.row_of[id_idx], row);
      const int token_idx = id_idx / shape.top_k(), k = id_idx - token_idx * shape.top_k();
      const uint64_t src_info = static_cast<uint64_t>(k) << 32 | static_cast<uint64_t>(token_idx);
      const int owner = shape.owner_rank(expert_idx);
      target::st(reinterpret_cast<uint64_t*>(params.src_infos.of_rank[owner]) + row, src_info);
      tell_scale_source(owner, row, token_idx, k);
    }
    if (!leaves_out_carriers) target::sync_block();
  }

  // Whether a carrier can do without place_rows(), which others do meanwhile.
  SWITCHYARD_DEVICE bool finds_rows_itself() const {
    return has_numbers_here() && carriers.num_carriers < target::num_warps();
  }
  SWITCHYARD_DEVICE bool is_carrier() const { return target::warp_idx() < carriers.num_carriers; }
  SWITCHYARD_DEVICE int token_of_turn(int turn) const {
    return token_begin + target::warp_idx() + turn * carriers.num_carriers;
  }
  SWITCHYARD_DEVICE int stage_of_turn(int turn) const {
    return carriers.stage_of_turn(target::warp_idx(), turn);
  }

  SWITCHYARD_DEVICE void start_load(int turn) {
    if (target::lane_idx() != 0 || token_of_turn(turn) >= token_end) return;
    target::TransferBarrier& barrier = shared.loaded[stage_of_turn(turn)];
    barrier.arrive_expect(token_bytes);
    target::bulk_load(stages.stage(room(), stage_of_turn(turn)),
                      static_cast<const std::byte*>(params.input_tokens) +
                          static_cast<uint64_t>(token_of_turn(turn)) * token_bytes,
                      token_bytes, barrier);
  }
  SWITCHYARD_DEVICE void await_load(int turn) {
    target::wait_until([&] { return shared.loaded[stage_of_turn(turn)].done(carriers.parity_of_turn(turn)); },
                       kNoDeadline);
  }

  SWITCHYARD_DEVICE void start_loads() {
    if (!is_carrier()) return;
    SWITCHYARD_ROLLED
    for (int turn = 0; turn < carriers.stages_each; ++turn) start_load(turn);
  }
  // A block must not end while something is being written into its shared memory.
  SWITCHYARD_DEVICE void drain_loads() {
    if (!is_carrier()) return;
    const int num_loads = mutate<Fixed, LogicMutant::kLoadsNotDrained>(carriers.stages_each, 0);
    SWITCHYARD_ROLLED
    for (int turn = 0; turn < num_loads && token_of_turn(turn) < token_end; ++turn) await_load(turn);
  }

  SWITCHYARD_DEVICE void carry_rows(int first_expert) {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kCarryRows);
    if (!is_carrier()) return;
    target::fence_proxy_async();  // who read the rows of the step before did so by ordinary loads
    std::byte* row = row_of_turn(0, first_expert);
    for (int turn = 0; token_of_turn(turn) < token_end; ++turn) {
      if (turn > 0) {
        // The stage that the last turn's copies have read takes the next token in.
        target::bulk_wait_read<mutate<Fixed, LogicMutant::kDirectStageNotWaitedFor>(0, 1)>();
        target::sync_warp();
        start_load(turn + carriers.stages_each - 1);
      }
      await_load(turn);
      carry(turn, row);
      target::bulk_commit();
      row = row_of_turn(turn + 1, expert_of_turn(turn + 1));  // while the copies are under way
    }
    target::bulk_wait<0>();
  }

  // Starts the copies of the token in the turn's stage: lane k to its row, and lane 0 to the shared expert's.
  SWITCHYARD_DEVICE void carry(int turn, std::byte* row) {
    const std::byte* stage = stages.stage(room(), stage_of_turn(turn));
    const int shared_row = params.shared_expert.row_of(token_of_turn(turn));
    if (row != nullptr) target::bulk_store(row, stage, row_bytes);
    if (shared_row < 0 || target::lane_idx() != 0) return;
    target::bulk_store(row_at(params.my_rank, static_cast<uint32_t>(shared_row)), stage, row_bytes);
    tell_shared_row(token_of_turn(turn), shared_row);
  }
  SWITCHYARD_DEVICE void tell_shared_row(int token_idx, int shared_row) const {
    target::st(reinterpret_cast<uint64_t*>(params.src_infos.of_rank[params.my_rank]) + shared_row,
               uint64_t{UINT32_MAX} << 32 | static_cast<uint32_t>(token_idx));
    mutate<Fixed, LogicMutant::kSharedScalesNotTold>(
        [&] {
          tell_scale_source(params.my_rank, static_cast<uint32_t>(shared_row), token_idx, shape.top_k());
        },
        [] {});
  }
  // k is top_k for the shared expert.
  SWITCHYARD_DEVICE void tell_scale_source([[maybe_unused]] int owner, [[maybe_unused]] uint32_t row,
                                           [[maybe_unused]] int token_idx, [[maybe_unused]] int k) const {
    if constexpr (InterleavedTokenFormat<Format>)
      target::st(
          reinterpret_cast<uint32_t*>(params.recv_bufs.of_rank[owner] + params.scale_sources_offset) + row,
          ScaleSource{static_cast<uint32_t>(params.my_rank),
                      mutate<Fixed, LogicMutant::kScaleSourceOffByOne>(
                          token_scales().entry(token_idx, k), token_scales().entry(token_idx, k) + 1)}
              .pack());
  }
  SWITCHYARD_DEVICE TokenScalesLayout token_scales() const {
    return token_scales_layout(shape, params.format);
  }

  // Lane k: the expert that the token's choice k names; -1 if there is none.
  SWITCHYARD_DEVICE int expert_of_turn(int turn) const {
    const int token_idx = token_of_turn(turn);
    if (!is_carrier() || target::lane_idx() >= shape.top_k() || token_idx >= token_end) return -1;
    return expert_of(token_idx * shape.top_k() + target::lane_idx());
  }

  // Lane k: the row of the token's choice k on the expert's owner; null if there is none.
  SWITCHYARD_DEVICE std::byte* row_of_turn(int turn, int expert_idx) const {
    if (expert_idx < 0) return nullptr;
    return row_at(shape.owner_rank(expert_idx), row_idx_of_turn(turn, expert_idx));
  }
  SWITCHYARD_DEVICE uint32_t row_idx_of_turn(int turn, int expert_idx) const {
    const int id_idx = token_of_turn(turn) * shape.top_k() + target::lane_idx();
    return finds_rows_itself() ? shared.my_first_row[expert_idx] + target::ld(number_of(id_idx))
                               : target::ld(&params.row_of[id_idx]);
  }
  SWITCHYARD_DEVICE std::byte* row_at(int owner, uint32_t row_idx) const {
    return params.recv_bufs.of_rank[owner] + static_cast<uint64_t>(row_idx) * row_bytes;
  }

  // The last block tells the owners that this rank's rows are there, expert by expert.
  SWITCHYARD_DEVICE void finish() {
    const TraceSlice slice(params.fault.trace, Phase::kDispatchAsync, TraceName::kFinish);
    target::sync_block();
    if (target::thread_idx() == 0)
      // acq_rel MM-09: collects the copies of all blocks before the last one signals; pairs with itself in
      // the other blocks
      shared.is_last_block = target::atomic_add_acq_rel_device(counters.blocks_done(), 1) ==
                             mutate<Fixed, LogicMutant::kFirstBlockReady>(target::num_blocks() - 1, 0);
    target::sync_block();
    if (!shared.is_last_block) return;
    const DispatchCountLayout ready{shape.n_experts(), shape.n_ranks()};
    SWITCHYARD_ROLLED
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads())
      // release MM-10: hands the owner this rank's rows of the expert; pairs with the acquire in
      // dispatch_wait over there, and with who looks at the readiness of an expert before
      target::st_release(params.signal_scope,
                         ready.cell(params.recv_counts.of_rank[shape.owner_rank(expert_idx)],
                                    shape.local_expert(expert_idx), params.my_rank),
                         StepCell{step, num_rows(expert_idx)}.pack());
    if (target::thread_idx() == 0) target::st_relaxed_device(counters.blocks_done(), 0);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
