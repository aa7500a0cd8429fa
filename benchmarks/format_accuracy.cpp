#include "format_accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "reference/token_format.hpp"

namespace switchyard::tools {
namespace {

// Our own distributions: those of the C++ library differ between implementations.
class NormalValues {
 public:
  explicit NormalValues(uint64_t seed) : random_(seed) {}

  double operator()() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }
  // In (0, 1].
  double uniform() { return static_cast<double>((random_() >> 11) + 1) * 0x1p-53; }

 private:
  std::mt19937_64 random_;
};

std::vector<float> make_values(InputKind kind, uint64_t seed, int num_values) {
  NormalValues normal(seed);
  std::vector<float> values;
  for (int i = 0; i < num_values; ++i) {
    double value = normal();
    if (kind == InputKind::kHeavyTailed) {
      double chi_squared = 0;
      for (int degree = 0; degree < 3; ++degree) chi_squared += std::pow(normal(), 2);
      value /= std::sqrt(chi_squared / 3);
    }
    if (kind == InputKind::kOutliers && normal.uniform() <= 0.001) value *= 100;
    values.push_back(static_cast<float>(value));
  }
  return values;
}

using Values = std::vector<float>;

// The values that codes and scales encode.
Values values_of(const reference::NumberFormat& format, const reference::QuantizedToken& token,
                 const std::vector<double>& scales) {
  std::vector<double> number_of_code;
  for (int code = 0; code < format.num_codes(); ++code) number_of_code.push_back(format.value_of(code));
  const size_t group_size = token.codes.size() / scales.size();
  Values values;
  for (size_t i = 0; i < token.codes.size(); ++i)
    values.push_back(static_cast<float>(number_of_code[token.codes[i]] * scales[i / group_size]));
  return values;
}

Values through_bf16(const Values& values) {
  Values rounded;
  for (const float value : values) rounded.push_back(to_float(to_bf16(value)));
  return rounded;
}

// NVFP4: uses the whole range of the scales.
float tensor_scale_of(const Values& values) {
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  return amax / (6 * 448);
}

// The scale of each group, with the tensor scale where there is one.
std::vector<double> scales_of(ScaleType type, const reference::QuantizedToken& token, float tensor_scale) {
  std::vector<double> scales(token.float_scales.begin(), token.float_scales.end());
  for (const uint8_t code : token.scale_codes)
    scales.push_back(type == ScaleType::kE8M0 ? std::ldexp(1.0, code - 127)
                                              : reference::kE4M3.value_of(code) * tensor_scale);
  return scales;
}

Values quantize_and_back(TokenFormatKind kind, const Values& values) {
  const ScaleType scale = info_of(kind).scale;
  if (scale == ScaleType::kNone) return through_bf16(values);
  const float tensor_scale = tensor_scale_of(values);
  const reference::QuantizedToken token = reference::quantized(kind, values, tensor_scale);
  return values_of(reference::elements_of(kind), token, scales_of(scale, token, tensor_scale));
}

// A format for each pair of elements and scales: where the scales lie, and which expert's they are, changes
// no value.
std::vector<TokenFormatKind> formats_that_differ() {
  std::vector<TokenFormatKind> formats;
  for (const TokenFormatKind kind : kTokenFormatKinds) {
    const auto has_same_values = [info = info_of(kind)](TokenFormatKind other) {
      return info_of(other).element == info.element && info_of(other).scale == info.scale &&
             info_of(other).group_size == info.group_size;
    };
    if (std::none_of(formats.begin(), formats.end(), has_same_values)) formats.push_back(kind);
  }
  return formats;
}

FormatError error_between(const Values& values, const Values& seen, size_t group_size) {
  double squares = 0, error_squares = 0, relative_squares = 0, largest = 0;
  for (size_t begin = 0; begin < values.size(); begin += group_size) {
    double amax = 0, largest_error = 0;
    for (size_t i = begin; i < begin + group_size; ++i) {
      const double value = values[i], error = std::fabs(seen[i] - value);
      squares += value * value;
      error_squares += error * error;
      relative_squares += value == 0 ? 0 : std::pow(error / value, 2);
      amax = std::max(amax, std::fabs(value));
      largest_error = std::max(largest_error, error);
    }
    if (amax > 0) largest = std::max(largest, largest_error / amax);
  }
  return {std::sqrt(error_squares / squares),
          std::sqrt(relative_squares / static_cast<double>(values.size())), largest};
}

}  // namespace

const char* to_string(InputKind kind) {
  switch (kind) {
    case InputKind::kNormal:
      return "normal";
    case InputKind::kHeavyTailed:
      return "heavy-tailed";
    case InputKind::kOutliers:
      return "outliers";
  }
  return "?";
}

std::vector<FormatAccuracy> measure_format_accuracy(uint64_t seed, int num_values) {
  const std::vector<TokenFormatKind> formats = formats_that_differ();
  std::vector<FormatAccuracy> all;
  for (const TokenFormatKind kind : formats) {
    const TokenFormatInfo info = info_of(kind);
    all.push_back({info.name, info.num_bits + 8.0 * info.scale_bytes / info.group_size, {}});
  }
  for (const InputKind kind : kInputKinds) {
    const Values values = make_values(kind, seed, num_values);
    for (size_t i = 0; i < all.size(); ++i)
      all[i].errors.push_back(error_between(values, quantize_and_back(formats[i], values),
                                            static_cast<size_t>(info_of(formats[i]).group_size)));
  }
  return all;
}

}  // namespace switchyard::tools
