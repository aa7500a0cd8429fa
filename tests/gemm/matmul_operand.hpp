// For tests of grouped matmuls: random matrices in any element, and their scales.
#pragma once

#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "layer_kernels_fixture.hpp"
#include "reference/matmul.hpp"
#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/types/matmul_tuning.hpp"

namespace switchyard::testing_support {

// A matrix as it lies in memory, and the values it stands for.
struct Operand {
  std::vector<uint8_t> bytes;
  std::vector<float> values;

  Operand() = default;
  Operand(MatmulElement element, size_t size, uint64_t seed) : values(size), element_(element) {
    bytes.resize(size * static_cast<size_t>(bytes_of(element)));
    const std::vector<bf16> numbers = random_bf16(size, seed);
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < size; ++i) {
      const uint8_t code = static_cast<uint8_t>(random() % 2 * 0x80 + random() % 0x60);  // up to 30
      if (element == MatmulElement::kFP8)
        set(i, code, to_float(e4m3{code}));
      else
        set(i, numbers[i].bits, to_float(numbers[i]));
    }
  }
  void set_nan(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      set(i, element_ == MatmulElement::kFP8 ? uint16_t{0x7f} : to_bf16(NAN).bits, NAN);
  }
  std::span<const float> at(size_t row, size_t size) const { return {values.data() + row * size, size}; }

 private:
  void set(size_t i, uint16_t bits, float value) {
    values[i] = value;
    if (element_ == MatmulElement::kFP8) {
      bytes[i] = static_cast<uint8_t>(bits);
    } else {
      bytes[2 * i] = static_cast<uint8_t>(bits);
      bytes[2 * i + 1] = static_cast<uint8_t>(bits >> 8);
    }
  }

  MatmulElement element_ = MatmulElement::kBF16;
};

inline std::vector<float> random_scales(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> scales(size);
  for (float& scale : scales) scale = static_cast<float>(random() % 1000 + 100) / 1000.0f;
  return scales;
}

// Weights of some experts as codes, the scales of these, and the values that they stand for.
struct CodedWeights : Operand {
  std::vector<uint8_t> scales;
  std::vector<float> tensor_scales;  // of each expert, of NVFP4

  CodedWeights() = default;
  // Products with random_bf16() are small enough for any activation.
  CodedWeights(WeightFormat format, size_t num_experts, size_t weights_of_expert, uint64_t seed) {
    const size_t num_codes = num_experts * weights_of_expert;
    std::mt19937_64 random(seed);
    bytes.resize(num_codes * static_cast<size_t>(code_bits_of(format)) / 8);
    scales.resize(num_codes / static_cast<size_t>(scale_group_size(format)));
    for (uint8_t& byte : bytes)
      byte = static_cast<uint8_t>(random() % 2 * 0x80 + random() % (code_bits_of(format) == 8 ? 0x60 : 0x80));
    for (uint8_t& scale : scales)
      scale = static_cast<uint8_t>(format == WeightFormat::kNVFP4 ? random() % 0x41 : 118 + random() % 5);
    if (format == WeightFormat::kNVFP4) tensor_scales = random_scales(num_experts, seed);
    for (float& scale : tensor_scales) scale *= 0.05f;
    for (size_t expert = 0; expert < num_experts; ++expert) {
      const std::vector<float> decoded = reference::decode_weights(
          format, part_of(bytes, expert, num_experts), part_of(scales, expert, num_experts),
          tensor_scales.empty() ? 1.0f : tensor_scales[expert]);
      values.insert(values.end(), decoded.begin(), decoded.end());
    }
  }

 private:
  static std::span<const uint8_t> part_of(const std::vector<uint8_t>& all, size_t part, size_t num_parts) {
    const size_t size = all.size() / num_parts;
    return {all.data() + part * size, size};
  }
};

// What K of a matmul with this tuning must be a multiple of.
inline int inner_multiple_of(const MatmulTuning& tuning) {
  return is_coded(tuning.weights) ? inner_multiple_of(tuning.weights) : 16 / bytes_of(tuning.element);
}

}  // namespace switchyard::testing_support
