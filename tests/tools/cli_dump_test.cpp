// What `switchyard run --dump` writes: the tensors of a step as NumPy arrays.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli_fixture.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard {
namespace {

using testing_support::read_file;

class CliDump : public testing_support::CliTest {};

const std::string kSmallRun =
    "run --target host --ranks 2 --experts 4 --top-k 2 --hidden 32 --expert-width 16 --tokens 5 ";
const std::string kQuantisedRun =
    "run --target host --ranks 2 --experts 4 --top-k 2 --hidden 128 --expert-width 16 --tokens 5 --steps 1 ";
TEST_F(CliDump, TheSameSeedGivesTheSameDump) {
  for (const char* name : {"a", "b"})
    ASSERT_EQ(run(kSmallRun + "--seed 9 --dump " + (folder / name).string()).exit_code, 0);
  for (const char* file : {"tokens.npy", "topk_ids.npy", "topk_weights.npy", "gate_up_weights.npy",
                           "down_weights.npy", "row_offsets.npy", "expert_ids.npy", "output.npy"}) {
    const std::string a = read_file(folder / "a" / "rank_1" / file);
    EXPECT_EQ(a.substr(0, 6), "\x93NUMPY") << file;
    EXPECT_EQ(a, read_file(folder / "b" / "rank_1" / file)) << file;
  }
  const std::string src_info = read_file(folder / "a" / "rank_0" / "src_info.npy");
  EXPECT_NE(src_info.find("'descr': '<i4'"), std::string::npos);
  EXPECT_EQ(src_info.find('\n') % 64, 63u) << "the header ends on a multiple of 64 bytes";
}

// The elements of an array that --dump wrote.
template <typename T>
std::vector<T> read_npy(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  const size_t begin = bytes.find('\n') + 1;
  std::vector<T> values((bytes.size() - begin) / sizeof(T));
  std::memcpy(values.data(), bytes.data() + begin, values.size() * sizeof(T));
  return values;
}

// e4m3, by its definition.
float from_e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

TEST_F(CliDump, ADumpHoldsCodesScalesAndSourceRanksAsTheDeviceWroteThem) {
  for (const std::string protocol : {"slotted", "direct"}) {
    const std::filesystem::path dump = folder / protocol;
    // Every token of rank 0 and 2 goes to expert 3 and to one more.
    const std::string routing = folder / "routing.csv";
    std::ofstream(routing) << "0,3,0\n0,3,1\n2,3,3\n2,-1,3\n0,5,3\n";
    ASSERT_EQ(
        run("run --target host --ranks 3 --experts 6 --hidden 64 --expert-width 8 --steps 1 --format mxfp8 "
            "--shared-expert --protocol " +
            protocol + " --routing " + routing + " --dump " + dump.string())
            .exit_code,
        0);
    // Groups of rank 1: its shared expert, which has no tokens, expert 2, which nobody wants, and expert 3.
    EXPECT_EQ(read_npy<int32_t>(dump / "rank_1" / "src_rank.npy"), (std::vector<int32_t>{0, 0, 0, 2, 2, 2}));
    EXPECT_EQ(read_npy<int32_t>(dump / "rank_0" / "src_rank.npy"), (std::vector<int32_t>{0, 0, 0, 0, 0}));
    EXPECT_EQ(read_npy<int32_t>(dump / "rank_2" / "src_rank.npy"), (std::vector<int32_t>{2, 2, 0}));
    const auto codes = read_npy<uint8_t>(dump / "rank_1" / "codes.npy"),
               scales = read_npy<uint8_t>(dump / "rank_1" / "scales.npy");
    const auto rows = read_npy<uint16_t>(dump / "rank_1" / "expert_rows.npy");
    ASSERT_EQ(codes.size(), 6u * 64);
    ASSERT_EQ(rows.size(), codes.size());
    ASSERT_GE(scales.size(), 6u * 2);
    for (size_t i = 0; i < codes.size(); ++i) {
      const float value = std::ldexp(from_e4m3(codes[i]), scales[i / 32] - 127);
      EXPECT_EQ(std::bit_cast<uint32_t>(value), static_cast<uint32_t>(rows[i]) << 16) << i;
    }
  }
  // Where experts hand their rows over encoded, those are dumped too.
  const std::filesystem::path dump = folder / "encoded";
  ASSERT_EQ(run(kQuantisedRun + "--protocol direct --combine-format fp8 --format fp8 --dump " + dump.string())
                .exit_code,
            0);
  EXPECT_NE(read_file(dump / "rank_0" / "scales.npy").find("'descr': '<f4'"), std::string::npos);
  EXPECT_GT(read_npy<uint8_t>(dump / "rank_0" / "encoded_outputs.npy").size(), 0u);
}

// Fast matmuls write them so; what they are in bf16 is dumped beside them.
TEST_F(CliDump, ExpertOutputsThatWereWrittenInFP8) {
  const std::filesystem::path dump = folder / "written";
  const std::string shape =
      "run --target host --ranks 1 --experts 4 --top-k 2 --hidden 256 --expert-width 64 --tokens 5 --steps 1 "
      "--combine-format fp8 --protocol direct --matmul fast --dump ";
  ASSERT_EQ(run(shape + dump.string()).exit_code, 0);
  const auto encoded = read_npy<uint8_t>(dump / "rank_0" / "encoded_outputs.npy");
  const auto values = read_npy<uint16_t>(dump / "rank_0" / "expert_outputs.npy");
  ASSERT_EQ(values.size(), 10u * 256);
  ASSERT_EQ(encoded.size(), 10u * 384);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t row = i / 256, column = i % 256;
    float scale = 0;
    std::memcpy(&scale, &encoded[row * 384 + 256 + column / 128 * sizeof(float)], sizeof(scale));
    const float value = from_e4m3(encoded[row * 384 + column]) * scale;
    ASSERT_EQ(to_bf16(value).bits, values[i]) << i;
  }
}

