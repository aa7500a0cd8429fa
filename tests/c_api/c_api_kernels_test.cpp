// Attention and grouped matmul through the C functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "c_api/c_api_harness.hpp"

namespace switchyard::c_api_test {
namespace {

// Arrays in the memory of a rank of its own.
class CApiKernels : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(switchyard_stream_create(world_, 0, &stream_), SWITCHYARD_OK) << switchyard_last_error();
  }
  void TearDown() override { switchyard_world_destroy(world_); }

  template <typename T>
  T* upload(const std::vector<T>& values) {
    void* memory = nullptr;
    const size_t bytes = values.size() * sizeof(T);
    EXPECT_EQ(switchyard_allocate(world_, 0, bytes, &memory), SWITCHYARD_OK) << switchyard_last_error();
    EXPECT_EQ(switchyard_copy(world_, 0, memory, values.data(), bytes), SWITCHYARD_OK);
    return static_cast<T*>(memory);
  }
  // So many values of bf16, all of them the same, when what is on the stream has ended.
  void expect_all(const uint16_t* memory, size_t count, uint16_t expected) {
    ASSERT_EQ(switchyard_stream_synchronize(world_, 0, stream_), SWITCHYARD_OK) << switchyard_last_error();
    std::vector<uint16_t> found(count);
    ASSERT_EQ(switchyard_copy(world_, 0, found.data(), memory, count * 2), SWITCHYARD_OK);
    EXPECT_EQ(found, std::vector<uint16_t>(count, expected));
  }
  void run_attention(const switchyard_attention_shape& shape, const switchyard_attention_tensors& tensors) {
    switchyard_attention* attention = nullptr;
    ASSERT_EQ(switchyard_attention_create(world_, 0, &shape, &attention), SWITCHYARD_OK)
        << switchyard_last_error();
    switchyard_attention_tensors incomplete = tensors;
    incomplete.output = nullptr;
    expect_error(switchyard_attention_run(attention, &incomplete, stream_), SWITCHYARD_INVALID_ARGUMENT,
                 "output");
    EXPECT_EQ(switchyard_attention_run(attention, &tensors, stream_), SWITCHYARD_OK)
        << switchyard_last_error();
    switchyard_attention_destroy(attention);
  }
  void run_matmul(const switchyard_matmul_shape& shape, const switchyard_matmul_tensors& tensors) {
    switchyard_matmul* matmul = nullptr;
    ASSERT_EQ(switchyard_matmul_create(world_, 0, &shape, &matmul), SWITCHYARD_OK) << switchyard_last_error();
    EXPECT_EQ(switchyard_matmul_run(matmul, &tensors, stream_), SWITCHYARD_OK) << switchyard_last_error();
    switchyard_matmul_destroy(matmul);
  }

  static constexpr size_t kRows = 16, kColumns = 64;
  static constexpr uint16_t kOne = 0x3f80, kTwo = 0x4000, kThree = 0x4040;
  static constexpr uint8_t kOneE4M3 = 0x38, kTwoE4M3 = 0x40, kSixteenE4M3 = 0x58, kOneE8M0 = 127;

  switchyard_attention_shape attention_shape(int32_t head_dim) const {
    switchyard_attention_shape shape{};
    shape.size = sizeof(shape);
    shape.head_dim = head_dim;
    shape.max_query_len = shape.max_key_len = kRows;
    shape.num_query_rows = shape.num_key_rows = kRows;
    return shape;
  }
  switchyard_matmul_shape matmul_shape() const {
    switchyard_matmul_shape shape{};
    shape.size = sizeof(shape);
    shape.inner = shape.columns = kColumns;
    shape.max_rows = kRows;
    return shape;
  }
  switchyard_matmul_tensors matmul_tensors(const void* rows, const void* weights) {
    switchyard_matmul_tensors tensors{};
    tensors.size = sizeof(tensors);
    tensors.rows = rows;
    tensors.weights = weights;
    tensors.output = output_ = upload(std::vector<uint16_t>(kRows * kColumns));
    tensors.row_offsets = upload(std::vector<uint32_t>{0, kRows});
    return tensors;
  }

  switchyard_world* world_ = make_world();
  switchyard_stream stream_ = nullptr;
  uint16_t* output_ = nullptr;
};

// The mean of ones is one, and half of it where a sink has as much weight as all keys together.
TEST_F(CApiKernels, Attention) {
  const uint16_t* ones = upload(std::vector<uint16_t>(kRows * kColumns, kOne));
  const switchyard_attention_shape shape = attention_shape(kColumns);
  switchyard_attention_tensors tensors{};
  tensors.size = sizeof(tensors);
  tensors.queries = tensors.keys = tensors.values = ones;
  tensors.output = output_ = upload(std::vector<uint16_t>(kRows * kColumns));
  run_attention(shape, tensors);
  expect_all(output_, kRows * kColumns, kOne);
  const float score = 8, log_of_16 = 2.7725887f;  // 64 ones over the square root of 64
  tensors.sinks = upload(std::vector<float>{score + log_of_16});
  run_attention(shape, tensors);
  expect_all(output_, kRows * kColumns, 0x3f00);
}

