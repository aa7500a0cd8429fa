// 64 rows times a consumer's columns of weights, on Hopper's matrix unit: sums in registers, operands in
// shared memory. A product is in flight while the warpgroup does other work; start() issues one step of it,
// wait() waits for those started before.
#pragma once

#include <bit>

#include "switchyard/detail/gemm/tiled/activate.hpp"
#include "switchyard/detail/gemm/tiled/row_scale.hpp"
#include "switchyard/detail/target/matrix.hpp"
#include "switchyard/detail/target/warpgroup.hpp"
#include "switchyard/types/bf16.hpp"

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
      for (int first_unit = 0; first_unit < Config::kOutputColumns / 8; first_unit += 4) {
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

  // The rows of which this thread has sums: row_of(i), i < kThreadRows. Several threads have sums of a row,
  // and one of them leads it.
  static constexpr int kThreadRows = 2;
  SWITCHYARD_DEVICE static constexpr bool has_rows() { return true; }
  SWITCHYARD_DEVICE static bool leads_row() { return target::lane_idx() % 4 == 0; }
  SWITCHYARD_DEVICE static int row_of(int i) {
    return target::thread_idx() % kWarpgroupThreads / kWarpSize * 16 + i * 8 + target::lane_idx() / 4;
  }

  // bias_of(column) is the bias of a column, whose neighbour has the next one; where there is none it is 0.
  template <typename BiasOf>
  SWITCHYARD_DEVICE void add_bias(BiasOf bias_of) {
    SWITCHYARD_UNROLL
    for (int unit = 0; unit < kColumns / 8; ++unit) {
      SWITCHYARD_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float bias = bias_of(unit * 8 + target::lane_idx() % 4 * 2 + i);
        sums_[unit * 4 + i] += bias;
        sums_[unit * 4 + 2 + i] += bias;
      }
    }
  }
  // Multiplies row row_of(i) by weights[i].
  SWITCHYARD_DEVICE void multiply_rows(const float (&weights)[kThreadRows]) {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumns / 2; ++i) sums_[i] *= weights[i / 2 % 2];
  }
  // Gates and ups become the output's columns.
  SWITCHYARD_DEVICE void activate_all(const ActivationNumbers& numbers) {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumns / 4; ++i) sums_[i] = activate(numbers, sums_[i], sums_[i + kColumns / 4]);
  }
  // The largest magnitude of the output's columns of row row_of(i), as bits.
  SWITCHYARD_DEVICE uint32_t amax_of(int i) const {
    uint32_t amax = 0;
    SWITCHYARD_UNROLL
    for (int unit = 0; unit < kOutputUnits; ++unit) {
      SWITCHYARD_UNROLL
      for (int j = 0; j < 2; ++j) {
        const uint32_t magnitude = std::bit_cast<uint32_t>(sums_[unit * 4 + i * 2 + j]) & 0x7fffffffu;
        amax = magnitude > amax ? magnitude : amax;
      }
    }
    SWITCHYARD_UNROLL
    for (int lane_mask = 1; lane_mask <= 2; lane_mask *= 2) {
      const uint32_t other = target::shuffle_xor(amax, lane_mask);
      amax = other > amax ? other : amax;
    }
    return amax;
  }
  // Stores the first num_columns columns of row row_of(i), times `factor`, as codes of e4m3, at `row`, which
  // may be null.
  SWITCHYARD_DEVICE void store_codes(int i, float factor, int num_columns, uint8_t* row) const {
    SWITCHYARD_UNROLL
    for (int first_unit = 0; first_unit < kOutputUnits; first_unit += 8) {
      // A word has two columns of one unit and two of the next.
      Vec16 words;
      SWITCHYARD_UNROLL
      for (int word = 0; word < 4; ++word) {
        const float* first = sums_ + (first_unit + word * 2) * 4 + i * 2;
        const uint32_t low = target::to_e4m3x2(first[0] * factor, first[1] * factor);
        const uint32_t high = target::to_e4m3x2(first[4] * factor, first[5] * factor);
        words.words[word] = low | high << 16;
      }
      target::transpose_quad(words);  // now word w has the columns of lane w, of two units
      const Vec16 codes{{target::permute_bytes(words.words[0], words.words[1], 0x5410),
                         target::permute_bytes(words.words[2], words.words[3], 0x5410),
                         target::permute_bytes(words.words[0], words.words[1], 0x7632),
                         target::permute_bytes(words.words[2], words.words[3], 0x7632)}};
      const int column = (first_unit + target::lane_idx() % 4 * 2) * 8;
      if (row != nullptr && column < num_columns) target::st_16(row + column, codes);
    }
  }

 protected:
  static constexpr int kColumns = Config::kConsumerColumns;
  static constexpr int kOutputUnits = Config::kOutputColumns / 8;
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
  // kSet: into which step's sums.
  template <int kSet = 0>
  SWITCHYARD_DEVICE void start(const unsigned char* rows, const unsigned char* weights, int /*num_rows*/) {
    target::hold_registers(step_sums_[kSet]);
    target::matrix_fence();
    const uint64_t row_operand = target::matrix_operand(rows, kGroupBytes, 0);
    const uint64_t weight_operand = target::matrix_operand(weights, kGroupBytes, 0);
    SWITCHYARD_UNROLL
    for (int step = 0; step < kPanelRowBytes / 32; ++step)  // 32 elements are two units of 16 bytes
      target::MatrixUnit<Config::kColumnGroup>::multiply_fp8(step_sums_[kSet], row_operand + 2 * step,
                                                             weight_operand + 2 * step, step != 0);
    target::matrix_commit();
    target::hold_registers(step_sums_[kSet]);
  }
  // Loads the scales of this warpgroup's rows while the products are in flight.
  template <int kSet = 0>
  SWITCHYARD_DEVICE void load_row_scales(const uint32_t* words, int /*num_rows*/, RowScaleInWord in_word) {
    const int row = target::thread_idx() % kWarpgroupThreads / kWarpSize * 16 + target::lane_idx() / 4;
    row_scales_[kSet][0] = in_word.scale(target::ld(words + row));
    row_scales_[kSet][1] = in_word.scale(target::ld(words + row + 8));
  }
  // kPending: how many later steps' products may still be in flight.
  template <int kSet = 0, int kPending = 0>
  SWITCHYARD_DEVICE void wait() {
    target::matrix_wait<kPending>();
    target::hold_registers(step_sums_[kSet]);
  }
  // `group` is the group of columns whose products were started last; equal parts of it have a scale each.
  template <int kSet = 0>
  SWITCHYARD_DEVICE void add_scaled(int group, const float (&weight_scales)[Config::kScalesPerGroup]) {
    constexpr int kSumsPerScale = kGroupSums / Config::kScalesPerGroup;
    SWITCHYARD_UNROLL
    for (int part = 0; part < Config::kScalesPerGroup; ++part) {
      const float scales[2] = {row_scales_[kSet][0] * weight_scales[part],
                               row_scales_[kSet][1] * weight_scales[part]};
      SWITCHYARD_UNROLL
      for (int i = part * kSumsPerScale; i < (part + 1) * kSumsPerScale; ++i) {
        float& sum = sums_[group * kGroupSums + i];
        sum = target::multiply_add(step_sums_[kSet][i], scales[i / 2 % 2], sum);
      }
    }
  }

 private:
  static constexpr int kGroupSums = Config::kColumnGroup / 2;

  float step_sums_[Config::kNumStepSums][kGroupSums];
  float row_scales_[Config::kNumStepSums][2];
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
