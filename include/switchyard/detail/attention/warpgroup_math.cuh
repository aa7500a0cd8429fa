// What one consumer computes, on Hopper's matrix unit: 64 rows of scores from stages in shared memory, an
// online softmax in registers, and the weighted sum of values with the weights in registers. Products are in
// flight while the warpgroup does other work; start_*() issues one, wait_*() waits for it.
#pragma once

#include <type_traits>

#include "switchyard/detail/attention/shared.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class WarpgroupMath {
 public:
  static constexpr int kKeys = Config::kTileKeys;
  static constexpr int kNumScores = kKeys / 2;  // of a thread: two rows, every fourth pair of columns
  static constexpr int kNumOutputs = Config::kHeadDim / 2;
  static constexpr int kRowsPerThread = 2;

  SWITCHYARD_DEVICE explicit WarpgroupMath(float scale_log2) : scale_log2_(scale_log2) {}

  // The row among the warpgroup's 64 that `half` of this thread's registers belongs to.
  SWITCHYARD_DEVICE static int row(int half) {
    const int thread = target::thread_idx() % kWarpgroupThreads;
    return thread / kWarpSize * 16 + half * 8 + target::lane_idx() / 4;
  }

  SWITCHYARD_DEVICE void begin() {
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) {
      row_max_[half] = kMinusInfinity;
      row_sum_[half] = 0;
    }
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumOutputs; ++i) outputs_[i] = 0;
  }

  // `queries` points to this warpgroup's 64 rows of the first panel.
  SWITCHYARD_DEVICE void start_scores(const unsigned char* queries, const unsigned char* keys) {
    target::hold_registers(scores_);
    multiply_keys<kKeys>(queries, keys);
    target::hold_registers(scores_);
  }
  // Starts the scores of at least the block's first num_keys keys; the others must be masked.
  SWITCHYARD_DEVICE void start_scores_of_part(const unsigned char* queries, const unsigned char* keys,
                                              int num_keys) {
    target::hold_registers(scores_);
    with_parts(num_keys, [&](auto width) {
      multiply_keys<width>(queries, keys);
      target::matrix_wait<0>();  // else the assembler runs out of registers where the branches join
    });
    target::hold_registers(scores_);
  }
  // Starts the sums of at least the block's first num_keys keys; the others' weights are 0.
  SWITCHYARD_DEVICE void start_sums(const unsigned char* values, int num_keys) {
    target::hold_registers(outputs_);
    target::hold_registers(weights_);
    with_parts(num_keys, [&](auto width) { multiply_values<width>(values); });
    target::hold_registers(outputs_);
  }
  // With kPending 1 the sums that were started after the scores may stay in flight.
  template <int kPending>
  SWITCHYARD_DEVICE void wait_scores() {
    target::matrix_wait<kPending>();
    target::hold_registers(scores_);
  }
  // With kPending 1 the scores that were started after the sums may stay in flight.
  template <int kPending>
  SWITCHYARD_DEVICE void wait_sums() {
    target::matrix_wait<kPending>();
    target::hold_registers(outputs_);
    target::hold_registers(weights_);
  }

  // Turns each score into 1 - 2 / (1 + 2^(factor * score)): the hyperbolic tangent of a multiple of it.
  SWITCHYARD_DEVICE void cap_scores(float factor) {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumScores; ++i) {
      const float power = target::exp2_approx(scores_[i] * factor);
      scores_[i] = target::multiply_add(-2.0f, target::reciprocal_approx(1.0f + power), 1.0f);
    }
  }

  // Masks the scores of keys from end_of(row) on, or before first_of(row), both counted from the block's
  // first key.
  template <typename EndOf>
  SWITCHYARD_DEVICE void mask_from(EndOf end_of) {
    mask_if(end_of, [](int column, int end) { return column >= end; });
  }
  template <typename FirstOf>
  SWITCHYARD_DEVICE void mask_before(FirstOf first_of) {
    mask_if(first_of, [](int column, int first) { return column < first; });
  }

  // Turns scores into weights relative to the largest score so far, and keeps the factor by which the
  // previous sums shrink.
  SWITCHYARD_DEVICE void exponentiate() {
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) {
      // Independent chains, so that an instruction need not wait for the previous one.
      float max_of_chain[kNumChains], sum_of_chain[kNumChains];
      SWITCHYARD_UNROLL
      for (int chain = 0; chain < kNumChains; ++chain) max_of_chain[chain] = row_max_[half];
      SWITCHYARD_UNROLL
      for (int i = 0; i < kNumScores / 2; ++i)
        max_of_chain[i % kNumChains] =
            fmaxf(max_of_chain[i % kNumChains], scores_[i / 2 * 4 + half * 2 + i % 2]);
      float max = fmaxf(fmaxf(max_of_chain[0], max_of_chain[1]), fmaxf(max_of_chain[2], max_of_chain[3]));
      max = fmaxf(max, target::shuffle_xor(max, 1));
      max = fmaxf(max, target::shuffle_xor(max, 2));
      // A row that has seen no key yet may use any finite number.
      const float scaled_max = max == kMinusInfinity ? 0.0f : max * scale_log2_;
      shrink_[half] =
          max == row_max_[half] ? 1.0f : target::exp2_approx(row_max_[half] * scale_log2_ - scaled_max);
      row_max_[half] = max;
      SWITCHYARD_UNROLL
      for (int i = 0; i < kNumScores / 2; ++i) {
        float& score = scores_[i / 2 * 4 + half * 2 + i % 2];
        score = target::exp2_approx(target::multiply_add(score, scale_log2_, -scaled_max));
        sum_of_chain[i % kNumChains] = i < kNumChains ? score : sum_of_chain[i % kNumChains] + score;
      }
      const float sum = sum_of_chain[0] + sum_of_chain[1] + (sum_of_chain[2] + sum_of_chain[3]);
      row_sum_[half] = target::multiply_add(row_sum_[half], shrink_[half], sum);
    }
  }
  // After wait_sums(): rounds the weights for the next sums.
  SWITCHYARD_DEVICE void take_weights() {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumScores / 2; ++i)
      weights_[i] = target::pack_bf16x2(scores_[2 * i], scores_[2 * i + 1]);
  }
  SWITCHYARD_DEVICE void shrink_sums() {
    if (target::ballot(shrink_[0] != 1.0f || shrink_[1] != 1.0f) == 0) return;
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumOutputs; ++i) outputs_[i] *= shrink_[i / 2 % 2];
  }

  // Divides by the sum of the weights; lse(row, value) is called by one thread of each row. sink_of(row) is
  // one more score, without a value, if the kernel adjusts scores; minus infinity: there is none.
  template <typename StoreLse, typename SinkOf>
  SWITCHYARD_DEVICE void finish(StoreLse store_lse, [[maybe_unused]] SinkOf sink_of) {
    float factor[kRowsPerThread];
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) {
      float sum = row_sum_[half];
      sum += target::shuffle_xor(sum, 1);
      sum += target::shuffle_xor(sum, 2);
      if constexpr (Config::kAdjustsScores) {
        const float max = row_max_[half] * scale_log2_, sink = sink_of(row(half)) * kLog2E;
        const float top = fmaxf(max, sink) == kMinusInfinity ? 0.0f : fmaxf(max, sink);
        const float shrink = target::exp2_approx(max - top);
        sum = target::multiply_add(sum, shrink, target::exp2_approx(sink - top));
        factor[half] = sum == 0 ? 0.0f : target::divide(shrink, sum);
        if (target::lane_idx() % 4 == 0)
          store_lse(row(half), sum == 0 ? kMinusInfinity : (top + target::log2_approx(sum)) * kLn2);
        continue;
      }
      factor[half] = sum == 0 ? 0.0f : target::reciprocal_approx(sum);
      if (target::lane_idx() % 4 == 0)
        store_lse(row(half), sum == 0 ? kMinusInfinity
                                      : (row_max_[half] * scale_log2_ + target::log2_approx(sum)) * kLn2);
    }
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumOutputs; ++i) outputs_[i] *= factor[i / 2 % 2];
  }

  // Stores the rows as bf16: address_of(row) is where a row goes, or null. Four lanes have a row's columns
  // pair by pair; they exchange them until each has eight neighbouring columns.
  template <typename AddressOf>
  SWITCHYARD_DEVICE void store_rows_of(AddressOf address_of) const {
    const int lane_in_row = target::lane_idx() % 4;
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) {
      bf16* address = address_of(row(half));
      SWITCHYARD_UNROLL
      for (int first_unit = 0; first_unit < Config::kHeadDim / 8; first_unit += 4) {
        Vec16 words;
        SWITCHYARD_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float* pair = outputs_ + (first_unit + i) * 4 + half * 2;
          words.words[i] = target::pack_bf16x2(pair[0], pair[1]);
        }
        target::transpose_quad(words);
        if (address != nullptr) target::st_16(address + (first_unit + lane_in_row) * 8, words);
      }
    }
  }
  // Stores the first num_rows of this warp's 16 rows as bf16, `stride` elements apart, from `first` on,
  // through the shared memory `staged`, which belongs to this warp.
  SWITCHYARD_DEVICE void store_rows_through(unsigned char* staged, bf16* first, int64_t stride,
                                            int num_rows) const {
    constexpr int kUnits = Config::kHeadDim / 8, kRowsAtOnce = kWarpSize / kUnits;
    const int lane = target::lane_idx();
    target::sync_warp();  // the rows of the previous tile are read
    SWITCHYARD_UNROLL
    for (int unit = 0; unit < kUnits; unit += 2) {
      Vec16 words;
      SWITCHYARD_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = outputs_ + (unit + i / 2) * 4 + i % 2 * 2;
        words.words[i] = target::pack_bf16x2(pair[0], pair[1]);
      }
      target::store_matrices(staged + lane % 16 * Config::kStagedRowBytes + (unit + lane / 16) * 16, words);
    }
    target::sync_warp();
    SWITCHYARD_UNROLL
    for (int i = 0; i < 16; i += kRowsAtOnce) {
      const int row = i + lane / kUnits, unit = lane % kUnits;
      if (row < num_rows)
        target::st_16(first + row * stride + unit * 8,
                      target::ld_16(staged + row * Config::kStagedRowBytes + unit * 16));
    }
  }
  // Stores the rows as fp32: address_of(row) is where a row goes, or null.
  template <typename AddressOf>
  SWITCHYARD_DEVICE void store_floats(AddressOf address_of) const {
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) {
      float* address = address_of(row(half));
      if (address == nullptr) continue;
      SWITCHYARD_UNROLL
      for (int i = 0; i < Config::kHeadDim / 8; ++i)
        *reinterpret_cast<float2*>(address + i * 8 + target::lane_idx() % 4 * 2) =
            make_float2(outputs_[i * 4 + half * 2], outputs_[i * 4 + half * 2 + 1]);
    }
  }

 protected:
  static constexpr int kNumChains = 4;
  static constexpr int kGroupBytes = 8 * kPanelRowBytes;
  static constexpr float kMinusInfinity = -__builtin_huge_valf();
  static constexpr float kLn2 = 0.69314718055994531f, kLog2E = 1.4426950408889634f;

  // Calls multiply with a constant: the fewest whole parts that hold num_keys keys, or the whole block.
  template <typename Multiply>
  SWITCHYARD_DEVICE static void with_parts(int num_keys, Multiply multiply) {
    constexpr int kPart = Config::kPartKeys;
    static_assert(kPart == kKeys || (2 * kPart < kKeys && 3 * kPart >= kKeys));
    if constexpr (kPart < kKeys) {
      if (num_keys <= kPart) return multiply(std::integral_constant<int, kPart>{});
      if (num_keys <= 2 * kPart) return multiply(std::integral_constant<int, 2 * kPart>{});
    }
    multiply(std::integral_constant<int, kKeys>{});
  }
  template <int kNumKeys>
  SWITCHYARD_DEVICE void multiply_values(const unsigned char* values) {
    target::matrix_fence();
    const uint64_t value_operand = target::matrix_operand(values, kGroupBytes, kKeys * kPanelRowBytes);
    SWITCHYARD_UNROLL
    for (int inner_idx = 0; inner_idx < kNumKeys / 16; ++inner_idx)
      target::MatrixUnit<Config::kHeadDim>::multiply_transposed(
          outputs_, weights_ + inner_idx * 4, value_operand + inner_idx * (2 * kGroupBytes / 16));
    target::matrix_commit();
  }
  template <int kWidth>
  SWITCHYARD_DEVICE void multiply_keys(const unsigned char* queries, const unsigned char* keys) {
    target::matrix_fence();
    const uint64_t query_operand = target::matrix_operand(queries, kGroupBytes, 0);
    const uint64_t key_operand = target::matrix_operand(keys, kGroupBytes, 0);
    auto& scores = reinterpret_cast<float(&)[kWidth / 2]>(scores_);
    SWITCHYARD_UNROLL
    for (int inner_idx = 0; inner_idx < Config::kHeadDim / 16; ++inner_idx) {
      const int panel = inner_idx / 4, in_panel = inner_idx % 4 * 2;  // 16 columns are two units of 16 bytes
      target::MatrixUnit<kWidth>::multiply(
          scores, query_operand + panel * (Config::kTileRows * kPanelRowBytes / 16) + in_panel,
          key_operand + panel * (kKeys * kPanelRowBytes / 16) + in_panel, inner_idx != 0);
    }
    target::matrix_commit();
  }

  // Handles kAtOnce columns at a time: most of a block's columns are seen by all rows of a warp.
  template <typename LimitOf, typename IsMasked>
  SWITCHYARD_DEVICE void mask_if(LimitOf limit_of, IsMasked is_masked) {
    constexpr int kAtOnce = kKeys % 32 == 0 ? 32 : kKeys % 40 == 0 ? 40 : 88;
    int limits[kRowsPerThread];
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) limits[half] = limit_of(row(half));
    const int first_of_thread = target::lane_idx() % 4 * 2;
    SWITCHYARD_UNROLL
    for (int first = 0; first < kKeys; first += kAtOnce) {
      bool is_any = false;
      SWITCHYARD_UNROLL
      for (int half = 0; half < kRowsPerThread; ++half)
        is_any |= is_masked(first, limits[half]) || is_masked(first + kAtOnce - 1, limits[half]);
      if (target::ballot(is_any) == 0) continue;
      SWITCHYARD_UNROLL
      for (int half = 0; half < kRowsPerThread; ++half) {
        SWITCHYARD_UNROLL
        for (int i = first / 4; i < (first + kAtOnce) / 4; ++i) {
          float& score = scores_[i / 2 * 4 + half * 2 + i % 2];
          score = is_masked(i / 2 * 8 + i % 2, limits[half] - first_of_thread) ? kMinusInfinity : score;
        }
      }
    }
  }

  float scale_log2_;
  float scores_[kNumScores];
  float outputs_[kNumOutputs];
  uint32_t weights_[kNumScores / 2];
  float row_max_[kRowsPerThread];
  float row_sum_[kRowsPerThread];  // of this thread's columns
  float shrink_[kRowsPerThread];
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
