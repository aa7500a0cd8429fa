// Scales on their way to a tensor that interleaves rows. A sender keeps those of its tokens, and tells for
// each row where they are; the row's owner fetches them.
#pragma once

#include "switchyard/ep/direct/layout.hpp"
#include "switchyard/ep/params.hpp"
#include "switchyard/format/token_format.hpp"
#include "switchyard/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// A rank's rows, and where their scales are.
struct StagedScales {
  const DispatchArguments& arguments;
  TokenScalesLayout layout;
  uint32_t num_ranks;
  uint32_t num_rows;

  // Null beyond the rows. A row that only fills up its expert's has no source, or that of an earlier step:
  // its scales mean nothing.
  SWITCHYARD_DEVICE const std::byte* row(int64_t row_idx) const {
    if (row_idx >= num_rows) return nullptr;
    const auto* sources = reinterpret_cast<const uint32_t*>(arguments.recv_bufs.of_rank[arguments.my_rank] +
                                                            arguments.scale_sources_offset);
    const ScaleSource source = ScaleSource::unpack(target::ld(sources + row_idx));
    if (source.rank >= num_ranks || source.entry >= layout.num_entries()) return nullptr;
    return arguments.recv_bufs.of_rank[source.rank] + arguments.token_scales_offset +
           uint64_t{source.entry} * layout.entry_bytes;
  }
};

// Scales of neighbouring rows in shared memory, on their way from senders to the tensor: they come row by row
// and leave column by column, both in whole lines of memory. Rows are an odd number of vectors apart, so that
// a column's lie in different banks.
struct ScaleBand {
  static constexpr uint32_t kRows = 128;

  std::byte* room;
  uint32_t vectors_across;  // of each row, at most kWarpSize
  int64_t first_row;
  uint32_t first_byte;

  SWITCHYARD_DEVICE static uint32_t max_vectors_across(uint64_t room_bytes) {
    const uint32_t stride = (static_cast<uint32_t>(room_bytes / (kRows * sizeof(Vec16))) - 1) | 1u;
    return stride < kWarpSize ? stride : kWarpSize;
  }
  SWITCHYARD_DEVICE std::byte* at(int64_t row_idx, uint32_t byte) const {
    return room + static_cast<uint64_t>(row_idx - first_row) * ((vectors_across | 1u) * sizeof(Vec16)) +
           (byte - first_byte);
  }
  SWITCHYARD_DEVICE Vec16 load(int64_t row_idx, uint32_t byte) const {
    return target::ld_16(at(row_idx, byte));
  }

  // By all warps of the block, each with some rows.
  SWITCHYARD_DEVICE void fill(const StagedScales& staged) const {
    constexpr int kInFlight = 4;
    const uint32_t byte = first_byte + static_cast<uint32_t>(target::lane_idx()) * sizeof(Vec16);
    const bool has_column =
        target::lane_idx() < static_cast<int>(vectors_across) && byte < staged.layout.entry_bytes;
    for (int64_t first = target::warp_idx() * kInFlight; first < kRows;
         first += target::num_warps() * kInFlight) {
      Vec16 scales[kInFlight];
      SWITCHYARD_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        const std::byte* row = staged.row(first_row + first + i);
        scales[i] = row != nullptr && has_column ? target::ld_16(row + byte) : Vec16{};
      }
      SWITCHYARD_UNROLL
      for (int i = 0; i < kInFlight; ++i)
        if (has_column) target::st_16(at(first_row + first + i, byte), scales[i]);
    }
  }
};

// Brings scales to their tensor, band by band. By all blocks, each with room for a band in shared memory.
template <InterleavedTokenFormat Format>
SWITCHYARD_DEVICE void place_scales(const Format& format, const StagedScales& staged, std::byte* room,
                                    uint64_t room_bytes) {
  static_assert(ScaleBand::kRows % Format::kPlacedRows == 0);
  const uint32_t num_vectors = staged.layout.entry_bytes / sizeof(Vec16);
  const uint32_t max_across = ScaleBand::max_vectors_across(room_bytes);
  const uint32_t across = num_vectors < max_across ? num_vectors : max_across;
  const uint32_t bands_across = ceil_div(num_vectors, across);
  const uint32_t num_bands = ceil_div(staged.num_rows, ScaleBand::kRows) * bands_across;
  for (uint32_t band_idx = static_cast<uint32_t>(target::block_idx()); band_idx < num_bands;
       band_idx += static_cast<uint32_t>(target::num_blocks())) {
    const uint32_t first_vector = band_idx % bands_across * across;
    const uint32_t vectors_here = num_vectors - first_vector < across ? num_vectors - first_vector : across;
    const ScaleBand band{room, across, static_cast<int64_t>(band_idx / bands_across) * ScaleBand::kRows,
                         first_vector * static_cast<uint32_t>(sizeof(Vec16))};
    band.fill(staged);
    target::sync_block();
    constexpr uint32_t kUnitsDown = ScaleBand::kRows / Format::kPlacedRows;
    for (uint32_t unit = static_cast<uint32_t>(target::warp_idx()); unit < vectors_here * kUnitsDown;
         unit += static_cast<uint32_t>(target::num_warps()))
      format.place_scales(band, band.first_row + unit % kUnitsDown * Format::kPlacedRows, staged.num_rows,
                          band.first_byte + unit / kUnitsDown * static_cast<uint32_t>(sizeof(Vec16)));
    target::sync_block();  // before the band is filled again
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