TEST_F(CApiKernels, AttentionOverCodesAndLatents) {
  switchyard_attention_shape shape = attention_shape(kColumns);
  shape.kv_format = 2;
  switchyard_attention* attention = nullptr;
  expect_error(switchyard_attention_create(world_, 0, &shape, &attention), SWITCHYARD_INVALID_ARGUMENT,
               "kv_format is 2");
  shape.kv_format = SWITCHYARD_KV_FP8;
  switchyard_attention_tensors tensors{};
  tensors.size = sizeof(tensors);
  tensors.queries = upload(std::vector<uint16_t>(kRows * kColumns, kOne));
  // Key 3 has all the weight: its score is 64, and that of the others 0. Value 3 is two, the others are one.
  std::vector<uint8_t> keys(kRows * kColumns), values(kRows * kColumns, kOneE4M3);
  std::fill_n(keys.begin() + 3 * kColumns, kColumns, kSixteenE4M3);
  std::fill_n(values.begin() + 3 * kColumns, kColumns, kTwoE4M3);
  tensors.key_codes = upload(keys);
  tensors.value_codes = upload(values);
  tensors.key_scales = upload(std::vector<float>{0.5f});
  tensors.value_scales = upload(std::vector<float>{1.5f});
  tensors.output = output_ = upload(std::vector<uint16_t>(kRows * kColumns));
  run_attention(shape, tensors);
  expect_all(output_, kRows * kColumns, kThree);
  // Keys and values that are all alike: scores of 8 become 4 tanh(8 / 4), and the sink has as much weight as
  // all keys together.
  tensors.key_codes = tensors.value_codes = upload(std::vector<uint8_t>(kRows * kColumns, kTwoE4M3));
  shape.soft_cap = 4;
  const float capped_score = 4 * std::tanh(2.0f), log_of_16 = 2.7725887f;
  tensors.sinks = upload(std::vector<float>{capped_score + log_of_16});
  run_attention(shape, tensors);
  expect_all(output_, kRows * kColumns, 0x3fc0);  // 1.5

  constexpr size_t kLatent = 576, kValues = 512;
  switchyard_attention_shape latents = attention_shape(kLatent);
  latents.value_dim = kValues;
  latents.scale = 0.125f;
  switchyard_attention_tensors of_latents{};
  of_latents.size = sizeof(of_latents);
  of_latents.queries = of_latents.keys = upload(std::vector<uint16_t>(kRows * kLatent, kTwo));
  of_latents.output = output_ = upload(std::vector<uint16_t>(kRows * kValues));
  run_attention(latents, of_latents);
  expect_all(output_, kRows * kValues, kTwo);
}

TEST_F(CApiKernels, Matmul) {
  const uint16_t* ones = upload(std::vector<uint16_t>(kColumns * kColumns, kOne));
  run_matmul(matmul_shape(), matmul_tensors(ones, ones));
  expect_all(output_, kRows * kColumns, 0x4280);  // 64
}

// As older programs have them, with something else in their padding and behind them.
TEST_F(CApiKernels, StructsMayBeOlder) {
  const void* beyond = reinterpret_cast<const void*>(intptr_t{99});
  const uint16_t* ones = upload(std::vector<uint16_t>(kColumns * kColumns, kOne));
  switchyard_attention_shape shape = attention_shape(kColumns);
  shape.size = 72;
  shape.value_dim = shape.kv_format = 99;
  switchyard_attention_tensors tensors{};
  tensors.size = 80;
  tensors.queries = tensors.keys = tensors.values = ones;
  tensors.output = output_ = upload(std::vector<uint16_t>(kRows * kColumns));
  tensors.sinks = static_cast<const float*>(beyond);
  run_attention(shape, tensors);
  expect_all(output_, kRows * kColumns, kOne);

  switchyard_matmul_shape of_matmul = matmul_shape();
  of_matmul.size = 72;
  of_matmul.reserved = -1;
  of_matmul.weights = of_matmul.row_scales = 99;
  of_matmul.row_format = static_cast<const char*>(beyond);
  switchyard_matmul_tensors of_rows = matmul_tensors(ones, ones);
  of_rows.size = 96;
  of_rows.weight_tensor_scales = static_cast<const float*>(beyond);
  of_rows.device_row_tensor_scale = of_rows.row_tensor_scales = static_cast<const float*>(beyond);
  of_rows.num_row_tensor_scales = 99;
  of_rows.row_tensor_scale = 99;
  run_matmul(of_matmul, of_rows);
  expect_all(output_, kRows * kColumns, 0x4280);  // 64
}

