#include "periodic_numbers.hpp"

#include <algorithm>
#include <random>

#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard::tools {
namespace {

// A prime, so that no two rows are equal.
constexpr size_t kPeriod = 4194301;

}  // namespace

Result<PeriodicNumbers> PeriodicNumbers::create(const Rank& rank, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<bf16> period(kPeriod);
  for (bf16& value : period) value = to_bf16(normal(random));
  return repeat(rank, std::move(period));
}

Result<PeriodicNumbers> PeriodicNumbers::create_codes(const Rank& rank, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto code = [&] { return random() % 0x60 | random() % 2 << 7; };
  std::vector<bf16> period(kPeriod);
  for (bf16& value : period) value.bits = static_cast<uint16_t>(code() | code() << 8);
  return repeat(rank, std::move(period));
}

Result<PeriodicNumbers> PeriodicNumbers::repeat(const Rank& rank, std::vector<bf16> period) {
  PeriodicNumbers numbers;
  numbers.rank_ = &rank;
  numbers.period_ = std::move(period);
  Result<Buffer<bf16>> uploaded = rank.upload(numbers.period_);
  if (!uploaded.ok()) return uploaded.status();
  numbers.on_device_ = std::move(uploaded).value();
  return numbers;
}

Status PeriodicNumbers::fill(const Buffer<bf16>& tensor, int shift) const {
  for (size_t done = 0; done < tensor.size();) {
    const size_t position = (done + static_cast<size_t>(shift)) % kPeriod;
    const size_t count = std::min(kPeriod - position, tensor.size() - done);
    SWITCHYARD_RETURN_IF_ERROR(device_of(*rank_).copy(tensor.data() + done, on_device_.data() + position,
                                                      count * sizeof(bf16), rank_->stream()));
    done += count;
  }
  return Status();
}

std::vector<bf16> PeriodicNumbers::at(int shift, size_t begin, size_t end) const {
  std::vector<bf16> numbers(end - begin);
  for (size_t i = begin; i < end; ++i)
    numbers[i - begin] = period_[(i + static_cast<size_t>(shift)) % kPeriod];
  return numbers;
}

}  // namespace switchyard::tools
