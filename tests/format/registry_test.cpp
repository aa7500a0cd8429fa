// The registry of token formats and the types that its lines name: what agrees() compares, so that a line
// that disagrees with its type does not compile (src/launch/make_format_kernels.hpp asserts it).
#include <gtest/gtest.h>

#include "switchyard/detail/format/all_formats.hpp"

namespace switchyard {
namespace {

using MXFP8 = MXTokenFormat<e4m3>;
using NVFP4Format = NVBlockScaledTokenFormat<NVFP4<OneInputScale>>;
constexpr TokenFormatInfo kMXFP8Info = info_of(TokenFormatKind::kMXFP8);
constexpr TokenFormatInfo kNVFP4Info = info_of(TokenFormatKind::kNVFP4);

template <typename Change>
constexpr TokenFormatInfo changed(TokenFormatInfo info, const Change& change) {
  change(info);
  return info;
}

TEST(Registry, ALineThatDisagreesWithItsTypeIsRefused) {
  static_assert(agrees<MXFP8>(kMXFP8Info) && agrees<NVFP4Format>(kNVFP4Info));
  using Info = TokenFormatInfo;
  // Another element or scale of the same size.
  static_assert(!agrees<MXFP8>(changed(kMXFP8Info, [](Info& info) { info.element = ElementType::kE5M2; })));
  static_assert(!agrees<MXFP8>(changed(kMXFP8Info, [](Info& info) { info.scale = ScaleType::kE4M3; })));
  static_assert(!agrees<NVFP4Format>(changed(kNVFP4Info, [](Info& info) { info.scale = ScaleType::kE8M0; })));
  static_assert(!agrees<MXFP8>(changed(kMXFP8Info, [](Info& info) { info.group_size = 64; })));
  static_assert(!agrees<NVFP4Format>(changed(kNVFP4Info, [](Info& info) { info.row_alignment = 4; })));
  static_assert(!agrees<NVFP4Format>(changed(kNVFP4Info, [](Info& info) { info.encodes_by_expert = true; })));
  static_assert(
      !agrees<MXFP8>(changed(kMXFP8Info, [](Info& info) { info.placement = ScalePlacement::kTiled; })));
  static_assert(!agrees<BF16TokenFormat>(kMXFP8Info));
}

// As docs/formats.md says them, for ten rows of 1152 elements.
TEST(Registry, TheTensorOfScalesHasTheShapeAndTheElementOfItsPlacement) {
  const auto tensor_of = [](TokenFormatKind kind) { return info_of(kind).scale_tensor(10, 1152); };
  const auto expect_tensor = [&](TokenFormatKind kind, ScaleTensorElement element, uint64_t rows,
                                 uint64_t columns) {
    const ScaleTensor tensor = tensor_of(kind);
    EXPECT_EQ(tensor.num_dimensions, 2) << to_string(kind);
    EXPECT_EQ(tensor.element, element) << to_string(kind);
    EXPECT_EQ(tensor.shape[0], rows) << to_string(kind);
    EXPECT_EQ(tensor.shape[1], columns) << to_string(kind);
  };
  expect_tensor(TokenFormatKind::kFP8, ScaleTensorElement::kFloat, 9, 12);
  expect_tensor(TokenFormatKind::kFP8UE8M0, ScaleTensorElement::kWord, 3, 12);
  expect_tensor(TokenFormatKind::kMXFP8, ScaleTensorElement::kE8M0, 10, 36);
  expect_tensor(TokenFormatKind::kFP8ByRow, ScaleTensorElement::kFloat, 10, 9);
  const ScaleTensor tiles = tensor_of(TokenFormatKind::kNVFP4);
  EXPECT_EQ(tiles.num_dimensions, 1);
  EXPECT_EQ(tiles.element, ScaleTensorElement::kTileByte);
  EXPECT_EQ(tiles.shape[0], 18u * 512);
  EXPECT_EQ(tensor_of(TokenFormatKind::kBF16).num_dimensions, 0);
  EXPECT_EQ(tensor_of(TokenFormatKind::kBF16).bytes().value(), 0u);

  EXPECT_EQ(info_of(TokenFormatKind::kFP8).scale_tensor_bytes(10, 1152).value(), 9u * 12 * 4);
  EXPECT_EQ(info_of(TokenFormatKind::kFP8UE8M0).scale_tensor_bytes(10, 1152).value(), 3u * 12 * 4);
  EXPECT_EQ(info_of(TokenFormatKind::kMXFP8).scale_tensor_bytes(10, 1152).value(), 10u * 36);
  EXPECT_EQ(info_of(TokenFormatKind::kFP8ByRow).scale_tensor_bytes(10, 1152).value(), 10u * 9 * 4);
  EXPECT_EQ(info_of(TokenFormatKind::kNVFP4).scale_tensor_bytes(10, 1152).value(), 18u * 512);
}

TEST(Registry, AHiddenSizeThatAFormatCannotCutIsRefusedAndTheMultipleNamed) {
  EXPECT_TRUE(check_hidden(TokenFormatKind::kFP8, 7168).ok());
  EXPECT_TRUE(check_hidden(TokenFormatKind::kMXFP6, 2880).ok());
  EXPECT_TRUE(check_hidden(TokenFormatKind::kNVFP4, 32).ok());
  EXPECT_EQ(check_hidden(TokenFormatKind::kFP8E5M2, 2880).to_string(),
            "invalid argument: hidden is 2880; format fp8-e5m2 needs a multiple of 128");
  EXPECT_EQ(check_hidden(TokenFormatKind::kMXFP4, 40).to_string(),
            "invalid argument: hidden is 40; format mxfp4 needs a multiple of 32");
  EXPECT_EQ(check_hidden(TokenFormatKind::kNVFP4, 24).to_string(),
            "invalid argument: hidden is 24; format nvfp4 needs a multiple of 32");
}

}  // namespace
}  // namespace switchyard
