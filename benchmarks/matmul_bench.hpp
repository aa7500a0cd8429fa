// Times grouped matmuls by graph replay, each after a sweep that evicts the L2, beside a kernel that only
// reads their weights, and verifies some outputs of each.
#pragma once

#include <memory>

#include "periodic_numbers.hpp"
#include "reference/matmul.hpp"
#include "replay.hpp"
#include "switchyard/detail/base/checked.hpp"
#include "switchyard/grouped_matmul.hpp"

namespace switchyard::tools {

struct MatmulBenchCase {
  std::string name;  // of the weights' shape
  MatmulElement element = MatmulElement::kBF16;
  WeightFormat weights = WeightFormat::kAsRows;
  int num_experts = 1;
  int inner = 64;
  int columns = 64;
  int rows_per_expert = 1;
  MatmulEpilogue epilogue = MatmulEpilogue::kPlain;  // gates and ups go through SiLU
  std::optional<MatmulTuning> tuning;
  int num_blocks = 0;

  bool is_gated() const {
    return epilogue == MatmulEpilogue::kGated || epilogue == MatmulEpilogue::kGatedFP8;
  }
  bool stores_fp8() const { return epilogue == MatmulEpilogue::kGatedFP8; }
  size_t output_columns() const { return static_cast<size_t>(is_gated() ? columns / 2 : columns); }
  size_t num_output_scales() const {
    return ceil_div(output_columns(), size_t{kMatmulScaleGroup}) * align_up(num_rows(), size_t{4});
  }
  size_t num_rows() const { return static_cast<size_t>(num_experts) * static_cast<size_t>(rows_per_expert); }
  size_t num_weight_rows() const { return static_cast<size_t>(num_experts) * static_cast<size_t>(columns); }
  // Pairs of bytes in a row of either operand.
  size_t row_pairs() const { return static_cast<size_t>(inner) * static_cast<size_t>(bytes_of(element)) / 2; }
  size_t weight_row_pairs() const {
    return is_coded(weights) ? static_cast<size_t>(inner) * static_cast<size_t>(code_bits_of(weights)) / 16
                             : row_pairs();
  }
  // Of coded weights: the scales of a column.
  size_t code_scales_per_row() const {
    return is_coded(weights) ? static_cast<size_t>(inner) / static_cast<size_t>(scale_group_size(weights))
                             : 0;
  }
  // Of fp8: where the scale of a group of a row of either operand lies, and how many there are.
  size_t num_groups() const { return ceil_div(static_cast<size_t>(inner), size_t{kMatmulScaleGroup}); }
  size_t row_scale_index(size_t row, size_t group) const {
    return group * align_up(num_rows(), size_t{4}) + row;
  }
  size_t num_row_scales() const { return num_groups() * align_up(num_rows(), size_t{4}); }
  size_t weight_scale_index(size_t weight_row, size_t group) const {
    const size_t per_expert = ceil_div(static_cast<size_t>(columns), size_t{kMatmulScaleGroup});
    const size_t expert = weight_row / static_cast<size_t>(columns),
                 column = weight_row % static_cast<size_t>(columns);
    return (expert * per_expert + column / kMatmulScaleGroup) * num_groups() + group;
  }
  size_t num_weight_scales() const { return weight_scale_index(num_weight_rows() - 1, num_groups() - 1) + 1; }

  double flops() const { return 2.0 * num_experts * rows_per_expert * static_cast<double>(inner) * columns; }
  uint64_t weight_bytes() const { return num_weight_rows() * weight_row_pairs() * 2; }
  // Weights, with the scales of coded ones, and rows read once, outputs written once.
  uint64_t bytes() const {
    return weight_bytes() + num_weight_rows() * code_scales_per_row() + num_rows() * row_pairs() * 2 +
           num_rows() * output_columns() * (stores_fp8() ? 1 : sizeof(bf16));
  }
};

struct MatmulBenchResult {
  MatmulBenchCase bench_case;
  MatmulTuning tuning;
  uint32_t num_blocks = 0;
  Timing timing{};
  double read_us = 0;                      // of a kernel that only reads the weights, without scales
  reference::MatmulDifference difference;  // of a few outputs of every expert

  bool is_verified() const { return difference.first_bad.empty(); }
  double tflops() const { return bench_case.flops() / timing.median_us * 1e-6; }
  double terabytes_per_second() const { return timing.bytes_per_second() * 1e-12; }
  double read_terabytes_per_second() const {
    return static_cast<double>(bench_case.weight_bytes()) / read_us * 1e-6;
  }
  // No kernel is faster: what reading all bytes of the case would take.
  double limit_us() const { return static_cast<double>(timing.bytes) / read_terabytes_per_second() * 1e-6; }
};

class MatmulBench {
 public:
  // Memory for the largest of the cases, filled once. All of them have the same element and weights.
  static Result<std::unique_ptr<MatmulBench>> create(World& world, const std::vector<MatmulBenchCase>& cases,
                                                     uint64_t seed);

  Result<MatmulBenchResult> time(const MatmulBenchCase& bench_case, int num_replays);

 private:
  explicit MatmulBench(World& world) : world_(world), rank_(world.rank(0)) {}
  Status prepare_operands(const std::vector<MatmulBenchCase>& cases, uint64_t seed);
  Status prepare_scales(const std::vector<MatmulBenchCase>& cases);
  // Row `row` of the rows or the weights as numbers.
  std::vector<float> values_of(const MatmulBenchCase& bench_case, bool is_weight, size_t row);
  std::vector<float> coded_values_of(const MatmulBenchCase& bench_case, const std::vector<bf16>& numbers,
                                     size_t row) const;
  Status sweep();
  Status read_weights(const MatmulBenchCase& bench_case);
  Result<std::unique_ptr<GroupedMatmul>> make_matmul(const MatmulBenchCase& bench_case);
  GroupedMatmulTensors tensors_of(const MatmulBenchCase& bench_case, const uint32_t* row_offsets);
  Result<reference::MatmulDifference> compare(const MatmulBenchCase& bench_case);
  // A row of the output as numbers, with the scale of each.
  struct OutputRow {
    std::vector<float> values, scales;
  };
  Result<OutputRow> output_row(const MatmulBenchCase& bench_case, size_t row);
  void compare_column(const MatmulBenchCase& bench_case, size_t row, size_t column,
                      const std::vector<float>& row_values, const OutputRow& output,
                      reference::MatmulDifference& difference);

  World& world_;
  Rank& rank_;
  PeriodicNumbers row_numbers_, weight_numbers_;
  Buffer<bf16> rows_, weights_;               // in pairs of bytes
  Buffer<float> row_scales_, weight_scales_;  // of fp8
  Buffer<uint8_t> code_scales_;               // of coded weights
  Buffer<float> tensor_scales_;               // of NVFP4
  Buffer<bf16> output_;
  Buffer<float> output_scales_, row_weights_;
  Buffer<uint32_t> swept_;
};

}  // namespace switchyard::tools
