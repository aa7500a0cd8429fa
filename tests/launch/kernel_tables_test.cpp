// The tables of kernels by target.
#include <gtest/gtest.h>

#include "switchyard/detail/launch/attention_kernels.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/launch/matmul_kernels.hpp"

namespace switchyard {
namespace {

#if defined(SWITCHYARD_HAS_CUDA)
TEST(KernelTables, EachTargetHasItsOwn) {
  EXPECT_NE(&kernel_table(Target::kCuda), &kernel_table(Target::kHost));
  EXPECT_NE(&attention_kernels(Target::kCuda), &attention_kernels(Target::kHost));
  EXPECT_NE(&matmul_kernels(Target::kCuda), &matmul_kernels(Target::kHost));
}
#else
TEST(KernelTablesDeathTest, NoTableStandsInForThatOfATargetThatIsNotBuilt) {
  EXPECT_DEATH(kernel_table(Target::kCuda), "this build has those of the host only");
  EXPECT_DEATH(attention_kernels(Target::kCuda), "this build has those of the host only");
  EXPECT_DEATH(matmul_kernels(Target::kCuda), "this build has those of the host only");
}
#endif

}  // namespace
}  // namespace switchyard
