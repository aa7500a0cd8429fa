// 64 rows times a consumer's columns of weights, on Hopper's matrix unit: sums in registers, operands in
// shared memory. A product is in flight while the warpgroup does other work; start() issues one step of it,
// wait() waits for those started before.
#pragma once

#include "switchyard/bf16.hpp"
#include "switchyard/detail/target/matrix.hpp"
#include "switchyard/detail/target/warpgroup.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The sums of a warpgroup, in registers.
template <typename Config>
class WarpgroupSums {
 public:
  // Stores the first num_columns columns of each row as bf16: row_address(row) is where it goes, or null.
  template <typename RowAddress>
  SWITCHYARD_DEVICE void store(int num_columns, RowAddress row_address) const {
    const int thread = target::thread_idx() % kWarpgroupThreads;
    const int lane_in_row = target::lane_idx() % 4;
    SWITCHYARD_UNROLL
    for (int half = 0; half < 2; ++half) {
      bf16* row = row_address(thread / kWarpSize * 16 + half * 8 + target::lane_idx() / 4);
      SWITCHYARD_UNROLL
      for (int first_unit = 0; first_unit < kColumns / 8; first_unit += 4) {
        Vec16 words;
        SWITCHYARD_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float* pair = sums_ + (first_unit + i) * 4 + half * 2;
          words.words[i] = target::pack_bf16x2(pair[0], pair[1]);
        }
        target::transpose_quad(words);
        const int column = (first_unit + lane_in_row) * 8;
        if (row != nullptr && column < num_columns) target::st_16(row + column, words);
      }
    }
  }

 protected:
  static constexpr int kColumns = Config::kConsumerColumns;
  static constexpr int kGroupBytes = 8 * kPanelRowBytes;

  float sums_[kColumns / 2];  // of a thread: two rows, every fourth pair of columns
};

template <typename Config>
class WarpgroupProduct : public WarpgroupSums<Config> {
  using WarpgroupSums<Config>::kColumns, WarpgroupSums<Config>::kGroupBytes, WarpgroupSums<Config>::sums_;

 public:
  // `rows` and `weights` point to the first panel of a stage. Without `accumulate` the sums begin anew.
  SWITCHYARD_DEVICE void start(const unsigned char* rows, const unsigned char* weights, bool accumulate,
                               int /*num_rows*/) {
    target::hold_registers(sums_);
    target::matrix_fence();
    const uint64_t row_operand = target::matrix_operand(rows, kGroupBytes, 0);
    const uint64_t weight_operand = target::matrix_operand(weights, kGroupBytes, 0);
    SWITCHYARD_UNROLL
    for (int step = 0; step < Config::kStageInner / 16; ++step) {
      const int panel = step / 4, in_panel = step % 4 * 2;  // 16 columns are two units of 16 bytes
      target::MatrixUnit<kColumns>::multiply(
          sums_, row_operand + panel * (Config::kRowPanelBytes / 16) + in_panel,
          weight_operand + panel * (Config::kWeightPanelBytes / 16) + in_panel, step != 0 || accumulate);
    }
    target::matrix_commit();
    target::hold_registers(sums_);
  }
  template <int kPending>
  SWITCHYARD_DEVICE void wait() {
    target::matrix_wait<kPending>();
    if constexpr (kPending == 0) target::hold_registers(sums_);
  }
};

// The product for fp8: a step's products with the columns that share a scale are separate sums, which are
// scaled before they are added up.
template <typename Config>
class ScaledWarpgroupProduct : public WarpgroupSums<Config> {
  using WarpgroupSums<Config>::kGroupBytes, WarpgroupSums<Config>::sums_;

 public:
  SWITCHYARD_DEVICE void clear() {
    SWITCHYARD_UNROLL
    for (float& sum : sums_) sum = 0;
  }
  SWITCHYARD_DEVICE void start(const unsigned char* rows, const unsigned char* weights, int /*num_rows*/) {
    target::hold_registers(step_sums_);
    target::matrix_fence();
    const uint64_t row_operand = target::matrix_operand(rows, kGroupBytes, 0);
    const uint64_t weight_operand = target::matrix_operand(weights, kGroupBytes, 0);
    SWITCHYARD_UNROLL
    for (int step = 0; step < kPanelRowBytes / 32; ++step)  // 32 elements are two units of 16 bytes
      target::MatrixUnit<Config::kColumnGroup>::multiply_fp8(step_sums_, row_operand + 2 * step,
                                                             weight_operand + 2 * step, step != 0);
    target::matrix_commit();
    target::hold_registers(step_sums_);
  }
  // Loads the scales of this warpgroup's rows while the products are in flight.
  SWITCHYARD_DEVICE void load_row_scales(const float* scales, int /*num_rows*/) {
    const int row = target::thread_idx() % kWarpgroupThreads / kWarpSize * 16 + target::lane_idx() / 4;
    row_scales_[0] = target::ld(scales + row);
    row_scales_[1] = target::ld(scales + row + 8);
  }
  SWITCHYARD_DEVICE void wait() {
    target::matrix_wait<0>();
    target::hold_registers(step_sums_);
  }
  // `group` is the group of columns whose products were started last.
  SWITCHYARD_DEVICE void add_scaled(int group, float weight_scale) {
    const float scales[2] = {row_scales_[0] * weight_scale, row_scales_[1] * weight_scale};
    SWITCHYARD_UNROLL
    for (int i = 0; i < kGroupSums; ++i) {
      float& sum = sums_[group * kGroupSums + i];
      sum = target::multiply_add(step_sums_[i], scales[i / 2 % 2], sum);
    }
  }

 private:
  static constexpr int kGroupSums = Config::kColumnGroup / 2;

  float step_sums_[kGroupSums];
  float row_scales_[2];
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