TEST_F(CApiKernels, MatmulOfCodes) {
  const uint16_t* ones = upload(std::vector<uint16_t>(kRows * kColumns, kOne));
  constexpr uint8_t kTwoOnes = 0x22;  // of e2m1
  switchyard_matmul_shape shape = matmul_shape();
  shape.weights = SWITCHYARD_WEIGHTS_MXFP4;
  switchyard_matmul_tensors tensors =
      matmul_tensors(ones, upload(std::vector<uint8_t>(kColumns * kColumns / 2, kTwoOnes)));
  tensors.weight_scales = upload(std::vector<uint8_t>(kColumns * kColumns / 32, kOneE8M0 + 1));
  tensors.weight_tensor_scales = upload(std::vector<float>{0.25f});
  run_matmul(shape, tensors);
  expect_all(output_, kRows * kColumns, 0x4200);  // 64 x 2 x 0.25
  shape.weights = 4;
  switchyard_matmul* matmul = nullptr;
  expect_error(switchyard_matmul_create(world_, 0, &shape, &matmul), SWITCHYARD_INVALID_ARGUMENT,
               "weights is 4");
}

// 128 codes of the largest number, 448, then their scale, in whole lines of memory.
TEST_F(CApiKernels, MatmulToRowsOfFP8) {
  constexpr size_t kOutputColumns = 128, kRowBytes = 256;
  const uint16_t* ones = upload(std::vector<uint16_t>(kOutputColumns * kColumns, kOne));
  switchyard_matmul_shape shape = matmul_shape();
  shape.columns = kOutputColumns;
  shape.output = 3;
  switchyard_matmul* matmul = nullptr;
  expect_error(switchyard_matmul_create(world_, 0, &shape, &matmul), SWITCHYARD_INVALID_ARGUMENT,
               "output is 3");
  shape.output = SWITCHYARD_MATMUL_FP8_ROWS;
  switchyard_matmul_tensors tensors = matmul_tensors(ones, ones);
  uint8_t* rows = upload(std::vector<uint8_t>(kRows * kRowBytes));
  tensors.output = rows;
  run_matmul(shape, tensors);
  ASSERT_EQ(switchyard_stream_synchronize(world_, 0, stream_), SWITCHYARD_OK) << switchyard_last_error();
  std::vector<uint8_t> found(kRows * kRowBytes), expected(kRowBytes);
  ASSERT_EQ(switchyard_copy(world_, 0, found.data(), rows, found.size()), SWITCHYARD_OK);
  std::fill_n(expected.begin(), kOutputColumns, uint8_t{0x7e});
  const float scale = 64.0f / 448.0f;
  std::memcpy(&expected[kOutputColumns], &scale, sizeof(scale));
  for (size_t row = 0; row < kRows; ++row)
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), found.begin() + ptrdiff_t(row * kRowBytes)))
        << row;
}

// Rows whose scales are powers of two, four exponents in a word, as dispatch in fp8-ue8m0 writes them.
TEST_F(CApiKernels, MatmulOfPackedRowScales) {
  const uint8_t* ones = upload(std::vector<uint8_t>(kColumns * kColumns, kOneE4M3));
  switchyard_matmul_shape shape = matmul_shape();
  shape.element = SWITCHYARD_MATMUL_FP8;
  shape.row_scales = 3;
  switchyard_matmul* matmul = nullptr;
  expect_error(switchyard_matmul_create(world_, 0, &shape, &matmul), SWITCHYARD_INVALID_ARGUMENT,
               "row_scales is 3");
  shape.row_scales = SWITCHYARD_ROW_SCALES_PACKED_E8M0;
  switchyard_matmul_tensors tensors = matmul_tensors(ones, ones);
  tensors.row_scales = upload(std::vector<uint32_t>(kRows, kOneE8M0 - 1));
  tensors.weight_scales = upload(std::vector<float>{1});
  run_matmul(shape, tensors);
  expect_all(output_, kRows * kColumns, 0x4200);  // 64 / 2
}

// Two scales of each row side by side, as dispatch in fp8-by-row writes them.
TEST_F(CApiKernels, MatmulOfRowScalesByRow) {
  constexpr size_t kInner = 256;
  const uint8_t* ones = upload(std::vector<uint8_t>(kColumns * kInner, kOneE4M3));
  switchyard_matmul_shape shape = matmul_shape();
  shape.inner = kInner;
  shape.element = SWITCHYARD_MATMUL_FP8;
  shape.row_scales = SWITCHYARD_ROW_SCALES_FLOAT_BY_ROW;
  switchyard_matmul_tensors tensors = matmul_tensors(ones, ones);
  std::vector<float> scales;
  for (size_t row = 0; row < kRows; ++row) scales.insert(scales.end(), {0.5f, 0.25f});
  tensors.row_scales = upload(scales);
  tensors.weight_scales = upload(std::vector<float>{1, 1});
  run_matmul(shape, tensors);
  expect_all(output_, kRows * kColumns, 0x42c0);  // 128 / 2 + 128 / 4
}

