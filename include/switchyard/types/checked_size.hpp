// Size arithmetic that knows when it no longer fits 64 bits.
#pragma once

#include <cstdint>

namespace switchyard {

// A byte count that is being built. Once a step has overflowed, so has everything made from it.
class CheckedSize {
 public:
  explicit constexpr CheckedSize(uint64_t value) : value_(value) {}

  constexpr CheckedSize operator*(CheckedSize other) const {
    CheckedSize product(0);
    product.overflowed_ =
        __builtin_mul_overflow(value_, other.value_, &product.value_) || overflowed_ || other.overflowed_;
    return product;
  }
  constexpr CheckedSize operator+(CheckedSize other) const {
    CheckedSize sum(0);
    sum.overflowed_ =
        __builtin_add_overflow(value_, other.value_, &sum.value_) || overflowed_ || other.overflowed_;
    return sum;
  }
  // True while the size fits what an allocator can be asked for.
  constexpr bool ok() const { return !overflowed_ && value_ <= static_cast<uint64_t>(INT64_MAX); }
  constexpr uint64_t value() const { return value_; }

 private:
  uint64_t value_;
  bool overflowed_ = false;
};

}  // namespace switchyard
