// For tests that are compiled once per target: one rank on the target this file is compiled for. On the host
// every test runs twice, in the emulator's fast mode and in its simulated one.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ep/ep_harness.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/world.hpp"

// gtest wants different suite names for the two halves of a file: Host<name> and Cuda<name>.
#if defined(__CUDACC__)
#define SWITCHYARD_SUITE(name) Cuda##name
#else
#define SWITCHYARD_SUITE(name) Host##name
#endif

namespace switchyard::testing_support {

#if defined(__CUDACC__)
inline constexpr TargetChoice kTargetUnderTest = TargetChoice::kCuda;
#else
inline constexpr TargetChoice kTargetUnderTest = TargetChoice::kHost;
#endif

// The ways in which the target under test can run a kernel. CUDA has one, whatever the emulator's mode says.
inline auto modes_of_target() {
#if defined(__CUDACC__)
  return ::testing::Values(EmulatorMode::kFast);
#else
  return ::testing::Values(EmulatorMode::kFast, EmulatorMode::kSimulated);
#endif
}

inline std::string mode_name(const ::testing::TestParamInfo<EmulatorMode>& info) {
  if (kTargetUnderTest == TargetChoice::kCuda) return "Gpu";
  return info.param == EmulatorMode::kFast ? "Fast" : "Simulated";
}

inline namespace SWITCHYARD_TARGET {

class OneRankTest : public ::testing::TestWithParam<EmulatorMode> {
 protected:
  void SetUp() override {
    SWITCHYARD_SKIP_IF_ABSENT(kTargetUnderTest);
    world_ = must(World::create({.target = kTargetUnderTest, .host = {.mode = GetParam(), .seed = 7}}));
  }

  Rank& rank() { return world_->rank(0); }
  Device& device() { return device_of(rank()); }

  template <typename T>
  Buffer<T> zeros(size_t size) {
    return must(rank().allocate<T>(size));
  }
  template <typename T>
  Buffer<T> upload(const std::vector<T>& values) {
    return must(rank().upload(values));
  }
  template <typename T>
  std::vector<T> download(const Buffer<T>& buffer) {
    return must(buffer.download());
  }

  template <typename Parameters>
  Status launch(void (*kernel)(Parameters), const LaunchShape& shape, const Parameters& parameters) {
    return target::launch("kernel under test", kernel, shape, rank().stream(), parameters);
  }
  // Launches, waits, and fails the test if either does not work.
  template <typename Parameters>
  void run(void (*kernel)(Parameters), const LaunchShape& shape, const Parameters& parameters) {
    const Status launched = launch(kernel, shape, parameters);
    ASSERT_TRUE(launched.ok()) << launched.to_string();
    const Status ended = rank().synchronize();
    ASSERT_TRUE(ended.ok()) << ended.to_string();
  }

 private:
  std::unique_ptr<World> world_;
};

}  // namespace SWITCHYARD_TARGET

}  // namespace switchyard::testing_support
