// Converts rows of a token format to bf16, or to blockwise fp8, an encoded token each, as a quantised combine
// takes them. Identity experts need it, and so does a matmul that only takes bf16.
#pragma once

#include "switchyard/detail/format/blockwise_fp8.hpp"
#include "switchyard/detail/format/row_source.hpp"
#include "switchyard/detail/gemm/params.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Source>
struct RecodeParams {
  RecodeCall call;
  Source source;
};

SWITCHYARD_DEVICE void store_fp8(const RecodeCall& call, const LaneElements& elements, int64_t row,
                                 int chunk_idx, bool has_elements) {
  using Quantizer = BlockwiseFP8Quantizer<e4m3>;
  constexpr int kLanesPerGroup = Quantizer::kGroupSize / kElementsPerLane;
  const auto scale = Quantizer{}.scale_of(group_amax<Quantizer::kGroupSize>(elements));
  if (!has_elements) return;
  const GroupedMessageLayout<Quantizer> layout{call.hidden};
  std::byte* output =
      static_cast<std::byte*>(call.output) + row * combine_row_bytes(CombineFormat::kFP8, call.hidden);
  uint32_t words[kElementsPerLane / 4];
  quantize<e4m3>(elements, scale.factor, words);
  store_words(output + chunk_idx * kElementsPerLane, words);
  if (chunk_idx % kLanesPerGroup == 0)
    target::st(layout.scales(output) + chunk_idx / kLanesPerGroup, scale.stored);
}

template <typename Source>
SWITCHYARD_KERNEL void recode_rows_kernel(RecodeParams<Source> params) {
  const RecodeCall& call = params.call;
  const int chunks_per_row = call.hidden / kElementsPerLane;
  const int64_t num_chunks =
      static_cast<int64_t>(target::ld(call.row_offsets + call.num_groups)) * chunks_per_row;
  const int64_t num_threads = static_cast<int64_t>(target::num_blocks()) * target::num_threads();
  // All lanes of a warp iterate together, even those past the end: shuffles need every lane.
  for (int64_t warp_chunk = static_cast<int64_t>(target::block_idx()) * target::num_threads() +
                            target::thread_idx() - target::lane_idx();
       warp_chunk < num_chunks; warp_chunk += num_threads) {
    const int64_t chunk = warp_chunk + target::lane_idx(), row = chunk / chunks_per_row;
    const int chunk_idx = static_cast<int>(chunk % chunks_per_row);
    const bool has_elements = chunk < num_chunks;
    const LaneElements elements = has_elements ? params.source.load(row, chunk_idx) : LaneElements{};
    if (call.output_format == CombineFormat::kFP8) {
      store_fp8(call, elements, row, chunk_idx, has_elements);
    } else if (has_elements) {
      bf16* output = static_cast<bf16*>(call.output) + row * call.hidden + chunk_idx * kElementsPerLane;
      target::st_16(output, elements.halves[0]);
      target::st_16(output + 8, elements.halves[1]);
    }
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
