// What quantised tokens are, in plain loops: codes and scales by the definition of each format. This code
// shares nothing with the kernels' messages, lanes or packed words.
#pragma once

#include <cstdint>
#include <vector>

#include "number_format.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/types/bf16.hpp"
#include "switchyard/types/matmul_tuning.hpp"

namespace switchyard::reference {

// One token.
struct QuantizedToken {
  std::vector<uint8_t> codes;        // [element], not packed
  std::vector<float> float_scales;   // [group] of blockwise fp8
  std::vector<uint8_t> scale_codes;  // [group] of the others: e8m0, or e4m3 for NVFP4

  std::vector<uint8_t> scale_bytes() const;  // of either, as a message has them
};

// Groups of 128; scale = max(amax, 1e-4) / largest number of the format. A group with a NaN or an infinity
// has the NaN scale 0x7fc00000 and NaN elements. The same holds for the other formats, with their own NaN
// scale.
QuantizedToken blockwise_fp8(const NumberFormat& format, const std::vector<float>& token);
// Groups of 32; scale = 2^(floor(log2(amax)) - emax), as e8m0.
QuantizedToken mx(const NumberFormat& format, const std::vector<float>& token);
// Groups of 128; scale = the smallest power of two that is not below that of blockwise_fp8, as e8m0.
QuantizedToken packed_fp8(const NumberFormat& format, const std::vector<float>& token);
// Groups of 16 e2m1; scale = amax / (6 * tensor_scale), as e4m3; element = code * scale * tensor_scale.
QuantizedToken nvfp4(const std::vector<float>& token, float tensor_scale);
// Any of the above, as the format has it; not bf16.
const NumberFormat& elements_of(TokenFormatKind format);
QuantizedToken quantized(TokenFormatKind format, const std::vector<float>& token, float tensor_scale);
// A token of bf16.
std::vector<float> to_floats(const std::vector<bf16>& token);

// A token in one of the library's formats: its bytes, and the values that they encode.
struct EncodedToken {
  std::vector<uint8_t> codes;   // packed
  std::vector<uint8_t> scales;  // [group], each of the format's scale bytes
  std::vector<float> values;    // [element]: code * scale (* tensor scale), each product rounded
};
EncodedToken encode_token(TokenFormatKind format, const std::vector<bf16>& token, float tensor_scale);
// The same of codes and scales that are there.
EncodedToken decode_token(TokenFormatKind format, std::vector<uint8_t> codes, std::vector<uint8_t> scales,
                          float tensor_scale);
// The values, rounded to bf16.
std::vector<bf16> decoded(const EncodedToken& token);
// A token as a matmul reads its row: fp8 is multiplied as it is, everything else in bf16.
std::vector<float> as_multiplied(TokenFormatKind format, MatmulElement element,
                                 const std::vector<bf16>& token, float tensor_scale);
// The offset in bytes of the scale of (row, group) in the tensor of so many rows.
uint64_t scale_offset(TokenFormatKind format, uint64_t row, uint64_t group, int hidden, uint64_t max_rows);

// Codes end to end, the first in the lowest bits of the first byte.
std::vector<uint8_t> packed(const std::vector<uint8_t>& codes, int num_bits);

// The offset of the scale of (row, column) in a tensor of 512-byte scale tiles: [row / 128][column / 4], and
// inside a tile [row % 32][row / 32 % 4][column % 4].
uint64_t tiled_scale_offset(uint64_t row, uint64_t column, uint64_t num_columns);

}  // namespace switchyard::reference
