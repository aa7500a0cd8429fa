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

}  // namespace switchyard::inline SWITCHYARD_TARGET
