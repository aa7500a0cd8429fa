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

  SWITCHYARD_DEVICE uint32_t row_bytes() const { return layout.entry_bytes; }
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
  // Sixteen bytes of a row's; zeros if there are none.
  SWITCHYARD_DEVICE Vec16 load(const std::byte* row, uint32_t byte) const {
    return row != nullptr && byte < layout.entry_bytes ? target::ld_16(row + byte) : Vec16{};
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
