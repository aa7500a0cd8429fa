// When a step of an agreement between processes gives up.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "switchyard/status.hpp"

namespace switchyard {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline in_ns(uint64_t nanoseconds) {
    constexpr uint64_t kDayNs = 86'400'000'000'000;
    return Deadline(Clock::now() + std::chrono::nanoseconds(std::min(nanoseconds, kDayNs)));
  }
  static Deadline in_ms(uint64_t milliseconds) { return in_ns(milliseconds * 1'000'000); }
  Deadline earlier_of(const Deadline& other) const { return Deadline(std::min(at_, other.at_)); }

  Clock::time_point at() const { return at_; }
  bool has_passed() const { return Clock::now() >= at_; }
  // For poll(): at least 1 until the deadline has passed, so that nobody spins.
  int remaining_ms() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace switchyard
