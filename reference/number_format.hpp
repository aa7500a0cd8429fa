// Small number formats by their definition: a table of all values of a format, and rounding as a search
// through it. This code shares nothing with the conversions of base/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::reference {

// sign, exponent, mantissa: (-1)^s * 2^(e - bias) * 1.m, or 2^(1 - bias) * 0.m where e is 0.
struct NumberFormat {
  std::string name;
  int exponent_bits = 0;
  int mantissa_bits = 0;
  int bias = 0;
  bool has_infinity = false;  // mantissa 0 of the largest exponent; the rest of it is NaN
  bool has_nan = false;       // without infinities: the one code of each sign that is all ones

  int num_bits() const { return 1 + exponent_bits + mantissa_bits; }
  int num_codes() const { return 1 << num_bits(); }
  // NaN and infinities included.
  double value_of(int code) const;
};

extern const NumberFormat kE4M3, kE5M2, kE2M3, kE3M2, kE2M1;

// Rounds to the nearest number of the format, ties to the even code. Infinities and numbers beyond the
// largest become the largest; NaN becomes the positive code of all ones.
class Rounder {
 public:
  explicit Rounder(const NumberFormat& format);
  uint8_t operator()(double value) const;
  double max() const { return numbers_.back(); }

 private:
  // The doubles of one bucket differ in the lower bits of the mantissa only.
  static size_t bucket_of(double magnitude);

  NumberFormat format_;
  std::vector<double> numbers_;  // [code]: 0 and the positive numbers, in order
  // [bucket]: the first code whose number is not below all doubles of the bucket, where a search may begin.
  std::vector<uint8_t> first_code_;
};

// What a format is computed with.
struct NumberTables {
  explicit NumberTables(const NumberFormat& format);

  std::string name;
  Rounder round;
  std::vector<float> values;  // [code]: value_of() each
};
// The tables of one of the formats above, made once. May be called from any thread.
const NumberTables& tables_of(const NumberFormat& format);

}  // namespace switchyard::reference
