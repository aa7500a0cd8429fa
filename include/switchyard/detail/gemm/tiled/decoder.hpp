// The decoders of a block of the tiled matmul: two warps that turn the codes of a tile's rows into bf16, in
// the stages from which the matrix unit reads them. They stand where the producer loads rows that need no
// decoding, and wait for the same barriers.
#pragma once

#include "switchyard/detail/format/group_quantize.hpp"
#include "switchyard/detail/gemm/tiled/row_decoding.hpp"
#include "switchyard/detail/gemm/tiled/shared.hpp"
#include "switchyard/detail/gemm/tiled/tile_grid.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config, MatmulRowDecoding Rows>
class MatmulDecoder {
 public:
  // decoder_idx: this thread among the decoders.
  SWITCHYARD_DEVICE MatmulDecoder(const MatmulSettings& settings, const Rows& rows,
                                  MatmulShared<Config>& shared, int decoder_idx)
      : settings_(settings),
        rows_(rows),
        shared_(shared),
        decoder_idx_(decoder_idx),
        num_steps_(ceil_div(settings.inner, uint32_t{Config::kStageInner})) {}

  SWITCHYARD_DEVICE void run() {
    for (;;) {
      const MatmulTile tile = take_tile(shared_, tiles_);
      if (!tile.is_tile) return;
      const float tensor_scale = rows_.tensor_scale(settings_.groups, tile.first_row);
      rows_.visit(settings_.inner, [&](const auto& source) {
        for (uint32_t step = 0; step < num_steps_; ++step) decode(tile, step, source, tensor_scale);
      });
    }
  }

 private:
  static constexpr int kChunksPerRow = Config::kStageInner / kElementsPerLane;  // of a stage

  template <typename Source>
  SWITCHYARD_DEVICE void decode(const MatmulTile& tile, uint32_t step, const Source& source,
                                float tensor_scale) {
    const uint32_t stage = stages_.stage();
    // acquire MM-25: the consumers have read the stage; pairs with their release()
    wait_for_phase(shared_.empty[stage], stages_.parity() ^ 1);
    stages_.advance();
    const int first_chunk = static_cast<int>(step) * kChunksPerRow;
    const int num_chunks = static_cast<int>(settings_.inner) / kElementsPerLane;
    SWITCHYARD_ROLLED
    for (int i = decoder_idx_; i < tile.num_rows * kChunksPerRow; i += Config::kNumDecoders) {
      const int row = i / kChunksPerRow, chunk = i % kChunksPerRow;
      // What lies behind the end of a row must be zeros: weights are zeros there, but a NaN times zero is
      // none.
      LaneElements elements{};
      if (first_chunk + chunk < num_chunks)
        elements = source.load(int64_t{tile.first_row} + row, first_chunk + chunk, tensor_scale);
      store(shared_.rows[stage], row, chunk, elements);
    }
    target::fence_proxy_async_shared();  // before the matrix unit reads them
    // release MM-24: this thread's part of the rows of a stage; pairs with the consumers' waits for `full`
    shared_.full[stage].arrive();
  }

  // As the copy engine would: panels of 64 elements of each row.
  SWITCHYARD_DEVICE static void store(unsigned char* rows, int row, int chunk, const LaneElements& elements) {
    constexpr int kChunksPerPanel = kPanelColumns / kElementsPerLane;
    unsigned char* panel_row = rows + chunk / kChunksPerPanel * Config::kRowPanelBytes + row * kPanelRowBytes;
    SWITCHYARD_UNROLL
    for (int half = 0; half < 2; ++half)
      target::st_16(panel_row + target::unit_in_row(row, chunk % kChunksPerPanel * 2 + half) * 16,
                    elements.halves[half]);
  }

  const MatmulSettings& settings_;
  const Rows& rows_;
  MatmulShared<Config>& shared_;
  const int decoder_idx_;
  const uint32_t num_steps_;
  StageCursor<1> tiles_;
  StageCursor<Config::kNumStages> stages_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
