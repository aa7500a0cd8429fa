// What expert rows travel as on their way back: as they are, or as blockwise fp8. A row of fp8 is an encoded
// token: codes of e4m3, then a float scale per 128 of them.
#pragma once

#include "switchyard/ep/epilogue.hpp"
#include "switchyard/format/blockwise_fp8.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// A thread takes kColumnsPerThread columns at a time.
struct BF16CombineRows {
  using Chunk = Vec16;

  SWITCHYARD_HD static constexpr uint32_t row_bytes(int hidden) {
    return static_cast<uint32_t>(hidden) * static_cast<uint32_t>(sizeof(bf16));
  }
  // A row of bf16 into a message.
  SWITCHYARD_DEVICE static void encode(const bf16* row, std::byte* message, int hidden, int worker_idx,
                                       int num_workers) {
    target::copy_row(message, row, row_bytes(hidden), worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE static Chunk load(const std::byte* row, int, int column) {
    return target::ld_16(row + static_cast<uint64_t>(column) * sizeof(bf16));
  }
  SWITCHYARD_DEVICE static void add(float (&sums)[kColumnsPerThread], const Chunk& chunk, float weight) {
    accumulate(sums, chunk, weight);
  }
  SWITCHYARD_DEVICE static void store(const Chunk& chunk, bf16* output) { target::st_16(output, chunk); }
};

struct FP8CombineRows {
  using Quantizer = BlockwiseFP8Quantizer<e4m3>;

  struct Chunk {
    uint64_t codes;
    float scale;

    SWITCHYARD_DEVICE void decode(float (&values)[kColumnsPerThread]) const {
      SWITCHYARD_UNROLL
      for (int i = 0; i < kColumnsPerThread / 2; ++i)
        target::from_e4m3x2(static_cast<uint16_t>(codes >> (16 * i)), values[2 * i], values[2 * i + 1]);
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
    return {target::ld(reinterpret_cast<const uint64_t*>(row + column)),
            target::ld(GroupedMessageLayout<Quantizer>{hidden}.scales(row) + column / Quantizer::kGroupSize)};
  }
  // weight * scale is rounded once for all elements of the group.
  SWITCHYARD_DEVICE static void add(float (&sums)[kColumnsPerThread], const Chunk& chunk, float weight) {
    const float factor = weight * chunk.scale;
    float values[kColumnsPerThread];
    chunk.decode(values);
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumnsPerThread; ++i) sums[i] = target::add_product(sums[i], factor, values[i]);
  }
  SWITCHYARD_DEVICE static void store(const Chunk& chunk, bf16* output) {
    float values[kColumnsPerThread];
    chunk.decode(values);
    Vec16 packed;
    SWITCHYARD_UNROLL
    for (int i = 0; i < kColumnsPerThread / 2; ++i)
      packed.words[i] = static_cast<uint32_t>(to_bf16(values[2 * i] * chunk.scale).bits) |
                        static_cast<uint32_t>(to_bf16(values[2 * i + 1] * chunk.scale).bits) << 16;
    target::st_16(output, packed);
  }
};

// The weighted sum of a token's rows in fp32, kColumnsPerThread columns of it, for the epilogue. `rows` says
// what there is: num_rows(), is_there(i), load(i, column), weight(i), and add_last(sums, column), what comes
// behind them. Loads of several rows are in flight before the first is used.
template <typename Rows, typename TokenRows, typename Epilogue>
SWITCHYARD_DEVICE void reduce_rows(const Epilogue& epilogue, const TokenRows& rows, int token_idx,
                                   int column) {
  constexpr int kInFlight = 8;
  float sums[kColumnsPerThread] = {};
  for (int first = 0; first < rows.num_rows(); first += kInFlight) {
    typename Rows::Chunk loaded[kInFlight];
    bool present[kInFlight];
    for (int i = 0; i < kInFlight; ++i) {
      present[i] = first + i < rows.num_rows() && rows.is_there(first + i);
      if (present[i]) loaded[i] = rows.load(first + i, column);
    }
    for (int i = 0; i < kInFlight; ++i)
      if (present[i]) Rows::add(sums, loaded[i], rows.weight(first + i));
  }
  rows.add_last(sums, column);
  epilogue(token_idx, column, sums);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
