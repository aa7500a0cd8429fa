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

// How weights are stored: in the element of the rows; or, with rows in bf16, as codes with a scale for each
// scale group along K, which the kernel decodes to bf16 on the way to the matrix unit.
//   kMXFP4: e2m1 codes, two in a byte, the first in its lower half, with an e8m0 scale for each 32 of them.
//   kNVFP4: the same codes, with an e4m3 scale for each 16, and a float for each expert, its tensor scale.
//   kMXFP8: e4m3 codes, with an e8m0 scale for each 32.
enum class WeightFormat { kAsRows, kMXFP4, kNVFP4, kMXFP8 };

constexpr bool is_coded(WeightFormat weights) { return weights != WeightFormat::kAsRows; }
constexpr const char* to_string(WeightFormat weights) {
  switch (weights) {
    case WeightFormat::kAsRows:
      return "as-rows";
    case WeightFormat::kMXFP4:
      return "mxfp4";
    case WeightFormat::kNVFP4:
      return "nvfp4";
    case WeightFormat::kMXFP8:
      return "mxfp8";
  }
  return "(no weight format)";
}
// Of codes: their bits, how many of them share a scale, and what K must be a multiple of.
constexpr int code_bits_of(WeightFormat weights) { return weights == WeightFormat::kMXFP8 ? 8 : 4; }
constexpr int scale_group_size(WeightFormat weights) { return weights == WeightFormat::kNVFP4 ? 16 : 32; }
constexpr int inner_multiple_of(WeightFormat weights) { return weights == WeightFormat::kMXFP8 ? 32 : 64; }

// How the scales of rows in fp8 are stored: as floats, those of all rows for one scale group side by side, as
// dispatch in fp8 writes them; as powers of two, e8m0 codes, four of a row in a word, as dispatch in
// fp8-ue8m0 writes them; or as floats, those of a row side by side, as dispatch in fp8-by-row writes them.
enum class MatmulRowScales { kFloat, kPackedE8M0, kFloatByRow };

// A block of one warpgroup that loads and plans, and one or two that multiply.
struct MatmulTuning {
  int tile_rows = 64;      // 64 or 128; of coded weights 16, 64 or 128
  int tile_columns = 128;  // 128 or 256
  // Elements of the inner dimension that are loaded at a time: a multiple of 128 bytes; of coded weights 128
  // bytes of codes.
  int stage_inner = 64;
  int num_stages = 8;
  MatmulSharing sharing = MatmulSharing::kNone;
  MatmulElement element = MatmulElement::kBF16;
  WeightFormat weights = WeightFormat::kAsRows;

  // The warpgroups that multiply. They share a tile by rows, 64 each, or, if it has only 64 or the weights
  // are coded, by columns, 128 each.
  constexpr int num_consumers() const {
    return tile_rows > 64 && !is_coded(weights) ? tile_rows / 64 : tile_columns / 128;
  }
  constexpr int num_threads() const { return (1 + num_consumers()) * 128; }
  // The registers of a thread that loads and plans, and of one that multiplies. Two consumers need more than
  // a block of so many threads is launched with; with one they are left as they are.
  static constexpr int producer_registers() { return 40; }
  static constexpr int consumer_registers() { return 232; }

  friend constexpr bool operator==(const MatmulTuning&, const MatmulTuning&) = default;
};

// The tuning of a kernel of coded weights, by the rows of its tiles. It has as many stages as fit.
constexpr MatmulTuning coded_tuning(WeightFormat weights, int tile_rows) {
  const bool is_half_byte = code_bits_of(weights) == 4;
  const int num_stages = (tile_rows == 16 ? 6 : tile_rows == 64 ? 4 : 3) - (is_half_byte ? 1 : 0);
  return {.tile_rows = tile_rows,
          .tile_columns = 256,
          .stage_inner = is_half_byte ? 256 : 128,
          .num_stages = num_stages,
          .weights = weights};
}

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
    coded_tuning(WeightFormat::kMXFP4, 16),
    coded_tuning(WeightFormat::kMXFP4, 64),
    coded_tuning(WeightFormat::kMXFP4, 128),
    coded_tuning(WeightFormat::kNVFP4, 16),
    coded_tuning(WeightFormat::kNVFP4, 64),
    coded_tuning(WeightFormat::kNVFP4, 128),
    coded_tuning(WeightFormat::kMXFP8, 16),
    coded_tuning(WeightFormat::kMXFP8, 64),
    coded_tuning(WeightFormat::kMXFP8, 128),
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

// The same for coded weights: the fewer rows a tile has, the fewer products the matrix unit wastes.
constexpr MatmulTuning choose_matmul_tuning(WeightFormat weights, int64_t rows_per_group) {
  return coded_tuning(weights, rows_per_group <= 16 ? 16 : rows_per_group <= 64 ? 64 : 128);
}

// The same for rows that the kernel decodes to bf16. (With bf16 rows there are more tunings to choose from;
// these have not been measured against each other.)
inline constexpr MatmulTuning kDecodingTunings[] = {{64, 128, 128, 4}, {128, 128, 64, 6}, {128, 256, 64, 4}};
constexpr MatmulTuning choose_decoding_tuning(WeightFormat weights, int64_t rows_per_group, int64_t columns) {
  if (is_coded(weights)) return choose_matmul_tuning(weights, rows_per_group);
  if (rows_per_group <= 64) return kDecodingTunings[0];
  return columns <= 128 || rows_per_group <= 128 ? kDecodingTunings[1] : kDecodingTunings[2];
}

// Formats as "128x256x64x4+weights", "128x128x128x6 fp8" or "16x256x256x5 mxfp4": rows, columns, inner
// elements of a stage, stages.
inline std::string to_string(const MatmulTuning& tuning) {
  return std::to_string(tuning.tile_rows) + "x" + std::to_string(tuning.tile_columns) + "x" +
         std::to_string(tuning.stage_inner) + "x" + std::to_string(tuning.num_stages) +
         (tuning.sharing == MatmulSharing::kWeights ? "+weights"
          : tuning.sharing == MatmulSharing::kRows  ? "+rows"
                                                    : "") +
         (tuning.element == MatmulElement::kFP8 ? " fp8" : "") +
         (is_coded(tuning.weights) ? std::string(" ") + to_string(tuning.weights) : "");
}

}  // namespace switchyard
