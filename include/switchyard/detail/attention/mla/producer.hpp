// The producer of an MLA block: one warp that takes the planner's tiles and loads their queries and latents.
// A latent is loaded in strips, each as soon as its last reader has released the stage's.
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
      this->next_row_ = this->row_of_lane(tile, block);
      if (block < first_block + Config::kBlocksAhead) this->ask_planner();
      for (; block >= first_block; --block) {
        if (block == first_block + Config::kBlocksAhead) this->ask_planner();
        this->take_row(tile, block);
        load_strip<Config::kRest>(tile);
        load_strip<Config::kLeft>(tile);
        load_strip<Config::kRight>(tile);
        this->keys_.advance();
      }
    }
  }

 private:
  template <int kStrip>
  SWITCHYARD_DEVICE void load_strip(const AttentionTile& tile) {
    constexpr LatentStrip kPanels = Config::panels_of(kStrip);
    const uint32_t stage = this->keys_.stage();
    // acquire MM-21: the consumers have read the strip; pairs with their release()
    wait_together(this->shared_.latents_empty[stage][kStrip], this->keys_.parity() ^ 1);
    this->template load_panels<kPanels.first_panel, kPanels.num_panels>(
        tile, this->loaded_row_, this->params_.keys, this->shared_.latents[stage],
        this->shared_.latents_full[stage][kStrip]);
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
