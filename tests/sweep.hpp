// How many cases a test tries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
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

// AddressSanitizer and UBSan look at what each size does to addresses. A sweep over what changes no size, as
// how often a thing is done or by how many blocks, or whose sizes another test has, too, has nothing for them
// after its last value.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kFewRepeats = true;
#else
inline constexpr bool kFewRepeats = kFewCases;
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

// The same for a sweep over what changes no size, or has another test with the same sizes.
template <typename T, size_t kSize>
std::vector<T> repeats(const T (&values)[kSize]) {
  // Not in braces, which would make a vector of two bools of two pointers.
  return std::vector<T>(kFewRepeats ? std::end(values) - 1 : std::begin(values), std::end(values));
}

// How many of `count` seeds a simulation tries. A seed draws an order, of which a sanitizer sees nothing that
// the build without one does not; thirty draw every size, too.
constexpr uint64_t seeds(uint64_t count) { return kFewRepeats ? std::min<uint64_t>(count, 30) : count; }

}  // namespace switchyard::testing_support
