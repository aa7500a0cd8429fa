// SiLU-and-multiply to every token format, on every target, bit for bit against the plain-loop reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>

#include "layer_kernels_fixture.hpp"
#include "reference/token_format.hpp"

namespace switchyard {
namespace {

using testing_support::bits_of;
using testing_support::kLaunchShapes;
using testing_support::must;
using testing_support::random_bf16;

constexpr uint8_t kUnwritten = 0xee;

struct QuantizedOutput {
  TokenFormatKind kind;
  const reference::NumberFormat& format;
  TokenFormatInfo info = info_of(kind);

  size_t row_bytes(int width) const { return static_cast<size_t>(width) * format.num_bits() / 8; }
  reference::QuantizedToken quantized(const std::vector<float>& row, float tensor_scale) const {
    return reference::quantized(kind, row, tensor_scale);
  }
};

std::vector<QuantizedOutput> quantized_outputs() {
  const std::map<ElementType, const reference::NumberFormat*> formats = {
      {ElementType::kE4M3, &reference::kE4M3},
      {ElementType::kE5M2, &reference::kE5M2},
      {ElementType::kE2M3, &reference::kE2M3},
      {ElementType::kE3M2, &reference::kE3M2},
      {ElementType::kE2M1, &reference::kE2M1}};
  std::vector<QuantizedOutput> outputs;
  for (const TokenFormatKind kind : kTokenFormatKinds)
    if (info_of(kind).scale != ScaleType::kNone)
      outputs.push_back({kind, *formats.at(info_of(kind).element)});
  return outputs;
}
const std::vector<QuantizedOutput> kQuantizedOutputs = quantized_outputs();

// Ragged rows of gate and up, of every kind in turn.
struct Input {
  int width;
  std::vector<uint32_t> row_offsets;
  std::vector<bf16> gate_up;

  size_t num_rows() const { return row_offsets.back(); }
  int num_groups() const { return static_cast<int>(row_offsets.size()) - 1; }
  std::vector<float> products_of_row(size_t row) const {
    const auto begin = gate_up.begin() + static_cast<ptrdiff_t>(row * 2 * width);
    return reference::silu_products({begin, begin + 2 * width}, width);
  }
};

Input make_input(int width, const std::vector<uint32_t>& row_offsets) {
  Input input{width, row_offsets, {}};
  std::mt19937_64 random(static_cast<uint64_t>(width));
  const float infinity = std::numeric_limits<float>::infinity();
  const float specials[] = {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity};
  for (size_t row = 0; row < input.num_rows(); ++row) {
    std::vector<bf16> values = random_bf16(2ull * width, random());
    const size_t kind = row % 8;
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = to_float(values[i]);
      if (kind == 1) values[i] = to_bf16(std::copysign(0.0f, value));
      if (kind == 2) values[i] = to_bf16(value * 1e38f);   // many products are infinite, some gates too far
      if (kind == 3) values[i] = to_bf16(value * 1e-20f);  // products below the normal numbers
      if (kind == 4 && random() % 50 == 0) values[i] = to_bf16(value * 3000.0f);
      if (kind == 5) values[i] = to_bf16(value * 20.0f);
    }
    if (kind == 6) values[random() % values.size()] = to_bf16(specials[random() % 3]);
    input.gate_up.insert(input.gate_up.end(), values.begin(), values.end());
  }
  return input;
}

std::string name_of(const testing::TestParamInfo<TargetChoice>& info) {
  return testing_support::target_name(info.param);
}

class SiluMul : public testing_support::LayerTest {
 protected:
  void check_bf16(const Input& input) const {
    std::vector<bf16> expected = reference::silu_mul(input.gate_up, input.width);
    ASSERT_EQ(expected.size(), input.num_rows() * input.width);
    expected.resize(expected.size() + 8, bf16{0xeeee});  // behind the end
    const Buffer<bf16> gate_up = upload(input.gate_up);
    const Buffer<uint32_t> row_offsets = upload(input.row_offsets);
    for (const LaunchShape& shape : kLaunchShapes) {
      const Buffer<bf16> output = poisoned<bf16>(expected.size());
      const SiluMulInput input_rows{input.num_groups(), input.width, gate_up.data(), row_offsets.data()};
      ASSERT_TRUE(kernels().silu_mul(shape, rank().stream(), input_rows, {.rows = output.data()}).ok());
      const std::vector<uint16_t> seen = bits_of(must(output.download())), wanted = bits_of(expected);
      for (size_t i = 0; i < wanted.size(); ++i) ASSERT_EQ(seen[i], wanted[i]) << "value " << i;
    }
  }

