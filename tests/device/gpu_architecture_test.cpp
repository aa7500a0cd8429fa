#include "switchyard/detail/device/gpu_architecture.hpp"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

constexpr ComputeCapability kA100{8, 0}, kL4{8, 9}, kH200{9, 0}, kB200{10, 0}, kB300{10, 3}, kRtx50{12, 0};

TEST(GpuArchitecture, MachineCodeRunsOnItsOwnMajorVersion) {
  EXPECT_TRUE(runs_on("80-real", kA100));
  EXPECT_TRUE(runs_on("80-real", kL4));
  EXPECT_FALSE(runs_on("89-real", kA100));
  EXPECT_FALSE(runs_on("80-real", kH200));
}

TEST(GpuArchitecture, TheCodeOfOneArchitectureRunsOnNoOther) {
  EXPECT_TRUE(runs_on("90a-real", kH200));
  EXPECT_FALSE(runs_on("90a-real", kB200));
  EXPECT_TRUE(runs_on("100a-real", kB200));
  EXPECT_FALSE(runs_on("100a", kB300));
  EXPECT_FALSE(runs_on("90a-real", kL4));
}

TEST(GpuArchitecture, CodeOfAFamilyRunsOnLaterMembers) {
  EXPECT_TRUE(runs_on("100f-real", kB300));
  EXPECT_FALSE(runs_on("100f-real", kRtx50));
}

TEST(GpuArchitecture, PtxRunsOnEveryLaterGpu) {
  EXPECT_TRUE(runs_on("80-virtual", kRtx50));
  EXPECT_TRUE(runs_on("80", kH200));
  EXPECT_FALSE(runs_on("90-virtual", kL4));
}

TEST(GpuArchitecture, AnyOfTheListWillDo) {
  EXPECT_TRUE(runs_on("80-real,90a-real", kA100));
  EXPECT_TRUE(runs_on("80-real,90a-real", kH200));
  EXPECT_FALSE(runs_on("80-real,90a-real", kB200));
  EXPECT_FALSE(runs_on("", kH200));
  EXPECT_TRUE(runs_on("native", kL4)) << "the driver knows";
}

TEST(GpuArchitecture, TileKernelsNeedHopperAndItsOwnCode) {
  EXPECT_TRUE(has_matrix_unit("90a-real", kH200));
  EXPECT_TRUE(has_matrix_unit("80-real,90a-real", kH200));
  EXPECT_FALSE(has_matrix_unit("90-real", kH200));
  EXPECT_FALSE(has_matrix_unit("80-real,90a-real", kA100));
  EXPECT_FALSE(has_matrix_unit("100a-real", kB200));
}

}  // namespace
}  // namespace switchyard
