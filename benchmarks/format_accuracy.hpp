// What each number format loses: tokens quantised and taken back, by the plain-loop reference, which the
// kernels equal bit for bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::tools {

enum class InputKind {
  kNormal,       // normal, deviation 1
  kHeavyTailed,  // Student's t with three degrees of freedom
  kOutliers,     // normal, and one value in a thousand a hundred times as large
};
inline constexpr InputKind kInputKinds[] = {InputKind::kNormal, InputKind::kHeavyTailed,
                                            InputKind::kOutliers};
const char* to_string(InputKind kind);

struct FormatError {
  double rms;      // of the errors, by that of the values
  double element;  // rms of each element's error by the element itself
  double largest;  // the largest error by the largest magnitude of its group
};

struct FormatAccuracy {
  std::string format;
  double bits_per_element;          // scales included
  std::vector<FormatError> errors;  // [kInputKinds]
};

inline constexpr int kNumAccuracyValues = 1 << 20;

// Every format on the same kNumAccuracyValues values of each kind, which follow from the seed.
std::vector<FormatAccuracy> measure_format_accuracy(uint64_t seed);

}  // namespace switchyard::tools