  // Empty: row r has scale row r, and all groups have one tensor scale.
  struct GroupTables {
    std::vector<uint32_t> scale_row_offsets;
    std::vector<float> tensor_scales;
  };

  void check_quantized(const QuantizedOutput& to, const Input& input, const GroupTables& tables = {}) const {
    SCOPED_TRACE(std::string(to.info.name) + ", width " + std::to_string(input.width));
    const size_t num_scale_rows =
        128 * (tables.scale_row_offsets.empty() ? input.num_rows() / 128 + 1
                                                : tables.scale_row_offsets.back() / 128 + 2);
    const auto max_rows = static_cast<uint32_t>(input.num_rows() + 2);
    const Expected expected = expected_of(to, input, tables, max_rows, num_scale_rows);
    const Buffer<bf16> gate_up = upload(input.gate_up);
    const Buffer<uint32_t> row_offsets = upload(input.row_offsets);
    const Buffer<uint32_t> scale_row_offsets = upload(tables.scale_row_offsets);
    const Buffer<float> tensor_scales = upload(tables.tensor_scales);
    for (const LaunchShape& shape : kLaunchShapes) {
      const Buffer<uint8_t> rows = poisoned<uint8_t>(expected.rows.size());
      const Buffer<uint8_t> scales = poisoned<uint8_t>(expected.scales.size());
      const SiluMulInput input_rows{input.num_groups(), input.width, gate_up.data(), row_offsets.data()};
      const SiluMulDestination destination{
          .format = to.kind,
          .rows = rows.data(),
          .scales = scales.data(),
          .max_rows = max_rows,
          .scale_row_offsets = tables.scale_row_offsets.empty() ? nullptr : scale_row_offsets.data(),
          .tensor_scale = kTensorScale,
          .group_tensor_scales = tables.tensor_scales.empty() ? nullptr : tensor_scales.data()};
      const Status status = kernels().silu_mul(shape, rank().stream(), input_rows, destination);
      ASSERT_TRUE(status.ok()) << status.to_string();
      expect_bytes(must(rows.download()), expected.rows, "codes");
      expect_bytes(must(scales.download()), expected.scales, "scales");
    }
  }

 private:
  static constexpr float kTensorScale = 0.0007f;

  struct Expected {
    std::vector<uint8_t> rows, scales;  // what is not written included
  };

  static Expected expected_of(const QuantizedOutput& to, const Input& input, const GroupTables& tables,
                              uint32_t max_rows, size_t num_scale_rows) {
    const size_t num_scales = static_cast<size_t>(input.width / to.info.group_size);
    const bool is_tiled = to.info.placement == ScalePlacement::kTiled;
    const size_t scale_bytes = is_tiled ? num_scale_rows * ((num_scales + 3) / 4 * 4)
                                        : to.info.scale_tensor_bytes(max_rows, input.width).value();
    const size_t num_written =
        is_tiled || to.info.placement == ScalePlacement::kPacked ? (num_scales + 3) / 4 * 4 : num_scales;
    Expected expected{std::vector<uint8_t>(max_rows * to.row_bytes(input.width), kUnwritten),
                      std::vector<uint8_t>(scale_bytes, kUnwritten)};
    for (int group = 0; group < input.num_groups(); ++group)
      for (size_t row = input.row_offsets[group]; row < input.row_offsets[group + 1]; ++row) {
        const reference::QuantizedToken token =
            to.quantized(input.products_of_row(row),
                         tables.tensor_scales.empty() ? kTensorScale : tables.tensor_scales[group]);
        const std::vector<uint8_t> codes = reference::packed(token.codes, to.format.num_bits());
        std::copy(codes.begin(), codes.end(),
                  expected.rows.begin() + static_cast<ptrdiff_t>(row * codes.size()));
        const size_t scale_row = tables.scale_row_offsets.empty()
                                     ? row
                                     : tables.scale_row_offsets[group] + row - input.row_offsets[group];
        const std::vector<uint8_t> scales = token.scale_bytes();
        const size_t bytes = static_cast<size_t>(to.info.scale_bytes);
        for (size_t i = 0; i < num_written; ++i) {
          uint8_t* const place =
              &expected.scales.at(reference::scale_offset(to.kind, scale_row, i, input.width, max_rows));
          if (i < num_scales)
            std::memcpy(place, &scales[i * bytes], bytes);
          else
            *place = 0;
        }
      }
    return expected;
  }

