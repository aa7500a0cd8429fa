// For tests of the kernels of an MoE layer besides dispatch and combine: one rank of any target, and its
// kernel table.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "ep/ep_harness.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard::testing_support {

// One warp does everything; several blocks share it; there are more warps than some of the work.
inline constexpr LaunchShape kLaunchShapes[] = {{.num_blocks = 1, .num_threads = 32},
                                                {.num_blocks = 3, .num_threads = 64},
                                                {.num_blocks = 7, .num_threads = 32}};

class LayerTest : public ::testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override {
    SWITCHYARD_SKIP_IF_ABSENT(GetParam());
    world_ = must(World::create({.target = GetParam()}));
  }

  const Rank& rank() const { return world_->rank(0); }
  const KernelTable& kernels() const { return kernel_table(rank()); }
  template <typename T>
  Buffer<T> upload(const std::vector<T>& values) const {
    return must(rank().upload(values));
  }
  // Filled with 0xee bytes, so that what is not written shows.
  template <typename T>
  Buffer<T> poisoned(size_t size) const {
    Buffer<T> buffer = must(rank().allocate<T>(size));
    EXPECT_TRUE(buffer.fill_bytes(0xee).ok());
    return buffer;
  }

  std::unique_ptr<World> world_;
};

inline std::vector<bf16> random_bf16(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<bf16> values(size);
  for (bf16& value : values) value = to_bf16(static_cast<float>(random() % 4001) / 1000.0f - 2.0f);
  return values;
}

inline std::vector<uint16_t> bits_of(const std::vector<bf16>& values) {
  std::vector<uint16_t> bits;
  for (const bf16 value : values) bits.push_back(value.bits);
  return bits;
}

}  // namespace switchyard::testing_support
