// Rows on their experts' ranks, as the sender sees them: where they lie, and what is stored beside them.
#pragma once

#include "switchyard/detail/ep/direct/far_rows.hpp"
#include "switchyard/detail/ep/direct/staged_scales.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/ep/reach.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <FixedShape Fixed, typename Format>
struct DestinationRows {
  const DispatchParams<DirectDispatchPart, Format>& params;
  const ShapeOf<Fixed> shape;
  const uint32_t row_bytes;

  // Tokens travel as they are, or become rows of another size.
  SWITCHYARD_DEVICE static uint32_t bytes_of_row(const Format& format, uint32_t token_bytes) {
    if constexpr (EncodedRowFormat<Format>)
      return format.row_bytes();
    else
      return token_bytes;
  }

  // Returns null if the owner is far: FarRows puts the row then.
  SWITCHYARD_DEVICE std::byte* row(int owner, uint32_t row_idx) const {
    std::byte* rows = peer_pointer<Fixed>(params, params.recv_bufs, owner);
    if (kHasWire<Fixed> && rows == nullptr) return nullptr;
    return rows + static_cast<uint64_t>(row_idx) * row_bytes;
  }
  SWITCHYARD_DEVICE FarRows<Fixed, Format> far() const { return {params, shape, row_bytes}; }

  // Starts the copies of what lies in the stage: each lane's to its row, unless that is null, and lane 0's to
  // the row of the shared expert, if the token has one.
  SWITCHYARD_DEVICE void start_copies(const std::byte* stage, int token_idx, std::byte* row_of_lane) const {
    const int shared_row = params.shared_expert.row_of(token_idx);
    if (row_of_lane != nullptr) target::bulk_store(row_of_lane, stage, row_bytes);
    if (shared_row < 0 || target::lane_idx() != 0) return;
    target::bulk_store(row(params.my_rank, static_cast<uint32_t>(shared_row)), stage, row_bytes);
    store_shared_source(token_idx, shared_row);
  }

  // Stores which (token, k) a row of the expert was made from.
  SWITCHYARD_DEVICE void store_source(int expert_idx, uint32_t row_idx, int token_idx, int k) const {
    const int owner = shape.owner_rank(expert_idx);
    const uint64_t src_info = static_cast<uint64_t>(k) << 32 | static_cast<uint64_t>(token_idx);
    if constexpr (kHasWire<Fixed>)
      if (far().is_far(owner))
        return far().collect_source(target::shared_storage<DirectDispatchShared>(), expert_idx, row_idx,
                                    src_info);
    target::st(reinterpret_cast<uint64_t*>(peer_pointer<Fixed>(params, params.src_infos, owner)) + row_idx,
               src_info);
    store_scale_source(owner, row_idx, token_idx, k);
  }
  SWITCHYARD_DEVICE void store_shared_source(int token_idx, int shared_row) const {
    target::st(reinterpret_cast<uint64_t*>(params.src_infos.mine) + shared_row,
               uint64_t{UINT32_MAX} << 32 | static_cast<uint32_t>(token_idx));
    mutate<Fixed, LogicMutant::kSharedScalesNotTold>(
        [&] {
          store_scale_source(params.my_rank, static_cast<uint32_t>(shared_row), token_idx, shape.top_k());
        },
        [] {});
  }

  SWITCHYARD_DEVICE TokenScalesLayout token_scales() const {
    return token_scales_layout(shape, params.format);
  }

  // The note beside a row of a near rank.
  SWITCHYARD_DEVICE void store_scale_note(int owner, uint32_t row_idx, uint32_t note) const {
    target::st(reinterpret_cast<uint32_t*>(peer_pointer<Fixed>(params, params.recv_bufs, owner) +
                                           params.scale_sources_offset) +
                   row_idx,
               note);
  }

 private:
  // Stores where the row's owner finds its scales. k is top_k for the shared expert.
  SWITCHYARD_DEVICE void store_scale_source([[maybe_unused]] int owner, [[maybe_unused]] uint32_t row_idx,
                                            [[maybe_unused]] int token_idx, [[maybe_unused]] int k) const {
    if constexpr (InterleavedTokenFormat<Format>) {
      if (sends_scales<Fixed>(params)) return;
      const uint32_t entry = mutate<Fixed, LogicMutant::kScaleSourceOffByOne>(
          token_scales().entry(token_idx, k), token_scales().entry(token_idx, k) + 1);
      if constexpr (kLinksRows<Fixed>)
        if (params.carries_once) {  // RowLinks tells the rows of other ranks
          if (owner == params.my_rank) store_scale_note(owner, row_idx, SiblingScales{false, entry}.pack());
          return;
        }
      store_scale_note(owner, row_idx, ScaleSource{static_cast<uint32_t>(params.my_rank), entry}.pack());
    }
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
