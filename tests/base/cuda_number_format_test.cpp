// The number formats of base/ against the host conversions of CUDA's own headers, where those are installed.
#include <cuda_bf16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "switchyard/detail/base/e8m0.hpp"
#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard {
namespace {

// Every bf16 with the floats next to it (so every middle of two numbers too), and random bits.
std::vector<float> inputs() {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 65536; ++upper)
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
  std::mt19937 random(2);
  for (int i = 0; i < 500'000; ++i) values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  return values;
}

template <typename Format, typename CudaConversion>
void check_rounding(CudaConversion cuda) {
  for (const float value : inputs())
    ASSERT_EQ(to_minifloat<Format>(value).bits, cuda(value))
        << value << ", bits " << std::bit_cast<uint32_t>(value);
}

template <typename Format, typename CudaConversion>
void check_values(CudaConversion cuda) {
  for (int code = 0; code < 1 << Format::kNumBits; ++code) {
    const float expected = __half2float(__half(cuda(static_cast<uint8_t>(code))));
    const float seen = to_float(Format{static_cast<uint8_t>(code)});
    if (std::isnan(expected))
      EXPECT_TRUE(std::isnan(seen)) << "code " << code;
    else
      EXPECT_EQ(std::bit_cast<uint32_t>(seen), std::bit_cast<uint32_t>(expected)) << "code " << code;
  }
}

TEST(CudaHeaders, RoundToFp8AsWeDo) {
  check_rounding<e4m3>([](float value) { return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3); });
  check_rounding<e5m2>([](float value) { return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2); });
}

TEST(CudaHeaders, RoundToFp6AndFp4AsWeDo) {
  check_rounding<e2m3>([](float value) { return __nv_cvt_float_to_fp6(value, __NV_E2M3, cudaRoundNearest); });
  check_rounding<e3m2>([](float value) { return __nv_cvt_float_to_fp6(value, __NV_E3M2, cudaRoundNearest); });
  check_rounding<e2m1>([](float value) { return __nv_cvt_float_to_fp4(value, __NV_E2M1, cudaRoundNearest); });
}

TEST(CudaHeaders, GiveEveryCodeTheValueWeDo) {
  check_values<e4m3>([](uint8_t code) { return __nv_cvt_fp8_to_halfraw(code, __NV_E4M3); });
  check_values<e5m2>([](uint8_t code) { return __nv_cvt_fp8_to_halfraw(code, __NV_E5M2); });
  check_values<e2m3>([](uint8_t code) { return __nv_cvt_fp6_to_halfraw(code, __NV_E2M3); });
  check_values<e3m2>([](uint8_t code) { return __nv_cvt_fp6_to_halfraw(code, __NV_E3M2); });
  check_values<e2m1>([](uint8_t code) { return __nv_cvt_fp4_to_halfraw(code, __NV_E2M1); });
}

TEST(CudaHeaders, ConvertScalesAsWeDo) {
  for (const float value : inputs()) {
    ASSERT_EQ(to_e8m0_round_down(value).bits, __nv_cvt_float_to_e8m0(value, __NV_SATFINITE, cudaRoundZero))
        << value;
    ASSERT_EQ(to_e8m0_round_up(value).bits, __nv_cvt_float_to_e8m0(value, __NV_SATFINITE, cudaRoundPosInf))
        << value;
  }
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(to_bf16(to_float(e8m0{static_cast<uint8_t>(code)})).bits, __nv_cvt_e8m0_to_bf16raw(code).x);
}

TEST(CudaHeaders, RoundToBf16AsWeDo) {
  for (const float value : inputs()) {
    const uint16_t expected = __nv_bfloat16_raw(__float2bfloat16_rn(value)).x;
    if (std::isnan(value))  // CUDA's NaN is 0x7fff; ours keeps the sign and is quiet
      ASSERT_TRUE((expected & 0x7fff) > 0x7f80 && (to_bf16(value).bits & 0x7fff) == 0x7fc0);
    else
      ASSERT_EQ(to_bf16(value).bits, expected) << value;
  }
}

}  // namespace
}  // namespace switchyard
