// The producer of an MLA block: one warp that takes the planner's tiles and loads their queries and latents.
// A latent is loaded in strips, each as soon as its last reader has released the stage's. The two stages hide
// the latency of the L2 but not that of the memory: the producer asks the L2 for latents some blocks ahead.
#pragma once

#include "switchyard/detail/attention/mla/shared.hpp"
#include "switchyard/detail/attention/producer.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class MlaProducer : private AttentionProducer<Config, MlaShared<Config>> {
  using Base = AttentionProducer<Config, MlaShared<Config>>;

 public:
  using Base::Base;

  SWITCHYARD_DEVICE void run() {
    while (this->publish_next()) {
      const AttentionTile& tile = *this->tile_;
      const int first_block = target::ld(&tile.first_block);
      int block = target::ld(&tile.end_block) - 1;
      find_rows(tile, first_block, block);
      if (block < first_block + Config::kBlocksAhead) this->ask_planner();
      for (; block >= first_block; --block) {
        if (block == first_block + Config::kBlocksAhead) this->ask_planner();
        prefetch(tile, block - kBlocksToL2 >= first_block, rows_[kBlocksToL2]);
        load_strip<Config::kRest>(tile);
        load_strip<Config::kLeft>(tile);
        load_strip<Config::kRight>(tile);
        this->keys_.advance();
        next_rows(tile, first_block, block);
      }
    }
  }

 private:
  static constexpr int kBlocksToL2 = Config::kBlocksToL2;

  // Row numbers are read before they are needed: nobody waits for a page number but at a tile's first block.
  SWITCHYARD_DEVICE void find_rows(const AttentionTile& tile, int first_block, int block) {
    SWITCHYARD_UNROLL
    for (int i = 0; i <= kBlocksToL2; ++i)
      rows_[i] = block - i >= first_block ? this->row_of_lane(tile, block - i) : 0;
    SWITCHYARD_UNROLL
    for (int i = 1; i < kBlocksToL2; ++i) prefetch(tile, block - i >= first_block, rows_[i]);
  }
  SWITCHYARD_DEVICE void next_rows(const AttentionTile& tile, int first_block, int block) {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kBlocksToL2; ++i) rows_[i] = rows_[i + 1];
    const int next = block - 1 - kBlocksToL2;
    if (next >= first_block) rows_[kBlocksToL2] = this->row_of_lane(tile, next);
  }
  // Where several tiles have the same latents, each asks for its share of their panels.
  SWITCHYARD_DEVICE void prefetch(const AttentionTile& tile, bool is_there, int row) {
    if (!is_there) return;
    const uint32_t heads_per_tile = this->settings_.heads_per_tile;
    const int step = this->settings_.num_heads > heads_per_tile ? 2 : 1;
    const int first_panel = static_cast<int>(target::ld(&tile.first_head) / heads_per_tile) % step;
    const bool is_paged = this->settings_.keys.page_table != nullptr;
    const int panels_at_once =
        is_paged ? kWarpSize * static_cast<int>(this->settings_.keys.box_rows) / Config::kTileKeys : 1;
    if (!is_paged && target::lane_idx() != 0) return;
    for (int i = this->panel_of_lane_; first_panel + i * step < Config::kNumPanels; i += panels_at_once)
      target::tensor_prefetch(this->params_.keys, (first_panel + i * step) * kPanelColumns, 0, row);
  }

  template <int kStrip>
  SWITCHYARD_DEVICE void load_strip(const AttentionTile& tile) {
    constexpr LatentStrip kPanels = Config::panels_of(kStrip);
    const uint32_t stage = this->keys_.stage();
    // acquire MM-21: the consumers have read the strip; pairs with their release()
    wait_together(this->shared_.latents_empty[stage][kStrip], this->keys_.parity() ^ 1);
    this->template load_panels<kPanels.first_panel, kPanels.num_panels>(
        tile, rows_[0], this->params_.keys, this->shared_.latents[stage],
        this->shared_.latents_full[stage][kStrip]);
  }

  int rows_[kBlocksToL2 + 1];  // row_of_lane() of the block to load, of the one before it, and so on
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
