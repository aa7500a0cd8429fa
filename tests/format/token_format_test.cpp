// Quantised token formats: tokens are encoded into messages and decoded into rows by kernels, and codes and
// scales compared bit for bit with the reference. Compiled for the host and, through cuda_tests.cu,
// for CUDA.
#include "reference/token_format.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "sweep.hpp"
#include "switchyard/detail/format/all_formats.hpp"
#include "switchyard/detail/format/visit_kind.hpp"
#include "target/target_fixture.hpp"

#define QuantizedTokens SWITCHYARD_SUITE(QuantizedTokens)
#define RegisteredFormats SWITCHYARD_SUITE(RegisteredFormats)

namespace switchyard::inline SWITCHYARD_TARGET {

constexpr float kTensorScale = 0.0625f * 1.1f;  // no power of two
constexpr int kUnwritten = 0xee;

// Kernels: a block per token, as dispatch does it.

template <typename Format>
struct EncodeParams {
  Format format;
  int num_tokens;
  const bf16* tokens;   // [num_tokens][hidden]
  std::byte* messages;  // [num_tokens][encoded_bytes]
};

template <typename Format>
SWITCHYARD_KERNEL void encode_tokens(EncodeParams<Format> params) {
  std::byte* message = &target::shared_storage<std::byte>();
  const uint32_t num_bytes = params.format.encoded_bytes();
  for (int token_idx = target::block_idx(); token_idx < params.num_tokens;
       token_idx += target::num_blocks()) {
    params.format.encode(params.tokens + static_cast<int64_t>(token_idx) * params.format.hidden, message,
                         target::thread_idx(), target::num_threads());
    target::sync_block();
    target::copy_row(params.messages + static_cast<int64_t>(token_idx) * num_bytes, message, num_bytes,
                     target::thread_idx(), target::num_threads());
    target::sync_block();
  }
}

template <typename Format>
struct DecodeParams {
  Format format;
  int num_tokens;
  const std::byte* messages;
  const int64_t* rows;  // [num_tokens]
};

template <typename Format>
SWITCHYARD_KERNEL void decode_messages(DecodeParams<Format> params) {
  for (int token_idx = target::block_idx(); token_idx < params.num_tokens; token_idx += target::num_blocks())
    params.format.decode(params.messages + static_cast<int64_t>(token_idx) * params.format.encoded_bytes(),
                         params.rows[token_idx], target::thread_idx(), target::num_threads());
}

// The same for a format that wants to know the expert: message i is for expert experts[i].
template <typename Format>
struct ExpertParams {
  Format format;
  int num_tokens;
  const bf16* tokens;
  std::byte* messages;
  const int32_t* experts;   // [num_tokens]
  const ExpertRow* places;  // [num_tokens]
  int num_local_experts;
  const int64_t* expert_begin;  // [num_local_experts]
};

template <typename Format>
SWITCHYARD_KERNEL void encode_and_decode_for_experts(ExpertParams<Format> params) {
  const int thread_idx = target::thread_idx(), num_threads = target::num_threads();
  for (int token_idx = target::block_idx(); token_idx < params.num_tokens;
       token_idx += target::num_blocks()) {
    std::byte* message = params.messages + static_cast<int64_t>(token_idx) * params.format.encoded_bytes();
    params.format.encode(params.tokens + static_cast<int64_t>(token_idx) * params.format.hidden, message,
                         params.experts[token_idx], thread_idx, num_threads);
    target::sync_block();
    params.format.decode(message, params.places[token_idx], thread_idx, num_threads);
  }
  if (target::block_idx() == 0 && thread_idx < params.num_local_experts)
    params.format.publish_expert(thread_idx, params.expert_begin[thread_idx]);
}

// Every bf16 times a factor, to e2m1 by quantize_e2m1().
struct E2M1Params {
  float factor;
  uint32_t* words;  // [65536 / 8]
};

SWITCHYARD_KERNEL void quantize_every_bf16(E2M1Params params) {
  for (int chunk = target::thread_idx(); chunk < 65536 / kElementsPerLane; chunk += target::num_threads()) {
    LaneElements elements;
    for (int i = 0; i < kElementsPerLane / 2; ++i) {
      const uint32_t first = static_cast<uint32_t>(chunk * kElementsPerLane + 2 * i);
      elements.halves[i / 4].words[i % 4] = first | (first + 1) << 16;
    }
    uint32_t words[2];
    quantize_e2m1(elements, params.factor, words);
    for (int i = 0; i < 2; ++i) params.words[2 * chunk + i] = words[i];
  }
}

// Inputs: one token of each kind.

float plain_value(std::mt19937& random) { return std::normal_distribution<float>(0, 2)(random); }

std::vector<std::vector<bf16>> tokens_of_all_kinds(int hidden) {
  std::mt19937 random(static_cast<uint32_t>(hidden));
  const auto make = [&](auto&& value_at) {
    std::vector<bf16> token;
    for (int i = 0; i < hidden; ++i) token.push_back(value_at(i));
    return token;
  };
  const auto any_bits = [&] { return static_cast<uint16_t>(random()); };
  const auto plain = [&](int) { return to_bf16(plain_value(random)); };
  std::vector<std::vector<bf16>> tokens{
      make(plain),
      make([&](int i) { return bf16{static_cast<uint16_t>(i % 3 == 0 ? 0x8000 : 0)}; }),       // zeros
      make([&](int) { return bf16{static_cast<uint16_t>((any_bits() & 0x807f) | 0x7f00)}; }),  // huge
      make([&](int) { return bf16{static_cast<uint16_t>(any_bits() & 0x80ff)}; }),             // tiny
      make([&](int i) { return i % 57 == 5 ? to_bf16(-30000.0f) : plain(i); }),                // outliers
      make([&](int) {  // all finite bits
        const uint16_t bits = any_bits();
        return bf16{(bits & 0x7f80) == 0x7f80 ? uint16_t{0x4049} : bits};
      }),
      // Values on the numbers of the formats and in the middle of two: few mantissa bits.
      make([&](int) {
        return bf16{static_cast<uint16_t>((any_bits() & 0x8070) + 0x3f80 + random() % 4 * 0x80)};
      }),
  };
  // A NaN or an infinity makes its own group NaN and no other.
  for (const uint16_t special : {0x7fc0, 0xff81, 0x7f80, 0xff80}) {
    tokens.push_back(make(plain));
    tokens.back()[random() % tokens.back().size()].bits = special;
  }
  return tokens;
}

template <typename T>
std::vector<T> flat(const std::vector<std::vector<T>>& parts) {
  std::vector<T> all;
  for (const std::vector<T>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

const reference::NumberFormat& definition_of(e4m3) { return reference::kE4M3; }
const reference::NumberFormat& definition_of(e5m2) { return reference::kE5M2; }
const reference::NumberFormat& definition_of(e2m3) { return reference::kE2M3; }
const reference::NumberFormat& definition_of(e3m2) { return reference::kE3M2; }
const reference::NumberFormat& definition_of(e2m1) { return reference::kE2M1; }

template <typename Element>
reference::QuantizedToken quantized(BlockwiseFP8Quantizer<Element>*, const std::vector<bf16>& token) {
  return reference::blockwise_fp8(definition_of(Element{}), reference::to_floats(token));
}
template <typename Element>
reference::QuantizedToken quantized(MXQuantizer<Element>*, const std::vector<bf16>& token) {
  return reference::mx(definition_of(Element{}), reference::to_floats(token));
}
reference::QuantizedToken quantized(NVFP4Quantizer*, const std::vector<bf16>& token) {
  return reference::nvfp4(reference::to_floats(token), kTensorScale);
}

class QuantizedTokens : public testing_support::OneRankTest {
 protected:
  static constexpr int64_t kRowStep =
      3;  // message i goes to row 1 + 3 * i; the rows between stay as they are

  struct Shape {
    int hidden;
    uint32_t num_threads;
  };

  template <typename Format>
  static std::vector<Shape> shapes() {
    const int group = Format::Quantizer::kGroupSize;
    std::vector<Shape> shapes{{group, 32}, {3 * group, 32}, {9 * group, 96},
                              {2048, 64},  {7168, 256},     {16384, 1024}};
    if (2880 % group == 0) shapes.push_back({2880, 128});
    if (testing_support::kFewCases) shapes = {{3 * group, 32}, {9 * group, 96}};
    return shapes;
  }

  // Encodes all kinds of tokens; the messages, each checked: codes, then scales.
  template <typename Format>
  Buffer<std::byte> encode_checked(const Format& format, const std::vector<std::vector<bf16>>& tokens,
                                   uint32_t num_threads) {
    using Quantizer = typename Format::Quantizer;
    const auto input = upload(flat(tokens));
    auto messages = zeros<std::byte>(tokens.size() * format.encoded_bytes());
    EXPECT_TRUE(messages.fill_bytes(kUnwritten).ok());
    run(encode_tokens<Format>,
        {.num_blocks = 3, .num_threads = num_threads, .shared_bytes = format.encoded_bytes()},
        EncodeParams<Format>{format, static_cast<int>(tokens.size()), input.data(), messages.data()});
    const std::vector<std::byte> bytes = download(messages);
    const auto layout = format.message_layout();
    EXPECT_EQ(format.encoded_bytes() % 16, 0u);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const reference::QuantizedToken expected = quantized(static_cast<Quantizer*>(nullptr), tokens[i]);
      const std::byte* message = bytes.data() + i * format.encoded_bytes();
      expect_bytes(message, reference::packed(expected.codes, Quantizer::Element::kNumBits), i, "codes");
      if (expected.float_scales.empty())
        expect_bytes(message + layout.scales_offset(), expected.scale_codes, i, "scales");
      else
        expect_bytes(message + layout.scales_offset(), expected.float_scales, i, "scales");
    }
    return messages;
  }

  template <typename T>
  static void expect_bytes(const std::byte* seen, const std::vector<T>& expected, size_t token_idx,
                           const char* what) {
    const auto* wanted = reinterpret_cast<const std::byte*>(expected.data());
    for (size_t i = 0; i < expected.size() * sizeof(T); ++i)
      ASSERT_EQ(static_cast<int>(seen[i]), static_cast<int>(wanted[i]))
          << what << " of token " << token_idx << ", byte " << i;
  }

  static std::vector<int64_t> rows_of(size_t num_tokens) {
    std::vector<int64_t> rows;
    for (size_t i = 0; i < num_tokens; ++i) rows.push_back(1 + kRowStep * static_cast<int64_t>(i));
    return rows;
  }
  static size_t num_rows_of(size_t num_tokens) { return rows_of(num_tokens).back() + 2; }

  template <typename Format>
  void decode(const Format& format, const Buffer<std::byte>& messages, size_t num_tokens,
              uint32_t num_threads) {
    const auto rows = upload(rows_of(num_tokens));
    run(decode_messages<Format>, {.num_blocks = 2, .num_threads = num_threads},
        DecodeParams<Format>{format, static_cast<int>(num_tokens), messages.data(), rows.data()});
  }

  // Rows that were decoded hold the codes; the others are as they were.
  template <typename Format>
  void check_rows(const Format& format, const Buffer<uint8_t>& output_rows,
                  const std::vector<std::vector<bf16>>& tokens) {
    using Quantizer = typename Format::Quantizer;
    const size_t row_bytes = format.message_layout().codes_bytes();
    std::vector<uint8_t> expected(num_rows_of(tokens.size()) * row_bytes, kUnwritten);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<uint8_t> codes = reference::packed(
          quantized(static_cast<Quantizer*>(nullptr), tokens[i]).codes, Quantizer::Element::kNumBits);
      std::copy(codes.begin(), codes.end(), expected.begin() + rows_of(tokens.size())[i] * row_bytes);
    }
    EXPECT_TRUE(download(output_rows) == expected);
  }

  template <typename T>
  Buffer<T> unwritten(size_t size) {
    auto buffer = zeros<T>(size);
    EXPECT_TRUE(buffer.fill_bytes(kUnwritten).ok());
    return buffer;
  }

  template <typename Element>
  void check_blockwise() {
    using Format = BlockwiseFP8TokenFormat<Element>;
    for (const Shape& shape : shapes<Format>()) {
      SCOPED_TRACE("hidden " + std::to_string(shape.hidden));
      const auto tokens = tokens_of_all_kinds(shape.hidden);
      const auto max_rows = static_cast<uint32_t>(num_rows_of(tokens.size()));
      const TransposedScaleLayout layout{shape.hidden / 128, max_rows};
      const auto rows = unwritten<uint8_t>(static_cast<size_t>(max_rows) * shape.hidden);
      const auto scales = unwritten<float>(layout.bytes().value() / sizeof(float));
      const Format format{shape.hidden, max_rows, rows.data(), scales.data()};
      const auto messages = encode_checked(format, tokens, shape.num_threads);
      decode(format, messages, tokens.size(), shape.num_threads);
      check_rows(format, rows, tokens);
      std::vector<uint32_t> expected(layout.bytes().value() / sizeof(float), 0x01010101u * kUnwritten);
      for (size_t i = 0; i < tokens.size(); ++i) {
        const auto token_scales =
            quantized(static_cast<BlockwiseFP8Quantizer<Element>*>(nullptr), tokens[i]).float_scales;
        for (size_t group = 0; group < token_scales.size(); ++group)
          expected[group * ((max_rows + 3) / 4 * 4) + rows_of(tokens.size())[i]] =
              std::bit_cast<uint32_t>(token_scales[group]);
      }
      std::vector<uint32_t> seen;
      for (const float scale : download(scales)) seen.push_back(std::bit_cast<uint32_t>(scale));
      EXPECT_TRUE(seen == expected);
    }
  }

  template <typename Quantizer>
  void check_by_row() {
    using Format = RowScaledTokenFormat<Quantizer>;
    using Scale = typename Quantizer::Scale;
    for (const Shape& shape : shapes<Format>()) {
      SCOPED_TRACE("hidden " + std::to_string(shape.hidden));
      const auto tokens = tokens_of_all_kinds(shape.hidden);
      const size_t num_rows = num_rows_of(tokens.size());
      const size_t scale_bytes = static_cast<size_t>(shape.hidden / Quantizer::kGroupSize) * sizeof(Scale);
      const auto rows = unwritten<uint8_t>(num_rows * shape.hidden * Quantizer::Element::kNumBits / 8);
      const auto scales = unwritten<uint8_t>(num_rows * scale_bytes);
      const Format format{shape.hidden, rows.data(), reinterpret_cast<Scale*>(scales.data())};
      const auto messages = encode_checked(format, tokens, shape.num_threads);
      decode(format, messages, tokens.size(), shape.num_threads);
      check_rows(format, rows, tokens);
      std::vector<uint8_t> expected(num_rows * scale_bytes, kUnwritten);
      for (size_t i = 0; i < tokens.size(); ++i) {
        const std::vector<uint8_t> of_token =
            quantized(static_cast<Quantizer*>(nullptr), tokens[i]).scale_bytes();
        std::copy(of_token.begin(), of_token.end(),
                  expected.begin() + rows_of(tokens.size())[i] * static_cast<int64_t>(scale_bytes));
      }
      EXPECT_TRUE(download(scales) == expected);
    }
  }

  // With padded rows: row r has scale row r.
  template <typename Scheme>
  void check_tiled(const Scheme& scheme) {
    using Format = NVBlockScaledTokenFormat<Scheme>;
    using Quantizer = typename Format::Quantizer;
    for (const Shape& shape : shapes<Format>()) {
      SCOPED_TRACE("hidden " + std::to_string(shape.hidden));
      const auto tokens = tokens_of_all_kinds(shape.hidden);
      const size_t num_rows = num_rows_of(tokens.size());
      const TiledScaleLayout layout{shape.hidden / Quantizer::kGroupSize};
      const size_t scale_bytes = layout.bytes(Format::num_scale_rows(num_rows, 4)).value();
      const auto rows = unwritten<uint8_t>(num_rows * shape.hidden * Quantizer::Element::kNumBits / 8);
      const auto scales = unwritten<uint8_t>(scale_bytes);
      const Format format{shape.hidden, scheme, rows.data(), scales.data(), nullptr};
      const auto messages = encode_checked(format, tokens, shape.num_threads);
      decode(format, messages, tokens.size(), shape.num_threads);
      check_rows(format, rows, tokens);
      std::vector<uint8_t> expected(scale_bytes, kUnwritten);
      for (size_t i = 0; i < tokens.size(); ++i)
        put_tiled_scales(expected, rows_of(tokens.size())[i],
                         quantized(static_cast<Quantizer*>(nullptr), tokens[i]).scale_codes);
      EXPECT_TRUE(download(scales) == expected);
    }
  }

  static void put_tiled_scales(std::vector<uint8_t>& tiles, uint64_t scale_row,
                               const std::vector<uint8_t>& scales) {
    const size_t num_columns = scales.size();
    for (size_t column = 0; column < (num_columns + 3) / 4 * 4; ++column)
      tiles.at(reference::tiled_scale_offset(scale_row, column, num_columns)) =
          column < num_columns ? scales[column] : 0;
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, QuantizedTokens, testing_support::modes_of_target(),
                         testing_support::mode_name);

TEST(RegisteredFormats, HaveTheSizesOfTheirTypes) {
  for (const TokenFormatKind kind : kTokenFormatKinds) {
    const TokenFormatInfo info = info_of(kind);
    const auto compare = [&]<TokenFormatKind kKind>() {
      for (const int num_multiples : {1, 3, 16}) {
        const int hidden = num_multiples * info.hidden_multiple();
        const auto format = FormatOf<kKind>::make(hidden, {});
        EXPECT_EQ(format.encoded_bytes(), info.encoded_bytes(hidden)) << info.name;
        EXPECT_EQ(format.row_alignment(), info.row_alignment) << info.name;
      }
      return true;
    };
    EXPECT_TRUE(visit_kind(kind, compare, [] { return false; }));
  }
}

TEST_P(QuantizedTokens, BlockwiseFP8IsTheReferenceBitForBit) {
  check_blockwise<e4m3>();
  check_blockwise<e5m2>();
}

TEST_P(QuantizedTokens, BlockwiseFP8ByRowIsTheReferenceBitForBit) {
  check_by_row<BlockwiseFP8Quantizer<e4m3>>();
  check_by_row<BlockwiseFP8Quantizer<e5m2>>();
}

TEST_P(QuantizedTokens, MXFP8IsTheReferenceBitForBit) {
  check_by_row<MXQuantizer<e4m3>>();
  check_by_row<MXQuantizer<e5m2>>();
}

TEST_P(QuantizedTokens, MXFP6IsTheReferenceBitForBit) {
  check_by_row<MXQuantizer<e2m3>>();
  check_by_row<MXQuantizer<e3m2>>();
}

TEST_P(QuantizedTokens, MXFP4IsTheReferenceBitForBit) { check_by_row<MXQuantizer<e2m1>>(); }

TEST_P(QuantizedTokens, NVFP4IsTheReferenceBitForBit) { check_tiled(NVFP4<OneInputScale>{{kTensorScale}}); }

TEST_P(QuantizedTokens, TiledMXIsTheReferenceBitForBit) {
  check_tiled(TiledMX<e4m3>{});
  check_tiled(TiledMX<e5m2>{});
  check_tiled(TiledMX<e2m1>{});
}

// Rows end to end, experts of 0, 1, 128, 129 and 200 rows; each expert has a tensor scale of its own.
TEST_P(QuantizedTokens, TightRowsOfExpertsHaveTheirScalesInTilesOfTheirOwn) {
  using Format = NVBlockScaledTokenFormat<NVFP4<ExpertInputScales>, RowPacking::kTight>;
  constexpr int kHidden = 16 * 5, kFirstExpert = 10;
  const std::vector<int> rows_of_expert{0, 1, 128, 129, 0, 200, 3};
  const int n_local_experts = static_cast<int>(rows_of_expert.size());
  std::vector<float> scale_values(kFirstExpert, -1.0f);
  std::vector<int64_t> expert_begins;
  std::vector<int32_t> experts;
  std::vector<ExpertRow> places;
  std::vector<std::vector<bf16>> tokens;
  std::mt19937 random(5);
  for (int expert = 0; expert < n_local_experts; ++expert) {
    scale_values.push_back(0.01f * static_cast<float>(expert + 1));
    expert_begins.push_back(static_cast<int64_t>(places.size()));
    for (int i = 0; i < rows_of_expert[expert]; ++i) {
      experts.push_back(kFirstExpert + expert);
      places.push_back({static_cast<int64_t>(places.size()), expert_begins.back(), expert});
      tokens.emplace_back();
      for (int j = 0; j < kHidden; ++j) tokens.back().push_back(to_bf16(plain_value(random)));
    }
  }
  const TiledScaleLayout layout{kHidden / 16};
  const size_t scale_bytes = layout.bytes(Format::num_scale_rows(places.size(), n_local_experts)).value();
  const auto rows = unwritten<uint8_t>(places.size() * kHidden / 2);
  const auto scales = unwritten<uint8_t>(scale_bytes);
  const auto offsets = unwritten<uint32_t>(n_local_experts);
  const auto input_scales = upload(scale_values);
  const Format format{kHidden, {{input_scales.data(), 1.0f}}, rows.data(), scales.data(), offsets.data()};
  const auto input = upload(flat(tokens));
  const auto experts_in = upload(experts);
  const auto places_in = upload(places);
  const auto begins_in = upload(expert_begins);
  const auto messages = zeros<std::byte>(places.size() * format.encoded_bytes());
  run(encode_and_decode_for_experts<Format>, {.num_blocks = 4, .num_threads = 32},
      ExpertParams<Format>{format, static_cast<int>(places.size()), input.data(), messages.data(),
                           experts_in.data(), places_in.data(), n_local_experts, begins_in.data()});

  const std::vector<uint32_t> seen_offsets = download(offsets);
  std::vector<uint8_t> expected_rows, expected_scales(scale_bytes, kUnwritten);
  for (size_t i = 0; i < places.size(); ++i) {
    const auto token = reference::nvfp4(reference::to_floats(tokens[i]), scale_values[experts[i]]);
    const auto codes = reference::packed(token.codes, 4);
    expected_rows.insert(expected_rows.end(), codes.begin(), codes.end());
    put_tiled_scales(expected_scales,
                     seen_offsets[places[i].group_idx] + (places[i].row - places[i].expert_begin),
                     token.scale_codes);
  }
  EXPECT_TRUE(download(rows) == expected_rows);
  EXPECT_TRUE(download(scales) == expected_scales);
  for (int expert = 0; expert < n_local_experts; ++expert) {
    EXPECT_EQ(seen_offsets[expert] % 128, 0u);
    if (expert == 0) continue;
    EXPECT_GE(seen_offsets[expert],
              seen_offsets[expert - 1] + (rows_of_expert[expert - 1] + 127) / 128 * 128);
  }
}

// Among the products are all ties, and what lies just beside them.
TEST_P(QuantizedTokens, E2M1OfEveryBF16IsTheNearestNumber) {
  for (const float factor : {1.0f, 0.5f, 0x1p-120f, 0x1p100f, 0.0f, 1.0f / 3, 0.99999994f, 1.0000001f}) {
    const auto words = zeros<uint32_t>(65536 / 8);
    run(quantize_every_bf16, {.num_threads = 256}, E2M1Params{factor, words.data()});
    const std::vector<uint32_t> seen = download(words);
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const float value = to_float(bf16{static_cast<uint16_t>(bits)});
      if (!std::isfinite(value)) continue;  // then the factor is NaN
      ASSERT_EQ(seen[bits / 8] >> (bits % 8 * 4) & 15, to_minifloat<e2m1>(value * factor).bits)
          << value << " * " << factor;
    }
  }
}

TEST_P(QuantizedTokens, OneTileHoldsTheScalesOf128RowsInTheOrderOfTheMatrixUnits) {
  const TiledScaleLayout layout{8};
  EXPECT_EQ(layout.offset(0, 0), 0u);
  EXPECT_EQ(layout.offset(1, 0), 16u);
  EXPECT_EQ(layout.offset(32, 0), 4u);
  EXPECT_EQ(layout.offset(127, 3), 31u * 16 + 3 * 4 + 3);
  EXPECT_EQ(layout.offset(0, 4), 512u);
  EXPECT_EQ(layout.offset(128, 0), 1024u);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET

#undef QuantizedTokens