// Rows in NVFP4 in two groups, as dispatch writes them: the groups begin at multiples of 128.
TEST_F(CApiKernels, MatmulOfRowsInADispatchFormat) {
  constexpr size_t kSecondGroup = 128, kAllRows = kSecondGroup + kRows;
  constexpr uint8_t kTwoOnes = 0x22;  // of e2m1
  switchyard_matmul_shape shape = matmul_shape();
  shape.num_groups = 2;
  shape.max_rows = kAllRows;
  shape.row_format = "fp5";
  switchyard_matmul* matmul = nullptr;
  expect_error(switchyard_matmul_create(world_, 0, &shape, &matmul), SWITCHYARD_INVALID_ARGUMENT,
               "row_format is \"fp5\"");
  shape.row_format = "nvfp4";
  switchyard_matmul_tensors tensors =
      matmul_tensors(upload(std::vector<uint8_t>(kAllRows * kColumns / 2, kTwoOnes)),
                     upload(std::vector<uint16_t>(2 * kColumns * kColumns, kOne)));
  tensors.output = output_ = upload(std::vector<uint16_t>(kAllRows * kColumns));
  tensors.row_offsets = upload(std::vector<uint32_t>{0, kSecondGroup, kAllRows});
  tensors.row_scales = upload(std::vector<uint8_t>(2 * kSecondGroup * kColumns / 16, kTwoE4M3));
  const auto expect_groups = [&](uint16_t first, uint16_t second) {
    run_matmul(shape, tensors);
    expect_all(output_, kSecondGroup * kColumns, first);
    expect_all(output_ + kSecondGroup * kColumns, kRows * kColumns, second);
  };
  expect_groups(0x4300, 0x4300);  // 64 x 2
  tensors.row_tensor_scale = 0.5f;
  expect_groups(0x4280, 0x4280);  // 64
  tensors.row_tensor_scales = upload(std::vector<float>{1.5f, 0.25f});
  tensors.num_row_tensor_scales = 1;
  expect_groups(0x4280, 0x4340);  // 64, 192
  tensors.num_row_tensor_scales = 0;
  expect_groups(0x4340, 0x4200);  // 192, 32
  tensors.row_tensor_scales = nullptr;
  tensors.device_row_tensor_scale = upload(std::vector<float>{2});
  expect_groups(0x4380, 0x4380);  // 256
}

// A tensor scale for each expert of the rank, as a matmul takes them; rows in other formats have none.
TEST_F(CApiKernels, RowBuffersHaveTheTensorScalesOfExperts) {
  const std::vector<float> scales = {0.5f, 1, 1.5f, 2};
  switchyard_ep_config config = small_config();
  config.hidden = kColumns;
  for (const char* format : {"nvfp4-by-expert", "nvfp4"}) {
    const bool is_by_expert = std::string(format) == "nvfp4-by-expert";
    config.dispatch_format = format;
    config.num_expert_input_scales = is_by_expert ? 4 : 0;
    config.expert_input_scales = is_by_expert ? scales.data() : nullptr;
    switchyard_ep* ep = nullptr;
    ASSERT_EQ(switchyard_ep_create(world_, &config, &ep), SWITCHYARD_OK) << switchyard_last_error();
    switchyard_row_buffers buffers{};
    buffers.size = sizeof(buffers);
    ASSERT_EQ(switchyard_ep_row_buffers(ep, 0, &buffers), SWITCHYARD_OK) << switchyard_last_error();
    EXPECT_EQ(buffers.expert_tensor_scales != nullptr, is_by_expert);
    if (buffers.expert_tensor_scales != nullptr) {
      std::vector<float> found(4);
      ASSERT_EQ(switchyard_copy(world_, 0, found.data(), buffers.expert_tensor_scales, 4 * sizeof(float)),
                SWITCHYARD_OK);
      EXPECT_EQ(found, scales);
    }
    buffers = {};
    buffers.size = offsetof(switchyard_row_buffers, expert_tensor_scales);  // an older program's
    ASSERT_EQ(switchyard_ep_row_buffers(ep, 0, &buffers), SWITCHYARD_OK) << switchyard_last_error();
    EXPECT_EQ(buffers.expert_tensor_scales, nullptr);
    switchyard_ep_destroy(ep);
  }
}

}  // namespace
}  // namespace switchyard::c_api_test
