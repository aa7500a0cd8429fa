// What the ranks of the direct protocol exchange besides rows. Every cell carries the number of the step it
// belongs to, so nothing is ever reset: a cell that holds another step's number says that nothing has arrived
// yet.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/ep/shape.hpp"

namespace switchyard {

// Steps count from 1, so that zeroed cells belong to none. The number may wrap: only equality is tested.
struct StepCell {
  uint32_t step;
  uint32_t value;

  SWITCHYARD_HD static constexpr uint32_t step_bits(uint32_t step) { return step; }
  SWITCHYARD_HD constexpr uint64_t pack() const { return uint64_t{step} << 32 | value; }
  SWITCHYARD_HD static constexpr StepCell unpack(uint64_t cell) {
    return {static_cast<uint32_t>(cell >> 32), static_cast<uint32_t>(cell)};
  }
};

// The rows that a rank sends to two neighbouring experts, with the lower bits of the step's number: cells are
// written in every step, so they need only tell a step from the previous one.
struct CountCell {
  static constexpr int kExperts = 2;
  static constexpr uint32_t kMaxCount = (1u << 24) - 1;
  // In the place of the first expert's count: the rank has called the step off.
  static constexpr uint32_t kCalledOff = kMaxCount;

  uint32_t step;
  uint32_t counts[kExperts];

  SWITCHYARD_HD static constexpr uint32_t step_bits(uint32_t step) { return step & 0xffffu; }
  SWITCHYARD_HD constexpr uint64_t pack() const {
    return uint64_t{step_bits(step)} << 48 | uint64_t{counts[1]} << 24 | counts[0];
  }
  SWITCHYARD_HD static constexpr CountCell unpack(uint64_t cell) {
    return {static_cast<uint32_t>(cell >> 48),
            {static_cast<uint32_t>(cell) & kMaxCount, static_cast<uint32_t>(cell >> 24) & kMaxCount}};
  }
};

static_assert(uint64_t{kMaxTokensPerRank} * kMaxTopK < CountCell::kCalledOff);

// A rank stores the scales of so many neighbouring rows at once, where their tensor interleaves rows.
inline constexpr uint32_t kScaleBandRows = 128;

// uint64 [n_ranks][cells_per_rank()], a CountCell each, a copy on every rank.
struct CountTableLayout {
  int n_ranks;
  int num_counts;  // of a rank: one per expert, and one of the shared expert

  SWITCHYARD_HD int cells_per_rank() const { return ceil_div(num_counts, CountCell::kExperts); }
  CheckedSize bytes() const {
    return CheckedSize(n_ranks) * CheckedSize(cells_per_rank()) * CheckedSize(sizeof(uint64_t));
  }
  SWITCHYARD_HD uint64_t* cell(uint64_t* base, int src_rank, int cell_of_rank) const {
    return base + static_cast<int64_t>(src_rank) * cells_per_rank() + cell_of_rank;
  }
};

// uint64 [n_ranks]: where in its memory each rank's expert output lies, in units of 16 bytes. Behind them,
// uint64 [n_ranks]: the address by which the reader finds an output that lies elsewhere. Behind these, uint64
// [n_experts + 1], a StepCell each: the outputs of the expert, or of the reader's own shared expert, are
// complete; only combines that begin while experts work look at them. Behind these, uint64 [n_ranks], a
// StepCell each: the rank has read this rank's expert rows; only combines that await their readers look.
struct OutputCellLayout {
  int n_ranks;
  int n_experts;  // of all ranks
  static constexpr uint32_t kUnit = 16;
  static constexpr uint32_t kElsewhere = UINT32_MAX;

  CheckedSize bytes() const {
    return CheckedSize(3 * n_ranks + n_experts + 1) * CheckedSize(sizeof(uint64_t));
  }
  SWITCHYARD_HD uint64_t* address(uint64_t* cells, int rank) const { return cells + n_ranks + rank; }
  SWITCHYARD_HD uint64_t* expert(uint64_t* cells, int expert_idx) const {
    return cells + 2 * n_ranks + expert_idx;
  }
  SWITCHYARD_HD uint64_t* shared_expert(uint64_t* cells) const { return expert(cells, n_experts); }
  SWITCHYARD_HD uint64_t* reader(uint64_t* cells, int rank) const {
    return expert(cells, n_experts + 1 + rank);
  }
};

// The counters of the direct protocol by name, in dispatch_async's region of EPLocalSyncCounters. All but the
// three numbers of blocks last from one kernel to the next.
struct DirectCounters {
  int32_t* ptr;

