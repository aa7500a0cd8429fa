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
  SWITCHYARD_DEVICE static void add(float (&sums)[kColumnsPerThread], const Chunk& chunk, float weight, int) {
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
  // Adds columns [8 * part, 8 * part + 8). weight * scale is rounded once for all elements of the group.
  SWITCHYARD_DEVICE static void add(float (&sums)[kColumnsPerThread], const Chunk& chunk, float weight,
                                    int part) {
    const float factor = weight * chunk.scale;
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumnsPerThread / 2; ++i) {
      float first, second;
      target::from_e4m3x2(static_cast<uint16_t>(chunk.codes.words[2 * part + i / 2] >> (i % 2 * 16)), first,
                          second);
      sums[2 * i] = target::add_product(sums[2 * i], factor, first);
      sums[2 * i + 1] = target::add_product(sums[2 * i + 1], factor, second);
    }
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

// The weighted sum of a token's rows in fp32, Rows::kColumns columns of it, for the epilogue. `rows` says
// what there is: num_rows(), is_there(i), load(i), weight(i), and add_last(sums, column), what comes behind
// them. Loads of several rows are in flight before the first is used. Sums go eight columns at a time: those
// of a wider chunk would not all find a register.
inline constexpr int kRowsInFlight = 8;

template <typename Rows, typename TokenRows, typename Epilogue>
SWITCHYARD_DEVICE void reduce_part(const Epilogue& epilogue, const TokenRows& rows, int token_idx, int column,
                                   int part) {
  float sums[kColumnsPerThread] = {};
  for (int first = 0; first < rows.num_rows(); first += kRowsInFlight) {
    typename Rows::Chunk loaded[kRowsInFlight];
    bool present[kRowsInFlight];
    for (int i = 0; i < kRowsInFlight; ++i) {
      present[i] = first + i < rows.num_rows() && rows.is_there(first + i);
      if (present[i]) loaded[i] = rows.load(first + i, column);
    }
    for (int i = 0; i < kRowsInFlight; ++i)
      if (present[i]) Rows::add(sums, loaded[i], rows.weight(first + i), part);
  }
  rows.add_last(sums, column + part * kColumnsPerThread);
  epilogue(token_idx, column + part * kColumnsPerThread, sums);
}

template <typename Rows, typename TokenRows, typename Epilogue>
SWITCHYARD_DEVICE void reduce_rows(const Epilogue& epilogue, const TokenRows& rows, int token_idx,
                                   int column) {
  constexpr int kNumParts = Rows::kColumns / kColumnsPerThread;
  if (kNumParts == 1 || rows.num_rows() > kRowsInFlight) {
    for (int part = 0; part < kNumParts; ++part) reduce_part<Rows>(epilogue, rows, token_idx, column, part);
    return;
  }
  typename Rows::Chunk loaded[kRowsInFlight];
  SWITCHYARD_UNROLL
  for (int i = 0; i < kRowsInFlight; ++i)
    if (i < rows.num_rows() && rows.is_there(i)) loaded[i] = rows.load(i, column);
  SWITCHYARD_UNROLL
  for (int part = 0; part < kNumParts; ++part) {
    float sums[kColumnsPerThread] = {};
    SWITCHYARD_UNROLL
    for (int i = 0; i < kRowsInFlight; ++i)
      if (i < rows.num_rows() && rows.is_there(i)) Rows::add(sums, loaded[i], rows.weight(i), part);
    rows.add_last(sums, column + part * kColumnsPerThread);
    epilogue(token_idx, column + part * kColumnsPerThread, sums);
  }
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
