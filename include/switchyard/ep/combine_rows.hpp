// What expert rows travel as on their way back: as they are, or as blockwise fp8. A row of fp8 is an encoded
// token: codes of e4m3, then a float scale per 128 of them.
#pragma once

#include "switchyard/ep/epilogue.hpp"
#include "switchyard/format/blockwise_fp8.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// A thread takes kColumns columns at a time. What a row counts for in a sum is its factor.
struct BF16CombineRows {
  using Chunk = Vec16;
  static constexpr int kColumns = 8;

  SWITCHYARD_HD static constexpr uint32_t row_bytes(int hidden) {
    return static_cast<uint32_t>(hidden) * static_cast<uint32_t>(sizeof(bf16));
  }
  // A row of bf16 into a message.
  SWITCHYARD_DEVICE static void encode(const bf16* row, std::byte* message, int hidden, int worker_idx,
                                       int num_workers) {
    target::copy_row(message, row, row_bytes(hidden), worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE static Chunk load(const std::byte* row, int column) {
    return target::ld_16(row + static_cast<uint64_t>(column) * sizeof(bf16));
  }
  SWITCHYARD_DEVICE static float load_factor(const std::byte*, int, int, float weight) { return weight; }
  SWITCHYARD_DEVICE static void add(float (&sums)[1][kColumnsPerThread], const Chunk& chunk, float factor) {
    accumulate(sums[0], chunk, factor);
  }
  // Of a row as it is; null: zeros.
  SWITCHYARD_DEVICE static void store(const std::byte* row, int, int column, bf16* output) {
    target::st_16(output + column, row != nullptr ? load(row, column) : Chunk{});
  }
};

struct FP8CombineRows {
  using Quantizer = BlockwiseFP8Quantizer<e4m3>;
  using Chunk = Vec16;
  static constexpr int kColumns = 16;
  static constexpr int kGroupSize = Quantizer::kGroupSize;

  SWITCHYARD_HD static constexpr uint32_t row_bytes(int hidden) {
    return GroupedMessageLayout<Quantizer>{hidden}.bytes();
  }
  SWITCHYARD_DEVICE static void encode(const bf16* row, std::byte* message, int hidden, int worker_idx,
                                       int num_workers) {
    encode_message(Quantizer{}, hidden, row, message, worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE static Chunk load(const std::byte* row, int column) {
    return target::ld_16(row + column);
  }
  SWITCHYARD_DEVICE static float load_scale(const std::byte* row, int hidden, int group_idx) {
    return target::ld(GroupedMessageLayout<Quantizer>{hidden}.scales(row) + group_idx);
  }
  SWITCHYARD_DEVICE static float load_factor(const std::byte* row, int hidden, int group_idx, float weight) {
    return cut(weight * load_scale(row, hidden, group_idx));
  }
  // To 20 significant bits: times the four of a code is exact, so that a sum is rounded once, with one
  // instruction. What could become too small for that counts as 0.
  SWITCHYARD_HD static constexpr float cut(float factor) {
    constexpr uint32_t kLeast = 0x03800000u;  // 2^-120
    const uint32_t bits = std::bit_cast<uint32_t>(factor);
    return (bits & 0x7fffffffu) < kLeast ? 0.0f : std::bit_cast<float>(bits & 0xfffffff0u);
  }
  SWITCHYARD_DEVICE static void decode(const Chunk& chunk, float (&values)[kColumns]) {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumns / 2; ++i)
      target::from_e4m3x2(static_cast<uint16_t>(chunk.words[i / 2] >> (i % 2 * 16)), values[2 * i],
                          values[2 * i + 1]);
  }
  SWITCHYARD_DEVICE static void add(float (&sums)[2][kColumnsPerThread], const Chunk& chunk, float factor) {
    float values[kColumns];
    decode(chunk, values);
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumns; ++i) {
      float& sum = sums[i / kColumnsPerThread][i % kColumnsPerThread];
      sum = target::add_exact_product(sum, factor, values[i]);
    }
  }
  SWITCHYARD_DEVICE static void store(const std::byte* row, int hidden, int column, bf16* output) {
    float values[kColumns] = {};
    if (row != nullptr) {
      decode(load(row, column), values);
      const float scale = load_scale(row, hidden, column / kGroupSize);
      SWITCHYARD_UNROLL
      for (int i = 0; i < kColumns; ++i) values[i] = values[i] * scale;
    }
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumns; i += kColumnsPerThread)
      target::st_16(output + column + i, pack_bf16(values + i));
  }
};

// Adds rows [first, first + kNumRows) of a token. All loads are under way before the first is used; where a
// row is not there its memory is, and means nothing.
template <typename Rows, int kNumRows, typename TokenRows, int kParts>
SWITCHYARD_DEVICE void add_rows(const TokenRows& rows, int first, int column,
                                float (&sums)[kParts][kColumnsPerThread]) {
  const auto factors = rows.template factors<kNumRows>(first, column);
  typename Rows::Chunk loaded[kNumRows];
  SWITCHYARD_UNROLL
  for (int i = 0; i < kNumRows; ++i) loaded[i] = rows.load(first + i, column);
  SWITCHYARD_UNROLL
  for (int i = 0; i < kNumRows; ++i)
    if (rows.is_there(first + i)) Rows::add(sums, loaded[i], factors.of(i));
}

// The weighted sum of a token's rows in fp32, Rows::kColumns columns of it, for the epilogue. `rows` says
// what there is: num_rows(), is_there(i), load(i, column), factors(first, column), and add_last(sums,
// column), what comes behind them; and whether the column is one, or this thread is only needed by its warp.
template <typename Rows, typename TokenRows, typename Epilogue>
SWITCHYARD_DEVICE void reduce_rows(const Epilogue& epilogue, const TokenRows& rows, int token_idx,
                                   int column) {
  constexpr int kParts = Rows::kColumns / kColumnsPerThread;
  constexpr int kFirst = TokenRows::kFirstInFlight, kNext = 4;
  float sums[kParts][kColumnsPerThread] = {};
  int first = 0;
  // The first loads have the registers of the sums, too.
  if (kFirst <= rows.num_rows()) {
    add_rows<Rows, kFirst>(rows, 0, column, sums);
    first = kFirst;
  }
  for (; first + kNext <= rows.num_rows(); first += kNext) add_rows<Rows, kNext>(rows, first, column, sums);
  for (; first < rows.num_rows(); ++first) add_rows<Rows, 1>(rows, first, column, sums);
  if (!rows.has_column(column)) return;
  SWITCHYARD_UNROLL
  for (int part = 0; part < kParts; ++part) {
    rows.add_last(sums[part], column + part * kColumnsPerThread);
    epilogue(token_idx, column + part * kColumnsPerThread, sums[part]);
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