// Four scales of one byte in a word, and the words of a column side by side.
class CliDumpOfPackedScales : public CliDump, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Matmuls, CliDumpOfPackedScales, ::testing::Values("reference", "fast"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CliDumpOfPackedScales, HasWordsAndColumns) {
  ASSERT_EQ(
      run("run --target host --ranks 2 --experts 4 --top-k 2 --hidden 1024 --expert-width 64 --tokens 4 "
          "--steps 1 --format fp8-ue8m0 --matmul " +
          std::string(GetParam()) + " --dump " + folder.string())
          .exit_code,
      0);
  const std::filesystem::path rank = folder / "rank_0";
  const auto codes = read_npy<uint8_t>(rank / "codes.npy");
  const auto scales = read_npy<uint32_t>(rank / "scales.npy");
  const auto rows = read_npy<uint16_t>(rank / "expert_rows.npy");
  const size_t stride = scales.size() / 2;
  const std::string header = read_file(rank / "scales.npy").substr(0, 128);
  EXPECT_NE(header.find("'descr': '<u4'"), std::string::npos) << header;
  EXPECT_NE(header.find("'shape': (2, " + std::to_string(stride) + ", )"), std::string::npos) << header;
  ASSERT_GT(codes.size(), 0u);
  ASSERT_EQ(rows.size(), codes.size());
  const auto src_rank = read_npy<int32_t>(rank / "src_rank.npy");
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t row = i / 1024, group = i % 1024 / 128;
    if (src_rank[row] < 0) continue;  // only aligns its expert
    const uint32_t scale = scales[group / 4 * stride + row] >> (8 * (group % 4)) & 0xff;
    const float value = std::ldexp(from_e4m3(codes[i]), static_cast<int>(scale) - 127);
    ASSERT_EQ(std::bit_cast<uint32_t>(value), static_cast<uint32_t>(rows[i]) << 16) << i;
  }
}

}  // namespace
}  // namespace switchyard
