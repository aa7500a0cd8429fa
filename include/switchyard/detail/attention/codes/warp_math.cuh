// What one warp computes of fp8 keys and values: 16 rows of scores of 16 keys, an online softmax, and the
// weighted sum of values, by products of fp16, which holds every code exactly. Codes go from shared memory
// into registers, and are converted there: a code takes half an instruction, a value's one more half, since
// pairs of keys must be put together.
//
// A product sums over pairs of columns in any order, as long as queries and keys agree. A lane takes 16
// neighbouring columns of a key at once and uses four of them in each product.
#pragma once

#include "switchyard/detail/attention/shared.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class WarpMath {
 public:
  // Takes 16 rows of a tile's queries, from first_row on; rows from num_rows on are 0. A row is multiplied by
  // a power of two, so that all of it is within the range of fp16. The scale of scores makes up for that, or
  // the factor of a soft cap, and contains key_scale, that of the codes.
  SWITCHYARD_DEVICE void begin(const unsigned char* queries, int first_row, int num_rows, float key_scale,
                               const AttentionSettings& settings) {
    first_row_ = first_row;
    const float scale_of_codes = settings.scale_log2 * key_scale;
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) {
      load_queries(queries, half, row(half) < num_rows);
      const float fit = fit_queries(half);
      scale_[half] = fit * scale_of_codes;
      if constexpr (Config::kAdjustsScores) {
        cap_factor_[half] = fit * (settings.cap_factor * key_scale);
        if (settings.cap_factor > 0) scale_[half] = settings.scale_log2;  // of the cap
      }
      scale_[half] = fmaxf(scale_[half], kLeastScale);
      row_max_[half] = kMinusInfinity;
      row_sum_[half] = 0;
    }
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumColumnTiles; ++i) {
      SWITCHYARD_UNROLL
      for (int j = 0; j < 4; ++j) outputs_[i][j] = 0;
    }
  }

  // Computes the scores of 16 keys of a block.
  SWITCHYARD_DEVICE void score(const unsigned char* keys, int first_key) {
    const int lane = target::lane_idx();
    float partial[2][4] = {};  // shorter chains of products
    SWITCHYARD_UNROLL
    for (int i = 0; i < 2; ++i) {
      SWITCHYARD_UNROLL
      for (int j = 0; j < 4; ++j) scores_[i][j] = 0;
    }
    SWITCHYARD_UNROLL
    for (int load = 0; load < kLoadsOfRow; ++load) {
      Vec16 codes[2];
      SWITCHYARD_UNROLL
      for (int i = 0; i < 2; ++i)
        codes[i] = target::ld_16(place_of(keys, first_key + i * 8 + lane / 4, unit_of(lane % 4, load)));
      SWITCHYARD_UNROLL
      for (int step = 0; step < 8; ++step) {
        const uint32_t word = codes[step % 2].words[step / 2];
        target::multiply_16x8(step / 2 % 2 == 0 ? scores_[step % 2] : partial[step % 2],
                              queries_[load * 4 + step / 2], target::f16x2_of_e4m3(word),
                              target::f16x2_of_e4m3(word >> 16));
      }
    }
    SWITCHYARD_UNROLL
    for (int i = 0; i < 2; ++i) {
      SWITCHYARD_UNROLL
      for (int j = 0; j < 4; ++j) scores_[i][j] += partial[i][j];
    }
  }

  // Turns each score into 1 - 2 / (1 + 2^(factor * score)): the hyperbolic tangent of a multiple of it.
  SWITCHYARD_DEVICE void cap_scores() {
    SWITCHYARD_UNROLL
    for (int i = 0; i < 2; ++i) {
      SWITCHYARD_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float power = target::exp2_approx(scores_[i][j] * cap_factor_[j / 2]);
        scores_[i][j] = target::multiply_add(-2.0f, target::reciprocal_approx(1.0f + power), 1.0f);
      }
    }
  }

  // Masks the scores of keys before first_of(row) and from end_of(row) on, both counted from the first of the
  // 16.
  template <typename FirstOf, typename EndOf>
  SWITCHYARD_DEVICE void mask(FirstOf first_of, EndOf end_of) {
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) {
      const int first = first_of(row(half)), end = end_of(row(half));
      SWITCHYARD_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int key = i / 2 * 8 + target::lane_idx() % 4 * 2 + i % 2;
        if (key < first || key >= end) score_of(half, i) = kMinusInfinity;
      }
    }
  }

  // Turns scores into weights relative to the largest score so far. That seldom changes, and only then lanes
  // need to agree on it and sums shrink.
  SWITCHYARD_DEVICE void weigh() {
    float max[kRowsPerThread];
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half)
      max[half] =
          fmaxf(fmaxf(score_of(half, 0), score_of(half, 1)), fmaxf(score_of(half, 2), score_of(half, 3)));
    if (target::ballot(max[0] > row_max_[0] || max[1] > row_max_[1]) != 0) raise(max);
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) {
      const float scaled_max = scaled_max_of(half);
      SWITCHYARD_UNROLL
      for (int i = 0; i < 4; ++i)
        score_of(half, i) =
            target::exp2_approx(target::multiply_add(score_of(half, i), scale_[half], -scaled_max));
      row_sum_[half] += score_of(half, 0) + score_of(half, 1) + (score_of(half, 2) + score_of(half, 3));
    }
  }

  // Adds the values of 16 keys of a block. Only the first num_keys of them are numbers, if kIsMasked.
  template <bool kIsMasked>
  SWITCHYARD_DEVICE void sum(const unsigned char* values, int first_key, int num_keys) {
    const int lane = target::lane_idx();
    const uint32_t weights[4] = {
        target::pack_f16x2(scores_[0][0], scores_[0][1]), target::pack_f16x2(scores_[0][2], scores_[0][3]),
        target::pack_f16x2(scores_[1][0], scores_[1][1]), target::pack_f16x2(scores_[1][2], scores_[1][3])};
    SWITCHYARD_UNROLL
    for (int unit = 0; unit < kUnits; unit += 2) {
      // Words 0 and 1 are the codes of columns 2g and 2g + 1 of two keys each, of the first and of the last
      // eight keys; words 2 and 3 are those of the next 16 columns.
      Vec16 codes =
          target::load_matrices_transposed(place_of(values, first_key + lane % 16, unit + lane / 16));
      SWITCHYARD_UNROLL
      for (int i = 0; i < 4; ++i) {
        uint32_t& word = codes.words[i];
        if constexpr (kIsMasked) word &= mask_of_pair(num_keys - i % 2 * 8 - lane % 4 * 2);
        word = target::permute_bytes(word, 0x3120);  // both keys' codes of a column side by side
      }
      SWITCHYARD_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int shift = i % 2 * 16;
        target::multiply_16x8(outputs_[2 * unit + i], weights,
                              target::f16x2_of_e4m3(codes.words[i / 2 * 2] >> shift),
                              target::f16x2_of_e4m3(codes.words[i / 2 * 2 + 1] >> shift));
      }
    }
  }

  // Hands the sums to another warp with the same rows.
  SWITCHYARD_DEVICE void store_sums(unsigned char* slot) const {
    unsigned char* place = slot + target::lane_idx() * sizeof(Vec16);
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumColumnTiles; ++i, place += kWarpSize * sizeof(Vec16))
      st_floats(place, outputs_[i]);
    st_floats(place, {row_max_[0], row_max_[1], row_sum_[0], row_sum_[1]});
  }
  SWITCHYARD_DEVICE void merge(const unsigned char* slot) {
    const unsigned char* place = slot + target::lane_idx() * sizeof(Vec16);
    float others[4];  // maxima and sums
    ld_floats(place + kNumColumnTiles * kWarpSize * sizeof(Vec16), others);
    float mine[kRowsPerThread], theirs[kRowsPerThread];  // by which the sums shrink
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) {
      const float old_max = row_max_[half];
      row_max_[half] = fmaxf(old_max, others[half]);
      mine[half] = shrink_from(old_max, half);
      theirs[half] = shrink_from(others[half], half);
      row_sum_[half] = row_sum_[half] * mine[half] + others[2 + half] * theirs[half];
    }
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumColumnTiles; ++i, place += kWarpSize * sizeof(Vec16)) {
      float sums[4];
      ld_floats(place, sums);
      SWITCHYARD_UNROLL
      for (int j = 0; j < 4; ++j) outputs_[i][j] = outputs_[i][j] * mine[j / 2] + sums[j] * theirs[j / 2];
    }
  }

  // Divides by the sum of the weights and multiplies by value_scale; store_lse(row, value) is called by one
  // thread of each row. sink_of(row) is one more score, without a value, if the kernel adjusts scores; minus
  // infinity: there is none.
  template <typename StoreLse, typename SinkOf>
  SWITCHYARD_DEVICE void finish(StoreLse store_lse, [[maybe_unused]] SinkOf sink_of, float value_scale) {
    float factor[kRowsPerThread];
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) {
      float sum = row_sum_[half];
      sum += target::shuffle_xor(sum, 1);
      sum += target::shuffle_xor(sum, 2);
      if constexpr (Config::kAdjustsScores) {
        const float max = row_max_[half] * scale_[half], sink = sink_of(row(half)) * kLog2E;
        const float top = fmaxf(max, sink) == kMinusInfinity ? 0.0f : fmaxf(max, sink);
        const float shrink = target::exp2_approx(max - top);
        sum = target::multiply_add(sum, shrink, target::exp2_approx(sink - top));
        factor[half] = sum == 0 ? 0.0f : target::divide(shrink, sum) * value_scale;
        if (target::lane_idx() % 4 == 0)
          store_lse(row(half), sum == 0 ? kMinusInfinity : (top + target::log2_approx(sum)) * kLn2);
        continue;
      }
      factor[half] = sum == 0 ? 0.0f : target::reciprocal_approx(sum) * value_scale;
      if (target::lane_idx() % 4 == 0)
        store_lse(row(half), sum == 0 ? kMinusInfinity
                                      : (row_max_[half] * scale_[half] + target::log2_approx(sum)) * kLn2);
    }
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumColumnTiles; ++i) {
      SWITCHYARD_UNROLL
      for (int j = 0; j < 4; ++j) outputs_[i][j] *= factor[j / 2];
    }
  }

  // Stores the rows: address_of(row) is where a row goes, or null. A lane has four neighbouring columns of
  // every 16.
  template <typename AddressOf>
  SWITCHYARD_DEVICE void store_rows_of(AddressOf address_of) const {
    for_columns(address_of, [](bf16* place, const float(&columns)[4]) {
      *reinterpret_cast<uint2*>(place) = make_uint2(target::pack_bf16x2(columns[0], columns[1]),
                                                    target::pack_bf16x2(columns[2], columns[3]));
    });
  }
  template <typename AddressOf>
  SWITCHYARD_DEVICE void store_floats(AddressOf address_of) const {
    for_columns(address_of, [](float* place, const float(&columns)[4]) { st_floats(place, columns); });
  }

 private:
  static constexpr int kRowsPerThread = 2;
  static constexpr int kUnits = Config::kHeadDim / 16;  // of 16 codes
  static constexpr int kLoadsOfRow = kUnits / 4;        // four lanes load a key's row
  static constexpr int kNumColumnTiles = Config::kHeadDim / 8;
  static constexpr float kMinusInfinity = -__builtin_huge_valf();
  static constexpr float kLn2 = 0.69314718055994531f, kLog2E = 1.4426950408889634f;
  // 0 x -inf, of a masked score, would be NaN. A head whose codes are all 0 may have a scale of 0.
  static constexpr float kLeastScale = 1e-37f;

  SWITCHYARD_DEVICE int row(int half) const { return first_row_ + half * 8 + target::lane_idx() / 4; }
  // Which 16 columns lane `lane_in_row` of a row's four takes with its load `load`: such that two rows' lanes
  // meet at no bank, where a row has eight units.
  SWITCHYARD_DEVICE static int unit_of(int lane_in_row, int load) {
    return kLoadsOfRow == 1 ? lane_in_row : load / 2 * 8 + lane_in_row * 2 + load % 2;
  }
  // Where 16 codes of a key lie.
  SWITCHYARD_DEVICE static const unsigned char* place_of(const unsigned char* codes, int key, int unit) {
    return codes + (unit / 8 * Config::kTileKeys + key) * kPanelRowBytes +
           target::unit_in_row(key & 7, unit % 8) * sizeof(Vec16);
  }
  SWITCHYARD_DEVICE static uint32_t mask_of_pair(int num_keys) {
    return num_keys >= 2 ? 0xffffffffu : num_keys == 1 ? 0x0000ffffu : 0u;
  }
  SWITCHYARD_DEVICE static void st_floats(void* place, const float (&values)[4]) {
    *static_cast<float4*>(place) = make_float4(values[0], values[1], values[2], values[3]);
  }
  SWITCHYARD_DEVICE static void ld_floats(const void* place, float (&values)[4]) {
    const float4 loaded = *static_cast<const float4*>(place);
    values[0] = loaded.x, values[1] = loaded.y, values[2] = loaded.z, values[3] = loaded.w;
  }
  SWITCHYARD_DEVICE float& score_of(int half, int i) { return scores_[i / 2][half * 2 + i % 2]; }
  // A row that has seen no key yet may use any finite number.
  SWITCHYARD_DEVICE float scaled_max_of(int half) const {
    return row_max_[half] == kMinusInfinity ? 0.0f : row_max_[half] * scale_[half];
  }

  // By what sums that are relative to another maximum shrink.
  SWITCHYARD_DEVICE float shrink_from(float other_max, int half) const {
    return other_max == row_max_[half] ? 1.0f
                                       : target::exp2_approx((other_max - row_max_[half]) * scale_[half]);
  }

  SWITCHYARD_DEVICE void load_queries(const unsigned char* queries, int half, bool is_there) {
    SWITCHYARD_UNROLL
    for (int i = 0; i < 2 * kLoadsOfRow; ++i) {
      const int unit = unit_of(target::lane_idx() % 4, i / 2) * 2 + i % 2;  // of 8 columns
      const unsigned char* place = queries + (unit / 8 * Config::kTileRows + row(half)) * kPanelRowBytes +
                                   target::unit_in_row(row(half), unit % 8) * sizeof(Vec16);
      const Vec16 loaded = is_there ? target::ld_16(place) : Vec16{};
      SWITCHYARD_UNROLL
      for (int j = 0; j < 4; ++j) queries_[2 * i + j / 2][half + j % 2 * 2] = loaded.words[j];
    }
  }
  // Turns a row of queries from bf16 into fp16, multiplied by a power of two that takes its largest number to
  // 2^14 or above. Returns one over that power.
  SWITCHYARD_DEVICE float fit_queries(int half) {
    float max = 0;
    for_pairs(half, [&](uint32_t pair) {
      max = fmaxf(max, fmaxf(fabsf(__uint_as_float(pair << 16)), fabsf(__uint_as_float(pair & 0xffff0000u))));
      return pair;
    });
    max = fmaxf(max, target::shuffle_xor(max, 1));
    max = fmaxf(max, target::shuffle_xor(max, 2));
    constexpr uint32_t kBias = 127, kTop = 14, kLeastExponent = 20;
    uint32_t exponent = __float_as_uint(max) >> 23;
    if (exponent < kLeastExponent) exponent = kLeastExponent;
    const float power = __uint_as_float((2 * kBias + kTop - exponent) << 23);
    for_pairs(half, [&](uint32_t pair) {
      return target::pack_f16x2(__uint_as_float(pair << 16) * power,
                                __uint_as_float(pair & 0xffff0000u) * power);
    });
    return __uint_as_float((exponent - kTop) << 23);
  }
  // Replaces each pair of a row's columns.
  template <typename Change>
  SWITCHYARD_DEVICE void for_pairs(int half, Change change) {
    SWITCHYARD_UNROLL
    for (int step = 0; step < 4 * kLoadsOfRow; ++step) {
      queries_[step][half] = change(queries_[step][half]);
      queries_[step][half + 2] = change(queries_[step][half + 2]);
    }
  }
  // Raises the maxima of the rows to `max`, of this lane's columns, and shrinks the sums.
  SWITCHYARD_DEVICE void raise(float (&max)[kRowsPerThread]) {
    float shrink[kRowsPerThread];
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) {
      max[half] = fmaxf(max[half], target::shuffle_xor(max[half], 1));
      max[half] = fmaxf(max[half], target::shuffle_xor(max[half], 2));
      const float old_max = row_max_[half];
      row_max_[half] = fmaxf(old_max, max[half]);
      shrink[half] = shrink_from(old_max, half);
      row_sum_[half] *= shrink[half];
    }
    SWITCHYARD_UNROLL
    for (int i = 0; i < kNumColumnTiles; ++i) {
      SWITCHYARD_UNROLL
      for (int j = 0; j < 4; ++j) outputs_[i][j] *= shrink[j / 2];
    }
  }
  template <typename AddressOf, typename Store>
  SWITCHYARD_DEVICE void for_columns(AddressOf address_of, Store store) const {
    SWITCHYARD_UNROLL
    for (int half = 0; half < kRowsPerThread; ++half) {
      auto* address = address_of(row(half));
      if (address == nullptr) continue;
      SWITCHYARD_UNROLL
      for (int unit = 0; unit < kUnits; ++unit) {
        const float *even = outputs_[2 * unit] + half * 2, *odd = outputs_[2 * unit + 1] + half * 2;
        store(address + unit * 16 + target::lane_idx() % 4 * 4, {even[0], odd[0], even[1], odd[1]});
      }
    }
  }

  int first_row_ = 0;
  float scale_[kRowsPerThread];       // of a row's scores, which with a soft cap are tangents
  float cap_factor_[kRowsPerThread];  // of a kernel that adjusts scores
  float row_max_[kRowsPerThread];
  float row_sum_[kRowsPerThread];         // of this thread's keys
  uint32_t queries_[4 * kLoadsOfRow][4];  // as the products take them
  float scores_[2][4];                    // of eight keys each
  float outputs_[kNumColumnTiles][4];     // even columns of 16, then odd ones
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
