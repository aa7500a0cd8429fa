// Rows times a consumer's coded weights, on Hopper's matrix unit, which knows no such codes. The product is
// transposed: weights are the first operand, 64 columns of them, and are decoded into the registers that the
// matrix unit reads; rows are the second, in shared memory. While a product is in flight the next 16 elements
// of the inner dimension are decoded.
#pragma once

#include "switchyard/detail/gemm/tiled/activate.hpp"
#include "switchyard/detail/gemm/tiled/weight_codes.hpp"
#include "switchyard/detail/target/matrix.hpp"
#include "switchyard/detail/target/warpgroup.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Codes and scales as pairs of bf16. The bits of a code, moved to where a bf16 has such bits, are the code's
// value times a power of two, subnormal or not, since both have the same form; only a NaN would come out as
// 480. The factor that a scale becomes makes up for that power, and leaves 1 / kSumFactor, by which all
// factors are in range: those of e8m0 up to 2^32, and all of e4m3.
template <WeightFormat kFormat>
struct CodePairs {
  static constexpr bool kIsE2M1 = kFormat != WeightFormat::kMXFP8;
  static constexpr float kSumFactor = kFormat == WeightFormat::kNVFP4 ? 0x1p8f : 0x1p32f;

  // Of 8 codes along K, lane i has codes 2 (i % 4) and 2 (i % 4) + 1.
  static constexpr int kWordsOf8 = kIsE2M1 ? 1 : 2;
  SWITCHYARD_DEVICE static uint32_t selector() {
    const uint32_t lane_in_quad = static_cast<uint32_t>(target::lane_idx() % 4);
    return kIsE2M1 ? 0x4400 + lane_in_quad * 0x1111 : 0x1100 + lane_in_quad * 0x2222;
  }
  // Times 2^-126, of e4m3 2^-120.
  SWITCHYARD_DEVICE static uint32_t pair(const uint32_t* words, uint32_t selector) {
    if constexpr (kIsE2M1) {
      // Each code goes to the upper half of the upper byte of its bf16.
      const uint32_t codes = target::permute_bytes(words[0] << 4, words[0], selector);
      return (codes & 0x80008000u) | (codes >> 6 & 0x01c001c0u);
    } else {
      return pair_of_e4m3(target::permute_bytes(words[0], words[1], selector));
    }
  }

  // A lane converts a quarter of a stage's scales of each of its columns.
  static constexpr int kQuarterScales = kIsE2M1 ? 64 / scale_group_size(kFormat) : 1;
  static constexpr int kFactorWords = (kQuarterScales + 1) / 2;
  using LoadedScales = std::conditional_t<kQuarterScales == 4, uint32_t,
                                          std::conditional_t<kQuarterScales == 2, uint16_t, uint8_t>>;
  SWITCHYARD_DEVICE static void factors(uint32_t scales, uint32_t (&words)[kFactorWords]) {
    if constexpr (kFormat == WeightFormat::kNVFP4) {
      constexpr uint32_t kTwoTo119 = 0x7b007b00;  // twice, in bf16: a scale becomes the factor 2^118 * scale
      words[0] = pair_of_e4m3(target::permute_bytes(scales, 0, 0x1100));
      words[1] = pair_of_e4m3(target::permute_bytes(scales, 0, 0x3322));
      SWITCHYARD_UNROLL
      for (uint32_t& word : words)
        word = target::multiply_bf16x2(target::multiply_bf16x2(word, kTwoTo119), kTwoTo119);
    } else {
      words[0] = factor_of_e8m0(scales & 0xff) | factor_of_e8m0(scales >> 8) << 16;
    }
  }

 private:
  SWITCHYARD_DEVICE static uint32_t pair_of_e4m3(uint32_t codes_in_upper_bytes) {
    return (codes_in_upper_bytes & 0x80008000u) | (codes_in_upper_bytes >> 4 & 0x07f007f0u);
  }
  // The bf16 2^(scale - 127) / kSumFactor times 2^126, of e4m3 2^120; infinity beyond its range.
  SWITCHYARD_DEVICE static uint32_t factor_of_e8m0(uint32_t scale) {
    const uint32_t exponent = scale + (kIsE2M1 ? 126 - 32 : 120 - 32);
    return (exponent < 255 ? exponent : 255) << 7;
  }
};

