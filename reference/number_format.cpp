#include "number_format.hpp"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace switchyard::reference {

const NumberFormat kE4M3{"e4m3", 4, 3, 7, false, true};
const NumberFormat kE5M2{"e5m2", 5, 2, 15, true, true};
const NumberFormat kE2M3{"e2m3", 2, 3, 1, false, false};
const NumberFormat kE3M2{"e3m2", 3, 2, 3, false, false};
const NumberFormat kE2M1{"e2m1", 2, 1, 1, false, false};

double NumberFormat::value_of(int code) const {
  const double sign = code >= num_codes() / 2 ? -1 : 1;
  const int magnitude = code % (num_codes() / 2);
  const int num_mantissas = 1 << mantissa_bits;
  const int exponent = magnitude / num_mantissas, mantissa = magnitude % num_mantissas;
  const bool is_last_exponent = exponent == (1 << exponent_bits) - 1;
  if (has_infinity && is_last_exponent && mantissa == 0)
    return sign * std::numeric_limits<double>::infinity();
  if (has_nan && is_last_exponent && (has_infinity || mantissa == num_mantissas - 1))
    return std::numeric_limits<double>::quiet_NaN();
  const double fraction = static_cast<double>(mantissa) / num_mantissas;
  if (exponent == 0) return sign * std::pow(2.0, 1 - bias) * fraction;
  return sign * std::pow(2.0, exponent - bias) * (1 + fraction);
}

Rounder::Rounder(const NumberFormat& format) : format_(format) {
  for (int code = 0; code < format.num_codes() / 2; ++code)
    if (std::isfinite(format.value_of(code))) numbers_.push_back(format.value_of(code));
  first_code_.resize(bucket_of(std::numeric_limits<double>::infinity()) + 1);
  size_t code = 0;
  for (size_t bucket = 0; bucket < first_code_.size(); ++bucket) {
    while (code < numbers_.size() && bucket_of(numbers_[code]) < bucket) ++code;
    first_code_[bucket] = static_cast<uint8_t>(code);
  }
}

size_t Rounder::bucket_of(double magnitude) { return std::bit_cast<uint64_t>(magnitude) >> 49; }

uint8_t Rounder::operator()(double value) const {
  const int sign_code = format_.num_codes() / 2;
  if (std::isnan(value)) return static_cast<uint8_t>(sign_code - 1);
  const double magnitude = std::fabs(value);
  size_t nearest = first_code_[bucket_of(magnitude)];
  while (nearest < numbers_.size() && numbers_[nearest] < magnitude) ++nearest;
  if (nearest == numbers_.size()) {
    --nearest;
  } else if (nearest > 0) {
    // The two differences of a float are exact in a double, or so far apart that rounding does not matter.
    const double up = numbers_[nearest] - magnitude, down = magnitude - numbers_[nearest - 1];
    if (down < up || (down == up && nearest % 2 == 1)) --nearest;
  }
  return static_cast<uint8_t>(nearest + (std::signbit(value) ? sign_code : 0));
}

NumberTables::NumberTables(const NumberFormat& format) : name(format.name), round(format) {
  for (int code = 0; code < format.num_codes(); ++code)
    values.push_back(static_cast<float>(format.value_of(code)));
}

const NumberTables& tables_of(const NumberFormat& format) {
  static const NumberTables kTables[] = {NumberTables(kE4M3), NumberTables(kE5M2), NumberTables(kE2M3),
                                         NumberTables(kE3M2), NumberTables(kE2M1)};
  for (const NumberTables& tables : kTables)
    if (tables.name == format.name) return tables;
  std::abort();  // a new format is missing in the list above
}

}  // namespace switchyard::reference
