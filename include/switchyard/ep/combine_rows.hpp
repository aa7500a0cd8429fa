// What expert rows travel as on their way back: as they are, or as blockwise fp8. A row of fp8 is an encoded
// token: codes of e4m3, then a float scale per 128 of them.
#pragma once

#include "switchyard/ep/epilogue.hpp"
#include "switchyard/format/blockwise_fp8.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Columns one thread takes at a time: 16 bytes of a row.
struct BF16CombineRows {
  static constexpr int kColumns = kColumnsPerThread;

  struct Chunk {
    Vec16 values;
  };

  SWITCHYARD_HD static constexpr uint32_t row_bytes(int hidden) {
    return static_cast<uint32_t>(hidden) * static_cast<uint32_t>(sizeof(bf16));
  }
  // A row of bf16 into a message.
  SWITCHYARD_DEVICE static void encode(const bf16* row, std::byte* message, int hidden, int worker_idx,
                                       int num_workers) {
    target::copy_row(message, row, row_bytes(hidden), worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE static Chunk load(const std::byte* row, int, int column) {
    return {target::ld_16(row + static_cast<uint64_t>(column) * sizeof(bf16))};
  }
  SWITCHYARD_DEVICE static void add(float (&sums)[kColumns], const Chunk& chunk, float weight) {
    accumulate(sums, chunk.values, weight);
  }
  SWITCHYARD_DEVICE static void store(const Chunk& chunk, bf16* output) {
    target::st_16(output, chunk.values);
  }
};

struct FP8CombineRows {
  using Quantizer = BlockwiseFP8Quantizer<e4m3>;
  static constexpr int kColumns = 16;

  struct Chunk {
    Vec16 codes;
    float scale;

    SWITCHYARD_DEVICE void decode(float (&values)[kColumns]) const {
      SWITCHYARD_UNROLL
      for (int i = 0; i < kColumns / 2; ++i)
        target::from_e4m3x2(static_cast<uint16_t>(codes.words[i / 2] >> (i % 2 * 16)), values[2 * i],
                            values[2 * i + 1]);
    }
  };

  SWITCHYARD_HD static constexpr uint32_t row_bytes(int hidden) {
    return GroupedMessageLayout<Quantizer>{hidden}.bytes();
  }
  SWITCHYARD_DEVICE static void encode(const bf16* row, std::byte* message, int hidden, int worker_idx,
                                       int num_workers) {
    encode_message(Quantizer{}, hidden, row, message, worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE static Chunk load(const std::byte* row, int hidden, int column) {
    const auto* scales =
        reinterpret_cast<const float*>(row + GroupedMessageLayout<Quantizer>{hidden}.scales_offset());
    return {target::ld_16(row + column), target::ld(scales + column / Quantizer::kGroupSize)};
  }
  // weight * scale is rounded once for all elements of the group.
  SWITCHYARD_DEVICE static void add(float (&sums)[kColumns], const Chunk& chunk, float weight) {
    const float factor = weight * chunk.scale;
    float values[kColumns];
    chunk.decode(values);
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumns; ++i) sums[i] = target::add_product(sums[i], factor, values[i]);
  }
  SWITCHYARD_DEVICE static void store(const Chunk& chunk, bf16* output) {
    float values[kColumns];
    chunk.decode(values);
    for (int half = 0; half < 2; ++half) {
      Vec16 packed;
      SWITCHYARD_UNROLL
      for (int i = 0; i < 4; ++i)
        packed.words[i] = static_cast<uint32_t>(to_bf16(values[8 * half + 2 * i] * chunk.scale).bits) |
                          static_cast<uint32_t>(to_bf16(values[8 * half + 2 * i + 1] * chunk.scale).bits)
                              << 16;
      target::st_16(output + 8 * half, packed);
    }
  }
};

// Hands the sums to the epilogue, as many columns at a time as it takes.
template <int kColumns, typename Epilogue>
SWITCHYARD_DEVICE void finish_columns(const Epilogue& epilogue, int token_idx, int column,
                                      const float (&sums)[kColumns]) {
  SWITCHYARD_UNROLL
  for (int part = 0; part < kColumns / kColumnsPerThread; ++part) {
    float values[kColumnsPerThread];
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumnsPerThread; ++i) values[i] = sums[part * kColumnsPerThread + i];
    epilogue(token_idx, column + part * kColumnsPerThread, values);
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