template <typename Config>
class CodedProduct {
 public:
  // scales_of(column) is where the scales of one of the consumer's columns are, num_scales of them, or null.
  template <typename ScalesOf>
  SWITCHYARD_DEVICE void begin(uint32_t num_scales, ScalesOf scales_of) {
    num_scales_ = num_scales;
    SWITCHYARD_UNROLL
    for (int i = 0; i < kThreadColumns; ++i) scales_[i] = scales_of(column_of(i));
    load_scales(0);
    SWITCHYARD_UNROLL
    for (int block = 0; block < kNumBlocks; ++block) {
      SWITCHYARD_UNROLL
      for (float& sum : sums_[block]) sum = 0;
    }
  }

  // `rows` points to the first panel of a stage, `codes` to those of the consumer's first column. When
  // start() returns, the products of the last step have ended, and the codes of this one have been read.
  SWITCHYARD_DEVICE void start(const unsigned char* rows, const unsigned char* codes, uint32_t step,
                               int /*num_rows*/) {
    uint32_t factors[kThreadColumns][Codes::kFactorWords];
    SWITCHYARD_UNROLL
    for (int i = 0; i < kThreadColumns; ++i) Codes::factors(loaded_scales_[i], factors[i]);
    load_scales(step + 1);
    const uint64_t row_operand = target::matrix_operand(rows, kGroupBytes, 0);
    SWITCHYARD_ROLLED
    for (int quarter = 0; quarter < 4; ++quarter) {
      uint32_t of_quarter[kThreadColumns][Codes::kFactorWords];
      SWITCHYARD_UNROLL
      for (int i = 0; i < kThreadColumns; ++i) {
        SWITCHYARD_UNROLL
        for (int word = 0; word < Codes::kFactorWords; ++word)
          of_quarter[i][word] = target::shuffle(factors[i][word], target::lane_idx() / 4 * 4 + quarter);
      }
      const int first_16 = quarter * kQuarter16s;
      multiply_quarter(row_operand + static_cast<uint32_t>(first_16 / 4 * (Config::kRowPanelBytes / 16) +
                                                           first_16 % 4 * 2),
                       codes, quarter, of_quarter);
    }
  }
  SWITCHYARD_DEVICE void wait() {
    target::matrix_wait<0>();
    SWITCHYARD_UNROLL
    for (auto& sums : sums_) target::hold_registers(sums);
  }
  // `factor` is that of the expert.
  SWITCHYARD_DEVICE void multiply_all(float factor) {
    SWITCHYARD_UNROLL
    for (auto& sums : sums_) {
      SWITCHYARD_UNROLL
      for (float& sum : sums) sum *= factor * Codes::kSumFactor;
    }
  }

  // The epilogue, as in warpgroup_product.cuh.
  static constexpr int kThreadRows = Config::kTileRows / 4;
  SWITCHYARD_DEVICE static constexpr bool has_rows() { return true; }
  SWITCHYARD_DEVICE static int row_of(int i) { return i / 2 * 8 + target::lane_idx() % 4 * 2 + i % 2; }

