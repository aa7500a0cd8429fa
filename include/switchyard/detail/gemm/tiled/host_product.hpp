// 64 rows times a consumer's columns of weights, on the CPU: the same steps as warpgroup_product.cuh in plain
// loops, half of a warp's lanes with a row each. What is started there has ended here when the call returns.
#pragma once

#include "switchyard/detail/base/bf16.hpp"
#include "switchyard/detail/target/matrix.hpp"
#include "switchyard/detail/target/warpgroup.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class WarpgroupProduct {
 public:
  // num_rows: those past it were not loaded.
  void start(const unsigned char* rows, const unsigned char* weights, bool accumulate, int num_rows) {
    if (!has_row() || row() >= num_rows) return;
    for (int panel = 0; panel < Config::kNumPanels; ++panel) {
      float values[kPanelColumns];
      load(rows + panel * Config::kRowPanelBytes, row(), values);
      for (int column = 0; column < kColumns; ++column) {
        float column_values[kPanelColumns];
        load(weights + panel * Config::kWeightPanelBytes, column, column_values);
        float sum = accumulate || panel > 0 ? sums_[column] : 0.0f;
        for (int i = 0; i < kPanelColumns; ++i) sum += values[i] * column_values[i];
        sums_[column] = sum;
      }
    }
  }
  template <int kPending>
  void wait() {}

  template <typename PlaceOf>
  void store(int num_columns, PlaceOf place_of) const {
    bf16* place = has_row() ? place_of(row()) : nullptr;
    for (int i = 0; place != nullptr && i < kColumns && i < num_columns; ++i)
      target::st(place + i, to_bf16(sums_[i]));
  }

 private:
  static constexpr int kColumns = Config::kConsumerColumns;

  static bool has_row() { return target::lane_idx() < 16; }
  static int row() { return target::thread_idx() % kWarpgroupThreads / kWarpSize * 16 + target::lane_idx(); }
  static void load(const unsigned char* tile, int row, float (&values)[kPanelColumns]) {
    for (int unit = 0; unit < kPanelColumns / 8; ++unit) {
      const Vec16 packed = target::ld_16(tile + row * kPanelRowBytes + unit * 16);
      for (int i = 0; i < 8; ++i)
        values[unit * 8 + i] = to_float(bf16{static_cast<uint16_t>(packed.words[i / 2] >> (i % 2 * 16))});
    }
  }

  float sums_[kColumns];
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
