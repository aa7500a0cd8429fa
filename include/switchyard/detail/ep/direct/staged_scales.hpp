// Scales in flight to a tensor that interleaves rows. With few tokens a sender stores them there. Otherwise
// it keeps those of its tokens, and stores for each row where they are; the row's owner fetches them.
#pragma once

#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/ep/reach.hpp"
#include "switchyard/detail/ep/tuning.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Whether kernels can store scales where they belong, on the rank that has the row.
template <typename Fixed, typename Format>
inline constexpr bool kCanSendScales =
    InterleavedTokenFormat<Format> && !kHasWire<Fixed> && !kLinksRows<Fixed> &&
    requires(const Format format, const std::byte* scales, int64_t row) {
  format.write_scales(scales, row, /*worker_idx=*/0, /*num_workers=*/1);
};
template <typename Fixed, typename Format>
SWITCHYARD_DEVICE bool sends_scales(const DispatchParams<DirectDispatchPart, Format>& params) {
  return kCanSendScales<Fixed, Format> && params.sends_scales;
}

// The layout of the scales that a rank keeps.
template <typename Shape, DispatchFormat Format>
SWITCHYARD_DEVICE TokenScalesLayout token_scales_layout(const Shape& shape, const Format& format) {
  return {shape.max_tokens_per_rank(), shape.top_k(), EncodesByExpert<Format>, scale_row_bytes(format)};
}

// Where the scales of a row arrive in a rank's recv_buf (SiblingScales).
SWITCHYARD_DEVICE std::byte* arrived_scales(const DirectDispatchPart& part, std::byte* recv_buf,
                                            uint32_t row_idx) {
  return recv_buf + part.arrived_scales_offset + uint64_t{row_idx} * part.arrived_scales_stride;
}

// Says which rows of masked groups have arrived, since most groups have few.
struct MaskedRows {
  uint32_t capacity;  // of a group; 0: they are not masked
  SharedExpertTokens shared_expert;
  const uint64_t* cells;  // [local expert][rank], a StepCell each
  int n_ranks;

  SWITCHYARD_DEVICE uint32_t rows_of(int group_idx) const {
    if (group_idx < shared_expert.num_groups) return static_cast<uint32_t>(shared_expert.num_tokens);
    const uint64_t* from = cells + (group_idx - shared_expert.num_groups) * n_ranks;
    uint32_t num_rows = 0;
    for (int rank = 0; rank < n_ranks; ++rank) num_rows += StepCell::unpack(target::ld(from + rank)).value;
    return num_rows;
  }
  SWITCHYARD_DEVICE bool has(int64_t row_idx) const {
    if (capacity == 0) return true;
    const uint32_t row = static_cast<uint32_t>(row_idx), group_idx = row / capacity;
    return row - group_idx * capacity < rows_of(static_cast<int>(group_idx));
  }
};

// A rank's rows, and where their scales are.
template <FixedShape Fixed>
struct StagedScales {
  const DispatchStep& step;
  const DirectDispatchPart& part;
  TokenScalesLayout layout;
  uint32_t n_ranks;
  uint32_t num_rows;
  MaskedRows masked;

  // Returns the address of a row's scales; null beyond the rows, and for a row that only fills up a masked
  // group. A row that aligns its expert's group has no source, or that of an earlier step, so its scales mean
  // nothing.
  SWITCHYARD_DEVICE const std::byte* row(int64_t row_idx) const {
    if (row_idx >= num_rows || !masked.has(row_idx)) return nullptr;
    const auto* sources = reinterpret_cast<const uint32_t*>(step.recv_bufs.mine + part.scale_sources_offset);
    const uint32_t note = target::ld(sources + row_idx);
    if constexpr (kLinksRows<Fixed>)
      if (part.carries_once) return sibling_scales(SiblingScales::unpack(note));
    const ScaleSource source = ScaleSource::unpack(note);
    if constexpr (kHasWire<Fixed>)
      if (source.entry == ScaleSource::kArrived)
        return part.wire.arrived_scales + static_cast<uint64_t>(row_idx) * layout.entry_bytes;
    if (source.rank >= n_ranks || source.entry >= layout.num_entries()) return nullptr;
    const std::byte* memory = peer_pointer<Fixed>(step, step.recv_bufs, static_cast<int>(source.rank));
    if (kHasWire<Fixed> && memory == nullptr) return nullptr;  // only a row that pads: far ranks put scales
    return memory + part.token_scales_offset + uint64_t{source.entry} * layout.entry_bytes;
  }

