// 64 rows times a consumer's columns of weights, on Hopper's matrix unit: sums in registers, operands in
// shared memory. A product is in flight while the warpgroup does other work; start() issues one step of it,
// wait() waits for those started before.
#pragma once

#include <bit>

#include "switchyard/detail/gemm/tiled/activate.hpp"
#include "switchyard/detail/gemm/tiled/arrivals.hpp"
#include "switchyard/detail/gemm/tiled/step_scales.hpp"
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
  // The largest magnitude of those of the output's columns that share a scale, of row row_of(i), as bits. The
  // registers of the matrix unit are read as floats only: the compiler would keep sums that are read as
  // integers as such, and convert them while a product is in flight, for which it would have to wait.
  SWITCHYARD_DEVICE uint32_t amax_of(int i, int group) const {
    const float* sums = sums_ + group * kGroupUnits * 4 + i * 2;
    uint32_t amax = 0;
    float largest = 0, smallest = 0;
    SWITCHYARD_UNROLL
    for (int unit = 0; unit < kGroupUnits; ++unit) {
      SWITCHYARD_UNROLL
      for (int j = 0; j < 2; ++j) {
        if constexpr (Config::kIsScaled) {
          const uint32_t magnitude = std::bit_cast<uint32_t>(sums[unit * 4 + j]) & 0x7fffffffu;
          amax = magnitude > amax ? magnitude : amax;
        } else {
          largest = target::max_or_nan(largest, sums[unit * 4 + j]);
          smallest = target::min_or_nan(smallest, sums[unit * 4 + j]);
        }
      }
    }
    if constexpr (!Config::kIsScaled)
      amax = std::bit_cast<uint32_t>(target::max_or_nan(largest, -smallest)) & 0x7fffffffu;
    SWITCHYARD_UNROLL
    for (int lane_mask = 1; lane_mask <= 2; lane_mask *= 2) {
      const uint32_t other = target::shuffle_xor(amax, lane_mask);
      amax = other > amax ? other : amax;
    }
    return amax;
  }
  // Stores the first num_columns of these columns, times `factor`, as codes of e4m3, at `row`, which may be
  // null.
  SWITCHYARD_DEVICE void store_codes(int i, int group, float factor, int num_columns, uint8_t* row) const {
    const float* sums = sums_ + group * kGroupUnits * 4 + i * 2;
    SWITCHYARD_UNROLL
    for (int first_unit = 0; first_unit < kGroupUnits; first_unit += 8) {
      // A word has two columns of one unit and two of the next.
      Vec16 words;
      SWITCHYARD_UNROLL
      for (int word = 0; word < 4; ++word) {
        const float* first = sums + (first_unit + word * 2) * 4;
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
  static constexpr int kGroupUnits = Config::kOutputGroup / 8;
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

// Of the rows of a thread, for each of the parts of a column group that have scales of their own.
template <typename Config>
using StepFactors = float[Config::kScalesPerGroup][WarpgroupSums<Config>::kThreadRows];

// The scales of each step. The lanes of a quad have the same rows, and each loads their scales in one step of
// four; those of a warp have the same columns, and each loads the weights' scales in one step of 32. So a
// scale is loaded long before the step that takes it from the lane that has it.
template <typename Config, MatmulArrivals Arrivals>
class StepScales {
 public:
  static constexpr int kThreadRows = WarpgroupSums<Config>::kThreadRows;

  SWITCHYARD_DEVICE explicit StepScales(const StepScaleTensors<Config::kNumScales>& tensors)
      : tensors_(tensors), in_word_{tensors.row_kind, in_quad()} {
    const bool is_packed = tensors.row_kind == MatmulRowScales::kPackedE8M0;
    words_ = tensors.rows +
             uint64_t{static_cast<uint32_t>(WarpgroupSums<Config>::row_of(0))} * tensors.row_stride +
             (is_packed ? 0 : uint64_t{in_quad()} * tensors.word_stride);
    stride_ = uint64_t{tensors.word_stride} * (is_packed ? 1 : kQuadSteps);
    load_rows(0);
    load_weights(0);
  }
  // Goes on to a step; they come one after the other.
  SWITCHYARD_DEVICE void advance_to(uint32_t step) {
    step_ = step;
    if (step % kQuadSteps == 0) {
      SWITCHYARD_UNROLL
      for (int i = 0; i < kThreadRows; ++i) rows_[i] = in_word_.scale(next_words_[i]);
      load_rows(step + kQuadSteps);
      if (step % kWarpSize == 0) {
        SWITCHYARD_UNROLL
        for (int i = 0; i < Config::kNumScales; ++i) weights_[i] = next_weights_[i];
        load_weights(step + kWarpSize);
      }
    }
    const int lane = target::lane_idx() / kQuadSteps * kQuadSteps + static_cast<int>(step % kQuadSteps);
    SWITCHYARD_UNROLL
    for (int i = 0; i < kThreadRows; ++i) of_rows_[i] = target::shuffle(rows_[i], lane);
  }
  // What the products of a group of columns are multiplied by.
  SWITCHYARD_DEVICE void find_factors(int group, StepFactors<Config>& factors) const {
    SWITCHYARD_UNROLL
    for (int part = 0; part < Config::kScalesPerGroup; ++part) {
      const float of_weights = target::shuffle(weights_[group * Config::kScalesPerGroup + part],
                                               static_cast<int>(step_ % kWarpSize));
      SWITCHYARD_UNROLL
      for (int i = 0; i < kThreadRows; ++i) factors[part][i] = of_rows_[i] * of_weights;
    }
  }

 private:
  static constexpr uint32_t kQuadSteps = PackedScaleLayout::kScalesPerWord;
  static_assert(kQuadSteps == 4);
  SWITCHYARD_DEVICE static uint32_t in_quad() {
    return static_cast<uint32_t>(target::lane_idx()) % kQuadSteps;
  }

  SWITCHYARD_DEVICE void load_rows(uint32_t first_step) {
    const uint32_t step = first_step + (in_word_.kind == MatmulRowScales::kPackedE8M0 ? 0 : in_quad());
    SWITCHYARD_UNROLL
    for (int i = 0; i < kThreadRows; ++i) {
      const int row = WarpgroupSums<Config>::row_of(i);
      if (step < tensors_.num_steps && row < tensors_.num_rows)
        next_words_[i] = load_row_scale<Arrivals>(
            words_ + static_cast<uint32_t>(row - WarpgroupSums<Config>::row_of(0)) * tensors_.row_stride);
    }
    words_ += stride_;
  }
  SWITCHYARD_DEVICE void load_weights(uint32_t first_step) {
    const uint32_t step = first_step + static_cast<uint32_t>(target::lane_idx());
    SWITCHYARD_UNROLL
    for (int i = 0; i < Config::kNumScales; ++i)
      if (step < tensors_.num_steps) next_weights_[i] = target::ld(tensors_.weights[i] + step);
  }

  const StepScaleTensors<Config::kNumScales> tensors_;
  const RowScaleInWord in_word_;
  const uint32_t* words_;  // of row_of(0), that are loaded next
  uint64_t stride_;
  uint32_t step_ = 0;
  uint32_t next_words_[kThreadRows] = {};
  float rows_[kThreadRows] = {}, of_rows_[kThreadRows] = {};
  float weights_[Config::kNumScales] = {}, next_weights_[Config::kNumScales] = {};
};

// The product for fp8: a step's products with the columns that share a scale are separate sums, which are
// scaled before they are added up.
template <typename Config>
class ScaledWarpgroupProduct : public WarpgroupSums<Config> {
  using WarpgroupSums<Config>::kGroupBytes, WarpgroupSums<Config>::sums_;

 public:
  // Where the rows and the weights of a stage lie.
  struct Operands {
    uint32_t addresses[2];
  };
  SWITCHYARD_DEVICE static Operands operands(const unsigned char* rows, const unsigned char* weights) {
    Operands found{{target::matrix_address(rows), target::matrix_address(weights)}};
    target::hold_registers(found.addresses);  // found now, not when they are needed
    return found;
  }

  SWITCHYARD_DEVICE void clear() {
    SWITCHYARD_UNROLL
    for (float& sum : sums_) sum = 0;
  }
  // Starts the products with a group of columns.
  SWITCHYARD_DEVICE void start(const Operands& operands, int group, int /*num_rows*/) {
    constexpr uint32_t kUnitsOfGroup = Config::kColumnGroup * kPanelRowBytes / 16;
    const uint32_t rows = operands.addresses[0], weights = operands.addresses[1] + group * kUnitsOfGroup;
    target::hold_registers(step_sums_);
    target::matrix_fence();
    SWITCHYARD_UNROLL
    for (int step = 0; step < kPanelRowBytes / 32; ++step)  // 32 elements are two units of 16 bytes
      target::MatrixUnit<Config::kColumnGroup>::multiply_fp8(
          step_sums_, target::matrix_operand_at(rows + 2 * step, kGroupBytes),
          target::matrix_operand_at(weights + 2 * step, kGroupBytes), step != 0);
    target::matrix_commit();
    target::hold_registers(step_sums_);
  }
  SWITCHYARD_DEVICE void wait() {
    target::matrix_wait<0>();
    target::hold_registers(step_sums_);
  }
  // `group` is the one whose products were started last; equal parts of it have factors of their own.
  SWITCHYARD_DEVICE void add_scaled(int group, const StepFactors<Config>& factors) {
    constexpr int kSumsPerScale = kGroupSums / Config::kScalesPerGroup;
    SWITCHYARD_UNROLL
    for (int i = 0; i < kGroupSums; ++i) {
      float& sum = sums_[group * kGroupSums + i];
      sum = target::multiply_add(step_sums_[i], factors[i / kSumsPerScale][i / 2 % 2], sum);
    }
  }

 private:
  static constexpr int kGroupSums = Config::kColumnGroup / 2;

  float step_sums_[kGroupSums];
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