  template <int n_experts>
  SWITCHYARD_HD constexpr explicit DirectCounters(const EPLocalSyncCounters<n_experts>& counters)
      : ptr(counters.get_dispatch_async_ptr()) {}

  // The number of steps whose dispatch has ended.
  SWITCHYARD_HD int32_t* num_steps() const { return ptr; }
  SWITCHYARD_HD int32_t* blocks_done() const { return ptr + 1; }
  // 1: the step does not fit on some rank, or a rank has called it off, so no rank moves a row.
  SWITCHYARD_HD int32_t* is_skipped() const { return ptr + 2; }
  // The number of blocks that have finished dispatch_wait.
  SWITCHYARD_HD int32_t* blocks_waited() const { return ptr + 3; }
  // The number of blocks of a combine that have read all rows they need.
  SWITCHYARD_HD int32_t* blocks_read() const { return ptr + 4; }
  // The first rows of this rank's groups: the shared expert's, the local experts', and then the total.
  SWITCHYARD_HD int32_t* row_offset(int group_idx) const { return ptr + kRowOffsets + group_idx; }

 private:
  static constexpr int kRowOffsets = 5;
  // A shared expert, the experts (all are local to a single rank) and the total; the region grows faster.
  static_assert(kRowOffsets + 1 + 1 + 1 <= SyncCounterLayout{1}.dispatch_async_size());
};

// The rows that a token has on one rank are siblings; they are linked in the order of k. What a sender stores
// beside a row: whether it is the first of its siblings, and which one comes next.
struct RowLink {
  static constexpr uint32_t kFirstBit = 1u << 31;
  static constexpr uint32_t kNone = kFirstBit - 1;

  bool is_first;
  uint32_t next_row;  // kNone: this is the last

  SWITCHYARD_HD constexpr uint32_t pack() const { return (is_first ? kFirstBit : 0) | next_row; }
  SWITCHYARD_HD static constexpr RowLink unpack(uint32_t bits) {
    return {(bits & kFirstBit) != 0, bits & kNone};
  }
};

// Whose scales a row has: a rank, and the index of the entry that it keeps.
struct ScaleSource {
  static constexpr int kEntryBits = 23;
  static_assert(kMaxRanks <= 1 << (32 - kEntryBits));
  static_assert(uint64_t{kMaxTokensPerRank} * (kMaxTopK + 1) < uint64_t{1} << kEntryBits);

  // The scales have been put beside the rows (FarDispatchPart::arrived_scales).
  static constexpr uint32_t kArrived = (1u << kEntryBits) - 1;

  uint32_t rank, entry;

  SWITCHYARD_HD constexpr uint32_t pack() const { return rank << kEntryBits | entry; }
  SWITCHYARD_HD static constexpr ScaleSource unpack(uint32_t bits) {
    return {bits >> kEntryBits, bits & ((1u << kEntryBits) - 1)};
  }
};

// The same where tokens are carried once to each rank (RowDelivery::kReceiver). The scales of a token come
// with it, to where the expert output of its first row will be, and its siblings find them there too. Those
// of a rank's own tokens are the entries that it keeps.
struct SiblingScales {
  static constexpr uint32_t kArrivedBit = 1u << 31;

  bool have_arrived;
  uint32_t index;  // of the first sibling's row, or of the entry

  SWITCHYARD_HD constexpr uint32_t pack() const { return (have_arrived ? kArrivedBit : 0) | index; }
  SWITCHYARD_HD static constexpr SiblingScales unpack(uint32_t bits) {
    return {(bits & kArrivedBit) != 0, bits & ~kArrivedBit};
  }
};

// The scales that a rank keeps: an entry per token; if experts have scales of their own, one per (token, k),
// and behind them one per token for the shared expert.
struct TokenScalesLayout {
  int max_tokens_per_rank;
  int top_k;
  bool is_by_expert;
  uint32_t entry_bytes;  // a multiple of 16

  SWITCHYARD_HD constexpr uint32_t num_entries() const {
    return static_cast<uint32_t>(max_tokens_per_rank) * static_cast<uint32_t>(is_by_expert ? top_k + 1 : 1);
  }
  // k is top_k for the shared expert.
  SWITCHYARD_HD constexpr uint32_t entry(int token_idx, int k) const {
    if (!is_by_expert) return static_cast<uint32_t>(token_idx);
    return k == top_k ? static_cast<uint32_t>(max_tokens_per_rank * top_k + token_idx)
                      : static_cast<uint32_t>(token_idx * top_k + k);
  }
  constexpr CheckedSize bytes() const { return CheckedSize(num_entries()) * CheckedSize(entry_bytes); }
};

}  // namespace switchyard
