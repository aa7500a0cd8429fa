#include "token_format.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace switchyard::reference {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The largest magnitude of elements [begin, begin + size); NaN if any is NaN or infinite.
float amax_of(const std::vector<float>& token, size_t begin, size_t size) {
  float amax = 0;
  for (size_t i = begin; i < begin + size; ++i) {
    const float magnitude = std::fabs(token[i]);
    if (!std::isfinite(magnitude)) return kNan;
    amax = std::max(amax, magnitude);
  }
  return amax;
}

}  // namespace

QuantizedToken blockwise_fp8(const NumberFormat& format, const std::vector<float>& token) {
  const Rounder round(format);
  const float largest = static_cast<float>(round.max());
  QuantizedToken result;
  for (size_t begin = 0; begin < token.size(); begin += 128) {
    const float amax = amax_of(token, begin, 128);
    const float clamped = std::isnan(amax) ? kNan : std::max(amax, 1e-4f);
    result.float_scales.push_back(std::isnan(amax) ? std::bit_cast<float>(0x7fc00000u) : clamped / largest);
    const float factor = largest / clamped;
    for (size_t i = begin; i < begin + 128; ++i) result.codes.push_back(round(token[i] * factor));
  }
  return result;
}

QuantizedToken mx(const NumberFormat& format, const std::vector<float>& token) {
  const Rounder round(format);
  QuantizedToken result;
  for (size_t begin = 0; begin < token.size(); begin += 32) {
    const float amax = amax_of(token, begin, 32);
    if (std::isnan(amax)) {
      result.scale_codes.push_back(0xff);
      for (int i = 0; i < 32; ++i) result.codes.push_back(round(kNan));
      continue;
    }
    const int exponent = amax == 0 ? -127 : std::max(-127, std::ilogb(amax) - std::ilogb(round.max()));
    result.scale_codes.push_back(static_cast<uint8_t>(exponent + 127));
    for (size_t i = begin; i < begin + 32; ++i)
      result.codes.push_back(round(static_cast<double>(token[i]) / std::ldexp(1.0, exponent)));
  }
  return result;
}

QuantizedToken packed_fp8(const NumberFormat& format, const std::vector<float>& token) {
  const Rounder round(format);
  QuantizedToken result;
  for (size_t begin = 0; begin < token.size(); begin += 128) {
    const float amax = amax_of(token, begin, 128);
    if (std::isnan(amax)) {
      result.scale_codes.push_back(0xff);
      for (int i = 0; i < 128; ++i) result.codes.push_back(round(kNan));
      continue;
    }
    const float scale = std::max(amax, 1e-4f) / static_cast<float>(round.max());
    int exponent = 0;  // of the smallest power of two that is not below the scale
    if (std::frexp(scale, &exponent) == 0.5f) --exponent;
    result.scale_codes.push_back(static_cast<uint8_t>(exponent + 127));
    for (size_t i = begin; i < begin + 128; ++i)
      result.codes.push_back(round(static_cast<double>(token[i]) / std::ldexp(1.0, exponent)));
  }
  return result;
}

QuantizedToken nvfp4(const std::vector<float>& token, float tensor_scale) {
  const Rounder round(kE2M1), round_scale(kE4M3);
  const float amax_to_scale = 1.0f / (6.0f * tensor_scale);
  QuantizedToken result;
  for (size_t begin = 0; begin < token.size(); begin += 16) {
    const float amax = amax_of(token, begin, 16);
    const uint8_t scale_code = round_scale(amax * amax_to_scale);
    const float scale = static_cast<float>(kE4M3.value_of(scale_code)) * tensor_scale;
    const float factor = scale == 0 ? 0 : 1.0f / scale;
    result.scale_codes.push_back(scale_code);
    for (size_t i = begin; i < begin + 16; ++i) result.codes.push_back(round(token[i] * factor));
  }
  return result;
}

std::vector<float> to_floats(const std::vector<bf16>& token) {
  std::vector<float> values;
  for (const bf16 value : token) values.push_back(to_float(value));
  return values;
}

std::vector<uint8_t> packed(const std::vector<uint8_t>& codes, int num_bits) {
  std::vector<uint8_t> bytes((codes.size() * num_bits + 7) / 8);
  for (size_t bit = 0; bit < codes.size() * num_bits; ++bit)
    if (codes[bit / num_bits] >> (bit % num_bits) & 1)
      bytes[bit / 8] |= static_cast<uint8_t>(1u << (bit % 8));
  return bytes;
}

