// Random numbers for tensors that are too large to generate on the host: each tensor repeats one period of
// numbers, from an offset of its own. The value of an element is known without reading the tensor back.
#pragma once

#include <vector>

#include "switchyard/types/bf16.hpp"
#include "switchyard/world.hpp"

namespace switchyard::tools {

class PeriodicNumbers {
 public:
  PeriodicNumbers() = default;
  // Normally distributed.
  static Result<PeriodicNumbers> create(const Rank& rank, uint64_t seed);
  // Each stands for two e4m3 codes of numbers up to 30.
  static Result<PeriodicNumbers> create_codes(const Rank& rank, uint64_t seed);

  Status fill(const Buffer<bf16>& tensor, int shift) const;
  // Elements begin..end - 1 of a tensor that was filled with this shift.
  std::vector<bf16> at(int shift, size_t begin, size_t end) const;

  const std::vector<bf16>& period() const { return period_; }

 private:
  static Result<PeriodicNumbers> repeat(const Rank& rank, std::vector<bf16> period);

  const Rank* rank_ = nullptr;
  std::vector<bf16> period_;
  Buffer<bf16> on_device_;
};

}  // namespace switchyard::tools
