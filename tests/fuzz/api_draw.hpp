// What the sequences of calls of api_fuzz.cpp are drawn with, and how they end where something is not as it
// should be.
#pragma once

#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/status.hpp"

namespace switchyard::api_fuzz {

// What was done so far, and the end of it where something is not as it should be.
struct Log {
  std::string text;
  void add(const std::string& line) { text += "  " + line + "\n"; }
};

[[noreturn]] inline void fail(const std::string& what) { throw std::runtime_error(what); }
inline void expect_ok(const Status& status, const std::string& call) {
  if (!status.ok()) fail(call + ": " + status.to_string());
}
inline void expect_code(const Status& status, StatusCode code, const std::string& call) {
  if (status.code() != code)
    fail(call + " should have been " + to_string(code) + ", but is " + status.to_string());
}
template <typename T>
T must(Result<T> result, const std::string& call) {
  expect_ok(result.status(), call);
  return std::move(result).value();
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int below(int limit) { return static_cast<int>(random_() % static_cast<uint64_t>(limit)); }
  bool one_in(int n) { return below(n) == 0; }
  template <typename T>
  const T& of(const std::vector<T>& values) {
    return values[static_cast<size_t>(below(static_cast<int>(values.size())))];
  }
  std::vector<int> order_of(int count) {
    std::vector<int> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    for (int i = count - 1; i > 0; --i)
      std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(below(i + 1))]);
    return order;
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace switchyard::api_fuzz
