// Times grouped matmuls by graph replay, each after a sweep that empties L2, and looks at some outputs of
// each.
#pragma once

#include <memory>

#include "periodic_numbers.hpp"
#include "reference/matmul.hpp"
#include "replay.hpp"
#include "switchyard/grouped_matmul.hpp"

namespace switchyard::tools {

struct MatmulBenchCase {
  std::string name;  // of the weights' shape
  int num_experts = 1;
  int inner = 64;
  int columns = 64;
  int rows_per_expert = 1;
  std::optional<MatmulTuning> tuning;
  int num_blocks = 0;

  double flops() const { return 2.0 * num_experts * rows_per_expert * static_cast<double>(inner) * columns; }
  // Weights and rows read once, outputs written once.
  uint64_t bytes() const {
    const uint64_t rows = static_cast<uint64_t>(num_experts) * static_cast<uint64_t>(rows_per_expert);
    const uint64_t k = static_cast<uint64_t>(inner), n = static_cast<uint64_t>(columns);
    return (static_cast<uint64_t>(num_experts) * k * n + rows * (k + n)) * sizeof(bf16);
  }
};

struct MatmulBenchResult {
  MatmulBenchCase bench_case;
  MatmulTuning tuning;
  uint32_t num_blocks = 0;
  Timing timing{};
  reference::MatmulDifference difference;  // of a few outputs of every expert

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
  explicit MatmulBench(World& world) : world_(world), rank_(world.rank(0)) {}
  Status sweep();
  Result<reference::MatmulDifference> compare(const MatmulBenchCase& bench_case);

  World& world_;
  Rank& rank_;
  PeriodicNumbers numbers_;
  Buffer<bf16> rows_, weights_, output_;
  Buffer<uint32_t> swept_;
};

}  // namespace switchyard::tools
