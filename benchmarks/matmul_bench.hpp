// Times grouped matmuls by graph replay, each after a sweep that evicts the L2, and verifies some outputs of
// each.
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
  size_t row_pairs() const { return static_cast<size_t>(inner) * static_cast<size_t>(bytes_of(element)) / 2; }
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
  // Weights and rows read once, outputs written once.
  uint64_t bytes() const {
    const uint64_t rows = static_cast<uint64_t>(num_experts) * static_cast<uint64_t>(rows_per_expert);
    const uint64_t k = static_cast<uint64_t>(inner), n = static_cast<uint64_t>(columns);
    return (static_cast<uint64_t>(num_experts) * k * n + rows * k) *
               static_cast<uint64_t>(bytes_of(element)) +
           rows * output_columns() * (stores_fp8() ? 1 : sizeof(bf16));
  }
};

struct MatmulBenchResult {
  MatmulBenchCase bench_case;
  MatmulTuning tuning;
  uint32_t num_blocks = 0;
  Timing timing{};
  reference::MatmulDifference difference;  // of a few outputs of every expert

  bool is_verified() const { return difference.first_bad.empty(); }
  double tflops() const { return bench_case.flops() / timing.median_us * 1e-6; }
  double terabytes_per_second() const { return timing.bytes_per_second() * 1e-12; }
};

class MatmulBench {
 public:
  // Memory for the largest of the cases, filled once.
  static Result<std::unique_ptr<MatmulBench>> create(World& world, const std::vector<MatmulBenchCase>& cases,
                                                     uint64_t seed);

  Result<MatmulBenchResult> time(const MatmulBenchCase& bench_case, int num_replays);

 private:
  // Rows and weights of one kind of element, in pairs of bytes.
  struct Operands {
    PeriodicNumbers numbers;
    Buffer<bf16> rows, weights;
    Buffer<float> row_scales, weight_scales;  // of fp8
  };

  explicit MatmulBench(World& world) : world_(world), rank_(world.rank(0)) {}
  Status prepare(MatmulElement element, const std::vector<MatmulBenchCase>& cases, uint64_t seed);
  Operands& operands(MatmulElement element) { return operands_[static_cast<int>(element)]; }
  // Row `row` of the rows or the weights as numbers.
  std::vector<float> values_of(const MatmulBenchCase& bench_case, bool is_weight, size_t row);
  Status sweep();
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
  Operands operands_[2];
  Buffer<bf16> output_;
  Buffer<float> output_scales_, row_weights_;
  Buffer<uint32_t> swept_;
};

}  // namespace switchyard::tools