const NumberFormat& elements_of(TokenFormatKind format) {
  switch (info_of(format).element) {
    case ElementType::kBF16:
      break;
    case ElementType::kE4M3:
      return kE4M3;
    case ElementType::kE5M2:
      return kE5M2;
    case ElementType::kE2M3:
      return kE2M3;
    case ElementType::kE3M2:
      return kE3M2;
    case ElementType::kE2M1:
      return kE2M1;
  }
  std::abort();  // bf16 has no codes
}

QuantizedToken quantized(TokenFormatKind format, const std::vector<float>& token, float tensor_scale) {
  switch (info_of(format).scale) {
    case ScaleType::kNone:
      break;
    case ScaleType::kFloat:
      return blockwise_fp8(elements_of(format), token);
    case ScaleType::kE8M0:
      if (info_of(format).group_size == 128) return packed_fp8(elements_of(format), token);
      return mx(elements_of(format), token);
    case ScaleType::kE4M3:
      return nvfp4(token, tensor_scale);
  }
  std::abort();  // bf16 is not quantised
}

EncodedToken encode_token(TokenFormatKind format, const std::vector<bf16>& token, float tensor_scale) {
  const QuantizedToken codes = quantized(format, to_floats(token), tensor_scale);
  std::vector<uint8_t> scales = codes.scale_codes;
  for (const float scale : codes.float_scales)
    for (int byte = 0; byte < 4; ++byte)
      scales.push_back(static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> (8 * byte)));
  return decode_token(format, packed(codes.codes, elements_of(format).num_bits()), std::move(scales),
                      tensor_scale);
}

EncodedToken decode_token(TokenFormatKind format, std::vector<uint8_t> codes, std::vector<uint8_t> scales,
                          float tensor_scale) {
  const NumberFormat& elements = elements_of(format);
  const size_t num_bits = static_cast<size_t>(elements.num_bits()),
               num_elements = codes.size() * 8 / num_bits;
  const TokenFormatInfo info = info_of(format);
  EncodedToken result{std::move(codes), std::move(scales), {}};
  for (size_t i = 0; i < num_elements; ++i) {
    uint8_t code_bits = 0;
    for (size_t bit = 0; bit < num_bits; ++bit) {
      const size_t bit_idx = i * num_bits + bit;
      code_bits |= static_cast<uint8_t>((result.codes[bit_idx / 8] >> (bit_idx % 8) & 1) << bit);
    }
    const float code = static_cast<float>(elements.value_of(code_bits));
    const uint8_t* scale =
        &result.scales[i / static_cast<size_t>(info.group_size) * static_cast<size_t>(info.scale_bytes)];
    if (info.scale == ScaleType::kFloat) {
      uint32_t bits = 0;
      for (int byte = 0; byte < 4; ++byte) bits |= uint32_t{scale[byte]} << (8 * byte);
      result.values.push_back(code * std::bit_cast<float>(bits));
    } else if (info.scale == ScaleType::kE4M3) {
      result.values.push_back(code * static_cast<float>(kE4M3.value_of(*scale)) * tensor_scale);
    } else {
      result.values.push_back(*scale == 0xff ? kNan : code * std::ldexp(1.0f, *scale - 127));
    }
  }
  return result;
}

std::vector<bf16> decoded(const EncodedToken& token) {
  std::vector<bf16> row;
  for (const float value : token.values) row.push_back(to_bf16(value));
  return row;
}

uint64_t scale_offset(TokenFormatKind format, uint64_t row, uint64_t group, int hidden, uint64_t max_rows) {
  switch (info_of(format).placement) {
    case ScalePlacement::kNone:
      break;
    case ScalePlacement::kTransposed:
      return 4 * (group * ((max_rows + 3) / 4 * 4) + row);
    case ScalePlacement::kByRow:
      return row * (static_cast<uint64_t>(hidden) / 32) + group;
    case ScalePlacement::kPacked:
      return 4 * (group / 4 * ((max_rows + 3) / 4 * 4) + row) + group % 4;
    case ScalePlacement::kTiled:
      return tiled_scale_offset(row, group, static_cast<uint64_t>(info_of(format).num_scales(hidden)));
  }
  std::abort();  // there are no scales
}

uint64_t tiled_scale_offset(uint64_t row, uint64_t column, uint64_t num_columns) {
  const uint64_t tiles_across = (num_columns + 3) / 4;
  const uint64_t tile = row / 128 * tiles_across + column / 4;
  return ((tile * 32 + row % 32) * 4 + row / 32 % 4) * 4 + column % 4;
}

}  // namespace switchyard::reference
