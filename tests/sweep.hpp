// How many cases a test tries.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

namespace switchyard::testing_support {

// ThreadSanitizer makes a case up to fifty times as slow. It looks for races, and a few sizes show those; the
// builds without it look for wrong numbers at all sizes.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kFewCases = true;
#else
inline constexpr bool kFewCases = false;
#endif

// The values of a sweep: all of them, or only the last one where a few cases are to do.
template <typename T>
std::vector<T> sweep(std::span<const T> values) {
  return {kFewCases ? values.end() - 1 : values.begin(), values.end()};
}
template <typename T>
std::vector<T> sweep(std::initializer_list<T> values) {
  return sweep(std::span<const T>(values.begin(), values.size()));
}
template <typename T, size_t kSize>
std::vector<T> sweep(const T (&values)[kSize]) {
  return sweep(std::span<const T>(values));
}

}  // namespace switchyard::testing_support
