// The format in which expert rows travel back: as they are, or as blockwise fp8. A row of fp8 is an encoded
// token: e4m3 codes, then a float scale per 128 of them, in whole lines of memory.
#pragma once

#include "switchyard/detail/ep/epilogue.hpp"
#include "switchyard/detail/format/blockwise_fp8.hpp"
#include "switchyard/token_format.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// A thread handles kColumns columns at a time.
struct BF16CombineRows {
  static constexpr int kColumns = 8;

  SWITCHYARD_HD static constexpr uint32_t row_bytes(int hidden) {
    return static_cast<uint32_t>(hidden) * static_cast<uint32_t>(sizeof(bf16));
  }
  // Copies a row of bf16 into a message.
  SWITCHYARD_DEVICE static void encode(const bf16* row, std::byte* message, int hidden, int worker_idx,
                                       int num_workers) {
    target::copy_row(message, row, row_bytes(hidden), worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE static Vec16 load(const std::byte* row, int column) {
    return target::ld_16(row + static_cast<uint64_t>(column) * sizeof(bf16));
  }
  // Stores columns of a row; zeros if the row is null.
  SWITCHYARD_DEVICE static void store(const std::byte* row, int, int column, bf16* output) {
    target::st_16(output + column, row != nullptr ? load(row, column) : Vec16{});
  }
};

struct FP8CombineRows {
  using Quantizer = BlockwiseFP8Quantizer<e4m3>;
  static constexpr int kColumns = 16;
  static constexpr int kGroupSize = Quantizer::kGroupSize;

  SWITCHYARD_HD static constexpr uint32_t row_bytes(int hidden) {
    return combine_row_bytes(CombineFormat::kFP8, hidden);
  }
  SWITCHYARD_DEVICE static void encode(const bf16* row, std::byte* message, int hidden, int worker_idx,
                                       int num_workers) {
    encode_message(Quantizer{}, hidden, row, message, worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE static const float* scales(const std::byte* row, int hidden) {
    return GroupedMessageLayout<Quantizer>{hidden}.scales(row);
  }
  // A row's factor in a sum, its weight times its scale group's scale, cut to 20 significant bits: the
  // product with the four significant bits of a code is exact, so that a sum is rounded once, with one
  // instruction. A factor that could become too small for that counts as 0.
  SWITCHYARD_HD static constexpr float cut(float factor) {
    constexpr uint32_t kLeast = 0x03800000u;  // 2^-120
    const uint32_t bits = std::bit_cast<uint32_t>(factor);
    return (bits & 0x7fffffffu) < kLeast ? 0.0f : std::bit_cast<float>(bits & 0xfffffff0u);
  }
  SWITCHYARD_DEVICE static void decode(const Vec16& codes, float (&values)[kColumns]) {
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumns / 2; ++i)
      target::from_e4m3x2(static_cast<uint16_t>(codes.words[i / 2] >> (i % 2 * 16)), values[2 * i],
                          values[2 * i + 1]);
  }
  SWITCHYARD_DEVICE static void add(float (&sums)[2][kColumnsPerThread], const Vec16& codes, float factor) {
    float values[kColumns];
    decode(codes, values);
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumns; ++i) {
      float& sum = sums[i / kColumnsPerThread][i % kColumnsPerThread];
      sum = target::add_exact_product(sum, factor, values[i]);
    }
  }
  SWITCHYARD_DEVICE static void store(const std::byte* row, int hidden, int column, bf16* output) {
    float values[kColumns] = {};
    if (row != nullptr) {
      decode(target::ld_16(row + column), values);
      const float scale = target::ld(scales(row, hidden) + column / kGroupSize);
      SWITCHYARD_UNROLL
      for (int i = 0; i < kColumns; ++i) values[i] = values[i] * scale;
    }
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumns; i += kColumnsPerThread)
      target::st_16(output + column + i, pack_bf16(values + i));
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
