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

// The scale that the bytes of a group encode, without the tensor scale.
float scale_of(ScaleType type, const uint8_t* bytes) {
  switch (type) {
    case ScaleType::kNone:
      break;
    case ScaleType::kFloat: {
      uint32_t bits = 0;
      for (int byte = 0; byte < 4; ++byte) bits |= uint32_t{bytes[byte]} << (8 * byte);
      return std::bit_cast<float>(bits);
    }
    case ScaleType::kE8M0:
      return *bytes == 0xff ? kNan : std::ldexp(1.0f, *bytes - 127);
    case ScaleType::kE4M3:
      return tables_of(kE4M3).values[*bytes];
  }
  std::abort();  // bf16 has no scales
}

// The scale of a group is two to the power of exponent_of(the group's amax, the format's largest number).
template <typename ExponentOf>
QuantizedToken with_e8m0_scales(const NumberFormat& format, const std::vector<float>& token,
                                size_t group_size, ExponentOf exponent_of) {
  const Rounder& round = tables_of(format).round;
  QuantizedToken result;
  for (size_t begin = 0; begin < token.size(); begin += group_size) {
    const float amax = amax_of(token, begin, group_size);
    if (std::isnan(amax)) {
      result.scale_codes.push_back(0xff);
      result.codes.insert(result.codes.end(), group_size, round(kNan));
      continue;
    }
    const int exponent = exponent_of(amax, round.max());
    const double scale = std::ldexp(1.0, exponent);
    result.scale_codes.push_back(static_cast<uint8_t>(exponent + 127));
    for (size_t i = begin; i < begin + group_size; ++i)
      result.codes.push_back(round(static_cast<double>(token[i]) / scale));
  }
  return result;
}

// The codes that packed() has put together.
std::vector<uint8_t> unpacked(const std::vector<uint8_t>& bytes, int num_bits) {
  std::vector<uint8_t> codes(bytes.size() * 8 / num_bits);
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t bit = i * num_bits, last_byte = (bit + num_bits - 1) / 8;
    const uint32_t both = bytes[bit / 8] | uint32_t{bytes[last_byte]} << 8 * (last_byte - bit / 8);
    codes[i] = static_cast<uint8_t>(both >> bit % 8 & ((1u << num_bits) - 1));
  }
  return codes;
}

}  // namespace

QuantizedToken blockwise_fp8(const NumberFormat& format, const std::vector<float>& token) {
  const Rounder& round = tables_of(format).round;
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
  return with_e8m0_scales(format, token, 32, [](float amax, double largest) {
    return amax == 0 ? -127 : std::max(-127, std::ilogb(amax) - std::ilogb(largest));
  });
}

QuantizedToken packed_fp8(const NumberFormat& format, const std::vector<float>& token) {
  return with_e8m0_scales(format, token, 128, [](float amax, double largest) {
    const float scale = std::max(amax, 1e-4f) / static_cast<float>(largest);
    int exponent = 0;  // of the smallest power of two that is not below the scale
    return std::frexp(scale, &exponent) == 0.5f ? exponent - 1 : exponent;
  });
}

QuantizedToken nvfp4(const std::vector<float>& token, float tensor_scale) {
  const Rounder& round = tables_of(kE2M1).round;
  const NumberTables& scales = tables_of(kE4M3);
  const float amax_to_scale = 1.0f / (6.0f * tensor_scale);
  QuantizedToken result;
  for (size_t begin = 0; begin < token.size(); begin += 16) {
    const float amax = amax_of(token, begin, 16);
    const uint8_t scale_code = scales.round(amax * amax_to_scale);
    const float scale = scales.values[scale_code] * tensor_scale;
    const float factor = scale == 0 ? 0 : 1.0f / scale;
    result.scale_codes.push_back(scale_code);
    for (size_t i = begin; i < begin + 16; ++i) result.codes.push_back(round(token[i] * factor));
  }
  return result;
}

std::vector<float> to_floats(const std::vector<bf16>& token) {
  std::vector<float> values(token.size());
  std::transform(token.begin(), token.end(), values.begin(), [](bf16 value) { return to_float(value); });
  return values;
}

std::vector<uint8_t> packed(const std::vector<uint8_t>& codes, int num_bits) {
  std::vector<uint8_t> bytes((codes.size() * num_bits + 7) / 8);
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t bit = i * num_bits;
    const uint32_t shifted = uint32_t{codes[i]} << (bit % 8);
    bytes[bit / 8] |= static_cast<uint8_t>(shifted);
    if (shifted > 0xff) bytes[bit / 8 + 1] |= static_cast<uint8_t>(shifted >> 8);
  }
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

std::vector<uint8_t> QuantizedToken::scale_bytes() const {
  std::vector<uint8_t> bytes = scale_codes;
  for (const float scale : float_scales)
    for (int byte = 0; byte < 4; ++byte)
      bytes.push_back(static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> (8 * byte)));
  return bytes;
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
  return decode_token(format, packed(codes.codes, elements_of(format).num_bits()), codes.scale_bytes(),
                      tensor_scale);
}

EncodedToken decode_token(TokenFormatKind format, std::vector<uint8_t> codes, std::vector<uint8_t> scales,
                          float tensor_scale) {
  const NumberFormat& elements = elements_of(format);
  const std::vector<float>& values = tables_of(elements).values;
  const TokenFormatInfo info = info_of(format);
  const size_t group_size = static_cast<size_t>(info.group_size);
  const std::vector<uint8_t> code_of = unpacked(codes, elements.num_bits());
  EncodedToken result{std::move(codes), std::move(scales), std::vector<float>(code_of.size())};
  for (size_t begin = 0; begin < code_of.size(); begin += group_size) {
    const float scale =
        scale_of(info.scale, &result.scales[begin / group_size * static_cast<size_t>(info.scale_bytes)]);
    for (size_t i = begin; i < begin + group_size; ++i) {
      const float value = values[code_of[i]] * scale;
      result.values[i] = info.scale == ScaleType::kE4M3 ? value * tensor_scale : value;
    }
  }
  return result;
}

std::vector<bf16> decoded(const EncodedToken& token) {
  std::vector<bf16> row(token.values.size());
  std::transform(token.values.begin(), token.values.end(), row.begin(),
                 [](float value) { return to_bf16(value); });
  return row;
}

std::vector<float> as_multiplied(TokenFormatKind format, MatmulElement element,
                                 const std::vector<bf16>& token, float tensor_scale) {
  if (format == TokenFormatKind::kBF16) return to_floats(token);
  const EncodedToken encoded = encode_token(format, token, tensor_scale);
  return element == MatmulElement::kFP8 ? encoded.values : to_floats(decoded(encoded));
}

uint64_t scale_offset(TokenFormatKind format, uint64_t row, uint64_t group, int hidden, uint64_t max_rows) {
  switch (info_of(format).placement) {
    case ScalePlacement::kNone:
      break;
    case ScalePlacement::kTransposed:
      return 4 * (group * ((max_rows + 3) / 4 * 4) + row);
    case ScalePlacement::kByRow:
      return (row * static_cast<uint64_t>(info_of(format).num_scales(hidden)) + group) *
             static_cast<uint64_t>(info_of(format).scale_bytes);
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
