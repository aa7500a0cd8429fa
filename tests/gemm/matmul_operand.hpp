// For tests of grouped matmuls: random matrices in any element, and their scales.
#pragma once

#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "layer_kernels_fixture.hpp"
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

}  // namespace switchyard::testing_support