 private:
  SWITCHYARD_DEVICE const std::byte* sibling_scales(SiblingScales source) const {
    if (source.index >= (source.have_arrived ? step.max_rows : layout.num_entries())) return nullptr;
    return source.have_arrived
               ? arrived_scales(part, step.recv_bufs.mine, source.index)
               : step.recv_bufs.mine + part.token_scales_offset + uint64_t{source.index} * layout.entry_bytes;
  }
};

// Scales of neighbouring rows in shared memory, between senders and the tensor: they arrive row by row and
// are stored column by column, both in whole lines of memory. Rows are an odd number of vectors apart, so
// that a column's elements lie in different banks.
struct ScaleBand {
  static constexpr uint32_t kRows = kScaleBandRows;

  std::byte* stage_memory;
  uint32_t vectors_across;  // of each row
  int64_t first_row;
  uint32_t first_byte;

  SWITCHYARD_HD static constexpr uint32_t row_stride(uint32_t vectors_across) {
    return (vectors_across | 1u) * static_cast<uint32_t>(sizeof(Vec16));
  }
  SWITCHYARD_DEVICE std::byte* at(int64_t row_idx, uint32_t byte) const {
    return stage_memory + static_cast<uint64_t>(row_idx - first_row) * row_stride(vectors_across) +
           (byte - first_byte);
  }
  SWITCHYARD_DEVICE Vec16 load(int64_t row_idx, uint32_t byte) const {
    return target::ld_16(at(row_idx, byte));
  }

  // Starts the copies of all rows, each by a thread that arrives for it. The block's last threads come first:
  // the last warps have the least other work.
  template <typename Staged>
  SWITCHYARD_DEVICE void fill(const Staged& staged, target::TransferBarrier& filled) const {
    const uint32_t num_bytes = vectors_across * static_cast<uint32_t>(sizeof(Vec16));
    for (int i = target::num_threads() - 1 - target::thread_idx(); i < static_cast<int>(kRows);
         i += target::num_threads()) {
      const std::byte* row = staged.row(first_row + i);
      if (row == nullptr) {
        filled.arrive();
        continue;
      }
      filled.arrive_expect(num_bytes);
      target::bulk_load(at(first_row + i, first_byte), row + first_byte, num_bytes, filled);
    }
  }
};

// How bands share a block's shared memory: as many bands as fit are in flight while one is stored.
struct alignas(128) ScaleBands {
  static constexpr uint32_t kMaxBands = kEpKernelSizes.max_scale_bands;

  target::TransferBarrier filled[kMaxBands];
  // Behind it: the bands.

  // If a row is too long for two bands, each band takes a part of the row.
  SWITCHYARD_HD static constexpr uint32_t vectors_across(uint32_t num_vectors, uint64_t num_bytes) {
    const uint32_t for_each_of_two =
        static_cast<uint32_t>((num_bytes - sizeof(ScaleBands)) / (2 * ScaleBand::kRows * sizeof(Vec16)));
    const uint32_t most = for_each_of_two == 0 ? 1 : (for_each_of_two - 1) | 1u;
    return ceil_div(num_vectors, ceil_div(num_vectors, most));
  }
  SWITCHYARD_HD static constexpr uint32_t num_bands(uint32_t vectors_across, uint64_t num_bytes) {
    const uint64_t fitting = (num_bytes - sizeof(ScaleBands)) / band_bytes(vectors_across);
    return fitting < kMaxBands ? static_cast<uint32_t>(fitting) : kMaxBands;
  }
  SWITCHYARD_HD static constexpr uint32_t band_bytes(uint32_t vectors_across) {
    return ScaleBand::kRows * ScaleBand::row_stride(vectors_across);
  }
};