  static void expect_bytes(const std::vector<uint8_t>& seen, const std::vector<uint8_t>& expected,
                           const char* what) {
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(static_cast<int>(seen[i]), static_cast<int>(expected[i])) << what << ", byte " << i;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, SiluMul, testing_support::all_targets(), name_of);

TEST_P(SiluMul, RaggedRowsOfAnyMultipleOfEight) {
  for (const int width : {8, 16, 40, 128, 264})
    if (!HasFatalFailure()) check_bf16(make_input(width, {0, 4, 4, 11, 27}));
}

TEST_P(SiluMul, ZeroRowsWriteNothing) {
  check_bf16(make_input(16, {0, 0, 0}));
  check_bf16(make_input(16, {0}));
  for (const QuantizedOutput& output : kQuantizedOutputs) check_quantized(output, make_input(128, {0, 0, 0}));
}

TEST_P(SiluMul, EveryGateIsNearTheExactProduct) {
  constexpr int kWidth = 256, kNumRows = 256;
  std::vector<bf16> gate_up;
  for (int row = 0; row < kNumRows; ++row) {
    for (int i = 0; i < kWidth; ++i) gate_up.push_back(bf16{static_cast<uint16_t>(row * kWidth + i)});
    for (int i = 0; i < kWidth; ++i) gate_up.push_back(to_bf16(row % 2 == 0 ? 1.0f : -0.3f));
  }
  const Input input{kWidth, {0, kNumRows}, gate_up};
  check_bf16(input);
  for (size_t row = 0; row < kNumRows; ++row) {
    const std::vector<float> products = input.products_of_row(row);
    for (int i = 0; i < kWidth; ++i) {
      const double gate = to_float(gate_up[row * 2 * kWidth + i]);
      const double up = to_float(gate_up[row * 2 * kWidth + kWidth + i]);
      const double exact = gate / (1 + std::exp(-gate)) * up;
      if (std::isnan(exact)) {
        EXPECT_EQ(std::bit_cast<uint32_t>(products[i]), 0x7fc00000u) << gate;
      } else if (std::isinf(exact)) {
        EXPECT_EQ(products[i], exact);
      } else {
        // A gate below -88.7 gives 0, since e^-gate is no float: off by no more than its exact 1e-36.
        EXPECT_NEAR(products[i], exact, std::fabs(exact) * 4e-7 + 3e-37) << gate;
      }
    }
  }
}

TEST_P(SiluMul, QuantisedIsTheReferenceBitForBit) {
  for (const QuantizedOutput& output : kQuantizedOutputs)
    for (const int num_groups_of_width : {1, 3, 8, 17})
      if (!HasFatalFailure())
        check_quantized(output,
                        make_input(num_groups_of_width * output.info.group_size, {0, 0, 5, 6, 6, 27}));
}

TEST_P(SiluMul, QuantisedRowsOfAnMlp) {
  for (const QuantizedOutput& output : kQuantizedOutputs)
    if (!HasFatalFailure()) check_quantized(output, make_input(2048, {0, 7, 9}));
}

// Rows end to end; the scales of each group start at a tile; each group has its tensor scale.
TEST_P(SiluMul, TilesAndTensorScalesOfGroups) {
  const Input input = make_input(96, {0, 1, 1, 130, 258, 263});
  for (const QuantizedOutput& output : kQuantizedOutputs)
    if (output.info.placement == ScalePlacement::kTiled && !HasFatalFailure())
      check_quantized(output, input, {{0, 128, 256, 512, 640}, {0.01f, 1.0f, 0.002f, 3e-5f, 0.7f}});
}

TEST_P(SiluMul, AWidthThatIsNotWholeGroupsIsRefusedAndTheMultipleNamed) {
  const auto refusal = [&](TokenFormatKind format, int width) {
    return kernels()
        .silu_mul(kLaunchShapes[0], rank().stream(), {.width = width}, {.format = format})
        .to_string();
  };
  EXPECT_EQ(refusal(TokenFormatKind::kBF16, 12),
            "invalid argument: silu_mul: width is 12; format bf16 needs a multiple of 8");
  EXPECT_EQ(refusal(TokenFormatKind::kFP8, 192),
            "invalid argument: silu_mul: width is 192; format fp8 needs a multiple of 128");
  EXPECT_EQ(refusal(TokenFormatKind::kMXFP6E3M2, 48),
            "invalid argument: silu_mul: width is 48; format mxfp6-e3m2 needs a multiple of 32");
  EXPECT_EQ(refusal(TokenFormatKind::kMXFP8Tiled, 0),
            "invalid argument: silu_mul: width is 0; format mxfp8-tiled needs a multiple of 32");
  EXPECT_EQ(refusal(TokenFormatKind::kNVFP4, 24),
            "invalid argument: silu_mul: width is 24; format nvfp4 needs a multiple of 16");
  EXPECT_EQ(refusal(static_cast<TokenFormatKind>(99), 32),
            "invalid argument: silu_mul: there is no token format 99");
}

}  // namespace
}  // namespace switchyard
