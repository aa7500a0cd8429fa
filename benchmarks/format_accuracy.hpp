// The error of each token format: values are quantised and converted back by the plain-loop reference, which
// the kernels equal bit for bit.
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
  double rms;      // of the errors, over the rms of the values
  double element;  // the rms of each element's error over the element itself
  double largest;  // the largest error over the largest magnitude of its scale group
};

struct FormatAccuracy {
  std::string format;
  double bits_per_element;          // scales included
  std::vector<FormatError> errors;  // [kInputKinds]
};

// Measures every format on the same num_values values of each kind, which are drawn from the seed. It is
// a multiple of kAccuracyGroup, the longest group that shares a scale.
inline constexpr int kAccuracyGroup = 128;
std::vector<FormatAccuracy> measure_format_accuracy(uint64_t seed, int num_values);

}  // namespace switchyard::tools
