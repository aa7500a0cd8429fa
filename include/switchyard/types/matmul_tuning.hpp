// How a grouped matmul is cut into tiles: a few numbers, chosen by a pure function, that can be printed.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

// Two neighbouring blocks can load one operand together: each loads half of it into both. On the host every
// block loads for itself.
enum class MatmulSharing { kNone, kWeights, kRows };

// What rows and weights hold. fp8: e4m3 codes, with a scale for each 128 elements of a row and for each
// 128 x 128 of the weights.
enum class MatmulElement { kBF16, kFP8 };

constexpr int bytes_of(MatmulElement element) { return element == MatmulElement::kBF16 ? 2 : 1; }
constexpr const char* to_string(MatmulElement element) {
  return element == MatmulElement::kBF16 ? "bf16" : "fp8";
}
inline constexpr int kMatmulScaleGroup = 128;  // elements that share a scale

// How the scales of rows in fp8 are stored: as floats, as dispatch in fp8 writes them; or as powers of two,
// e8m0 codes, four of a row in a word, as dispatch in fp8-ue8m0 writes them.
enum class MatmulRowScales { kFloat, kPackedE8M0 };

// A block of one warpgroup that loads and plans, and one to three that multiply.
struct MatmulTuning {
  int tile_rows = 64;      // 64, 128 or 192
  int tile_columns = 128;  // 128, 192 or 256
  int stage_inner = 64;  // elements of the inner dimension that are loaded at a time, a multiple of 128 bytes
  int num_stages = 8;
  MatmulSharing sharing = MatmulSharing::kNone;
  MatmulElement element = MatmulElement::kBF16;
  // fp8: how many steps' sums a consumer has registers for. With two of them the products of a step run while
  // those of the last are scaled.
  int num_step_sums = 1;

  // The warpgroups that multiply. They share a tile by rows, 64 each, or, if it has only 64, by columns, 128
  // each.
  constexpr int num_consumers() const { return tile_rows > 64 ? tile_rows / 64 : tile_columns / 128; }
  constexpr int num_threads() const { return (1 + num_consumers()) * 128; }
  // The registers of a thread that loads and plans, and of one that multiplies. Two or more consumers need
  // more than a block of so many threads is launched with; with one they are left as they are.
  constexpr int producer_registers() const { return num_consumers() > 2 ? 32 : 40; }
  constexpr int consumer_registers() const { return num_consumers() > 2 ? 160 : 232; }

  friend constexpr bool operator==(const MatmulTuning&, const MatmulTuning&) = default;
};

// Every tuning there is a kernel for.
inline constexpr MatmulTuning kMatmulTunings[] = {
    {64, 128, 64, 8},
    {64, 128, 128, 4},
    {64, 128, 256, 2},
    {64, 256, 64, 5},
    {128, 128, 64, 6},
    {128, 256, 64, 4},
    {128, 256, 64, 4, MatmulSharing::kWeights},
    {128, 256, 64, 4, MatmulSharing::kRows},
    // A stage of fp8 is one scale group.
    {64, 128, 128, 8, MatmulSharing::kNone, MatmulElement::kFP8},
    {64, 256, 128, 5, MatmulSharing::kNone, MatmulElement::kFP8},
    {128, 128, 128, 6, MatmulSharing::kNone, MatmulElement::kFP8},
    {128, 256, 128, 4, MatmulSharing::kNone, MatmulElement::kFP8},
    {128, 128, 128, 6, MatmulSharing::kNone, MatmulElement::kFP8, 2},
    {128, 192, 128, 5, MatmulSharing::kNone, MatmulElement::kFP8},
    {192, 128, 128, 5, MatmulSharing::kNone, MatmulElement::kFP8},
};
inline constexpr int kNumMatmulTunings = sizeof(kMatmulTunings) / sizeof(kMatmulTunings[0]);

// Returns the tuning for groups of so many rows each, on average, as measured on an H200
// (docs/journal/matmul.md). With few rows weights are all the traffic: narrow tiles give blocks an even share
// of them. With about one tile of rows wide tiles would leave blocks without work at the end; with many rows
// the bandwidth of L2 is the limit, and tiles are wide.
constexpr MatmulTuning choose_matmul_tuning(MatmulElement element, int64_t rows_per_group, int64_t columns,
                                            int64_t /*inner*/) {
  if (element == MatmulElement::kFP8) {
    if (rows_per_group <= 64) return {64, 128, 128, 8, MatmulSharing::kNone, element};
    if (columns <= 128 || rows_per_group <= 128) return {128, 128, 128, 6, MatmulSharing::kNone, element};
    return {128, 256, 128, 4, MatmulSharing::kNone, element};
  }
  if (rows_per_group <= 16) return {64, 128, 64, 8};
  if (rows_per_group <= 64) return {64, 128, 128, 4};
  if (columns <= 128 || rows_per_group <= 128) return {128, 128, 64, 6};
  return {128, 256, 64, 4};
}

// Formats as "128x256x64x4+weights" or "128x128x128x6 fp8 x2": rows, columns, inner elements of a stage,
// stages; after an x, the steps whose sums a consumer has.
inline std::string to_string(const MatmulTuning& tuning) {
  return std::to_string(tuning.tile_rows) + "x" + std::to_string(tuning.tile_columns) + "x" +
         std::to_string(tuning.stage_inner) + "x" + std::to_string(tuning.num_stages) +
         (tuning.sharing == MatmulSharing::kWeights ? "+weights"
          : tuning.sharing == MatmulSharing::kRows  ? "+rows"
                                                    : "") +
         (tuning.element == MatmulElement::kFP8 ? " fp8" : "") +
         (tuning.num_step_sums > 1 ? " x" + std::to_string(tuning.num_step_sums) : "");
}

}  // namespace switchyard