  template <typename BiasOf>
  SWITCHYARD_DEVICE void add_bias(BiasOf bias_of) {
    SWITCHYARD_UNROLL
    for (int column = 0; column < kThreadColumns; ++column) {
      const float bias = bias_of(column_of(column));
      SWITCHYARD_UNROLL
      for (int i = 0; i < kThreadRows; ++i) sum_of(column, i) += bias;
    }
  }
  SWITCHYARD_DEVICE void multiply_rows(const float (&weights)[kThreadRows]) {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kThreadRows; ++i) {
      SWITCHYARD_UNROLL
      for (int column = 0; column < kThreadColumns; ++column) sum_of(column, i) *= weights[i];
    }
  }
  SWITCHYARD_DEVICE void activate_all(const ActivationNumbers& numbers) {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kBlockSums; ++i) sums_[0][i] = activate(numbers, sums_[0][i], sums_[1][i]);
  }
  template <typename RowAddress>
  SWITCHYARD_DEVICE void store(int num_columns, RowAddress row_address) const {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kThreadRows; ++i) {
      bf16* row = row_address(row_of(i));
      SWITCHYARD_UNROLL
      for (int first = 0; first < Config::kOutputColumns / kBlockColumns * 2; first += 2) {
        const int column = column_of(first);
        if (row != nullptr && column < num_columns)
          target::st(reinterpret_cast<uint32_t*>(row + column),
                     target::pack_bf16x2(sum_of(first, i), sum_of(first + 1, i)));
      }
    }
  }

 private:
  using Codes = CodePairs<Config::kWeights>;

  static constexpr int kBlockColumns = 64;  // of a product
  static constexpr int kNumBlocks = Config::kConsumerColumns / kBlockColumns;
  static constexpr int kThreadColumns = 2 * kNumBlocks;
  static constexpr int kBlockSums = Config::kTileRows / 2;
  static constexpr int kGroupBytes = 8 * kPanelRowBytes;
  static constexpr int kQuarter16s = Config::kStageInner / 16 / 4;  // times 16 elements in a quarter
  static constexpr int kUnits = kPanelRowBytes / 16 / 4;            // of 16 bytes of codes, in a quarter
  static constexpr int kUnit16s = kQuarter16s / kUnits;
  static_assert(kNumBlocks == 2 && kQuarter16s % 2 == 0);

  // A thread has two neighbouring columns of each block. (Which columns the rows of an operand are is free.)
  SWITCHYARD_DEVICE static int column_of(int i) {
    const int warp_in_group = target::thread_idx() % kWarpgroupThreads / kWarpSize;
    return i / 2 * kBlockColumns + warp_in_group * 16 + target::lane_idx() / 4 * 2 + i % 2;
  }
  SWITCHYARD_DEVICE float& sum_of(int column, int i) {
    return sums_[column / 2][i / 2 * 4 + column % 2 * 2 + i % 2];
  }
  SWITCHYARD_DEVICE float sum_of(int column, int i) const {
    return sums_[column / 2][i / 2 * 4 + column % 2 * 2 + i % 2];
  }

  // Those of a step, a quarter of them for each lane of four. What lies behind the last one has scales of 0.
  SWITCHYARD_DEVICE void load_scales(uint32_t step) {
    const uint32_t first = (step * 4 + static_cast<uint32_t>(target::lane_idx() % 4)) *
                           static_cast<uint32_t>(Codes::kQuarterScales);
    SWITCHYARD_UNROLL
    for (int i = 0; i < kThreadColumns; ++i)
      loaded_scales_[i] =
          scales_[i] != nullptr && first < num_scales_
              ? target::ld(reinterpret_cast<const typename Codes::LoadedScales*>(scales_[i] + first))
              : 0;
  }

  SWITCHYARD_DEVICE void multiply_quarter(uint64_t row_operand, const unsigned char* codes, int quarter,
                                          const uint32_t (&factors)[kThreadColumns][Codes::kFactorWords]) {
    constexpr int kGroup16s = scale_group_size(Config::kWeights) / 16;
    const uint32_t selector = Codes::selector();
    SWITCHYARD_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      Vec16 words[kThreadColumns];
      SWITCHYARD_UNROLL
      for (int i = 0; i < kThreadColumns; ++i) {
        const int column = column_of(i);
        words[i] = target::ld_16(codes + column * kPanelRowBytes +
                                 target::unit_in_row(column, quarter * kUnits + unit) * 16);
      }
      SWITCHYARD_UNROLL
      for (int in_unit = 0; in_unit < kUnit16s; ++in_unit) {
        const int in_quarter = unit * kUnit16s + in_unit, set = in_quarter % 2;
        const int group = in_quarter / kGroup16s;
        target::matrix_wait<1>();  // the products before the last ones, which have read this set, have ended
        hold(set);
        SWITCHYARD_UNROLL
        for (int i = 0; i < kThreadColumns; ++i) {
          const uint32_t factor =
              target::permute_bytes(factors[i][group / 2], 0, group % 2 == 0 ? 0x1010 : 0x3232);
          SWITCHYARD_UNROLL
          for (int half = 0; half < 2; ++half)
            weights_[set][i / 2][i % 2 + half * 2] = target::multiply_bf16x2(
                Codes::pair(words[i].words + (in_unit * 2 + half) * Codes::kWordsOf8, selector), factor);
        }
        hold(set);
        target::matrix_fence();
        SWITCHYARD_UNROLL
        for (int block = 0; block < kNumBlocks; ++block)
          target::MatrixUnit<Config::kTileRows>::multiply_registers(sums_[block], weights_[set][block],
                                                                    row_operand + in_quarter * 2);
        target::matrix_commit();
      }
    }
  }
  // Keeps the compiler from moving accesses to these registers across this point.
  SWITCHYARD_DEVICE void hold(int set) {
    SWITCHYARD_UNROLL
    for (int block = 0; block < kNumBlocks; ++block) {
      target::hold_registers(weights_[set][block]);
      target::hold_registers(sums_[block]);
    }
  }

  float sums_[kNumBlocks][kBlockSums];  // of a thread: every fourth pair of rows, of two columns each
  uint32_t weights_[2][kNumBlocks][4];  // two sets of 16 elements of K, which alternate
  const uint8_t* scales_[kThreadColumns];
  uint32_t loaded_scales_[kThreadColumns];  // of the next step
  uint32_t num_scales_;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
