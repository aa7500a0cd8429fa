// Which errors of CUDA mean that the context is lost. The headers of CUDA are enough for this.
#include "switchyard/detail/target/cuda_error.hpp"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(CudaErrors, AreExplainedIfTheContextIsLost) {
  const DeathWitness witness([] { return std::string("rank 3"); }, std::chrono::milliseconds(0));
  for (const cudaError_t error : {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorMpsRpcFailure,
                                  cudaErrorMpsClientTerminated})
    EXPECT_EQ(explain_cuda_error(error, internal_error("a copy: broken")).to_string(),
              "unavailable: rank 3 has ended, and this process's context on its GPU is lost with it: a copy: "
              "broken")
        << error;
}

TEST(CudaErrors, StayWhatTheyAreIfOnlyTheCallHasFailed) {
  const DeathWitness witness([] { return std::string("rank 3"); }, std::chrono::milliseconds(0));
  for (const cudaError_t error : {cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorNotReady,
                                  cudaErrorStreamCaptureInvalidated, cudaErrorInvalidDeviceFunction})
    EXPECT_EQ(explain_cuda_error(error, internal_error("a copy: broken")).to_string(),
              "internal: a copy: broken")
        << error;
}

// Waiting for a death takes until patience is over, once; the context stays lost, and every call says so.
TEST(CudaErrors, WaitForADeathOnceAndNotOnTheThreadThatLearnsOfIt) {
  int num_asked = 0;
  const DeathWitness witness(
      [&] {
        ++num_asked;
        return std::string();
      },
      std::chrono::milliseconds(200));
  const auto lose_context = [] {
    return explain_cuda_error(cudaErrorIllegalAddress, internal_error("broken"));
  };
  {
    const NoPatience at_once;
    EXPECT_EQ(lose_context().code(), StatusCode::kInternal);
    EXPECT_EQ(num_asked, 1);
  }
  EXPECT_EQ(lose_context().code(), StatusCode::kInternal);
  EXPECT_GT(num_asked, 2);
  num_asked = 0;
  EXPECT_EQ(lose_context().code(), StatusCode::kInternal);
  EXPECT_EQ(num_asked, 1);
}

}  // namespace
}  // namespace switchyard