// All blocks store scales, band by band; each has memory for at least one band.
template <FixedShape Fixed, InterleavedTokenFormat Format>
struct StoreScales {
  static_assert(ScaleBand::kRows % Format::kStoredRows == 0);

  const Format& format;
  const StagedScales<Fixed>& staged;
  std::byte* stage_memory;
  const uint64_t num_bytes;
  const uint32_t num_vectors = staged.layout.entry_bytes / static_cast<uint32_t>(sizeof(Vec16));
  const uint32_t across = ScaleBands::vectors_across(num_vectors, num_bytes);
  const uint32_t bands_across = ceil_div(num_vectors, across);
  const uint32_t first_row = staged.part.first_scaled_row;
  // A step that was skipped has no rows, nor any in front.
  const uint32_t num_scaled_rows = staged.num_rows > first_row ? staged.num_rows - first_row : 0;
  const uint32_t num_bands = ceil_div(num_scaled_rows, ScaleBand::kRows) * bands_across;
  const uint32_t num_under_way = ScaleBands::num_bands(across, num_bytes);
  ScaleBands& shared = *reinterpret_cast<ScaleBands*>(stage_memory);

  SWITCHYARD_DEVICE void run() const {
    if (target::thread_idx() < static_cast<int>(num_under_way))
      shared.filled[target::thread_idx()].init(ScaleBand::kRows);
    target::sync_block();
    target::fence_proxy_async();  // ordinary loads have waited for what is now copied
    for (uint32_t turn = 0; turn < num_under_way; ++turn) start(turn);
    for (uint32_t turn = 0; band_of_turn(turn) < num_bands; ++turn) {
      const uint32_t parity = turn / num_under_way % 2;
      target::wait_until([&] { return shared.filled[turn % num_under_way].done(parity); }, kNoDeadline);
      if (has_rows(band(turn))) store(band(turn));
      target::sync_block();  // before the memory of the band is filled again
      start(turn + num_under_way);
    }
  }

 private:
  SWITCHYARD_DEVICE uint32_t band_of_turn(uint32_t turn) const {
    return static_cast<uint32_t>(target::block_idx()) + turn * static_cast<uint32_t>(target::num_blocks());
  }
  SWITCHYARD_DEVICE ScaleBand band(uint32_t turn) const {
    const uint32_t first_vector = band_of_turn(turn) % bands_across * across;
    const uint32_t vectors_left = num_vectors - first_vector;
    return {
        stage_memory + sizeof(ScaleBands) + turn % num_under_way * uint64_t{ScaleBands::band_bytes(across)},
        vectors_left < across ? vectors_left : across,
        first_row + static_cast<int64_t>(band_of_turn(turn) / bands_across) * ScaleBand::kRows,
        first_vector * static_cast<uint32_t>(sizeof(Vec16))};
  }
  // Returns false if the band lies in one masked group and behind that group's rows.
  SWITCHYARD_DEVICE bool has_rows(const ScaleBand& band) const {
    return staged.masked.capacity % ScaleBand::kRows != 0 || staged.masked.has(band.first_row);
  }
  SWITCHYARD_DEVICE void start(uint32_t turn) const {
    if (band_of_turn(turn) < num_bands) band(turn).fill(staged, shared.filled[turn % num_under_way]);
  }
  SWITCHYARD_DEVICE void store(const ScaleBand& band) const {
    constexpr uint32_t kUnitsDown = ScaleBand::kRows / Format::kStoredRows;
    for (uint32_t unit = static_cast<uint32_t>(target::warp_idx()); unit < band.vectors_across * kUnitsDown;
         unit += static_cast<uint32_t>(target::num_warps()))
      format.store_scales(band, band.first_row + unit % kUnitsDown * Format::kStoredRows, staged.num_rows,
                          band.first_byte + unit / kUnitsDown * static_cast<uint32_t>(sizeof(Vec16)));
    target::fence_proxy_async_shared();  // the band was read by ordinary loads, and bulk copies overwrite it
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
