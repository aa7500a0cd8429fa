#include "matmul_bench.hpp"

#include <algorithm>

#include "limits.hpp"
#include "workload/buffers.hpp"

namespace switchyard::tools {
namespace {

constexpr int kRowShift = 0, kWeightShift = 1000003;
// Several times the L2 of any GPU we know.
constexpr uint64_t kSweptBytes = 256ull << 20;
constexpr uint64_t kSweptBytesOnHost = 1 << 16;

}  // namespace

Result<std::unique_ptr<MatmulBench>> MatmulBench::create(World& world,
                                                         const std::vector<MatmulBenchCase>& cases,
                                                         uint64_t seed) {
  std::unique_ptr<MatmulBench> bench(new MatmulBench(world));
  size_t num_rows = 0, num_weights = 0, num_outputs = 0;
  for (const MatmulBenchCase& bench_case : cases) {
    const size_t experts = static_cast<size_t>(bench_case.num_experts),
                 rows = experts * static_cast<size_t>(bench_case.rows_per_expert),
                 inner = static_cast<size_t>(bench_case.inner),
                 columns = static_cast<size_t>(bench_case.columns);
    num_rows = std::max(num_rows, rows * inner);
    num_weights = std::max(num_weights, experts * columns * inner);
    num_outputs = std::max(num_outputs, rows * columns);
  }
  Rank& rank = bench->rank_;
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(bench->rows_, rank, num_rows));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(bench->weights_, rank, num_weights));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(bench->output_, rank, num_outputs));
  const uint64_t swept_bytes = world.target() == Target::kHost ? kSweptBytesOnHost : kSweptBytes;
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(bench->swept_, rank, swept_bytes / sizeof(uint32_t)));
  Result<PeriodicNumbers> numbers = PeriodicNumbers::create(rank, seed);
  if (!numbers.ok()) return numbers.status();
  bench->numbers_ = std::move(numbers).value();
  SWITCHYARD_RETURN_IF_ERROR(bench->numbers_.fill(bench->rows_, kRowShift));
  SWITCHYARD_RETURN_IF_ERROR(bench->numbers_.fill(bench->weights_, kWeightShift));
  return bench;
}

Status MatmulBench::sweep() {
  const uint32_t num_blocks = static_cast<uint32_t>(rank_.device().num_multiprocessors());
  return rank_.launch(benchmarks::limit_kernels(world_.target()).sweep,
                      {.num_blocks = num_blocks, .num_threads = 1024},
                      {swept_.data(), swept_.size() * sizeof(uint32_t)});
}

Result<MatmulBenchResult> MatmulBench::time(const MatmulBenchCase& bench_case, int num_replays) {
  const int64_t num_rows = int64_t{bench_case.num_experts} * bench_case.rows_per_expert;
  Result<std::unique_ptr<GroupedMatmul>> matmul =
      GroupedMatmul::create(rank_, {.num_groups = bench_case.num_experts,
                                    .inner = bench_case.inner,
                                    .columns = bench_case.columns,
                                    .max_rows = num_rows,
                                    .num_blocks = bench_case.num_blocks,
                                    .tuning = bench_case.tuning});
  if (!matmul.ok()) return matmul.status();
  std::vector<uint32_t> offsets;
  for (int expert = 0; expert <= bench_case.num_experts; ++expert)
    offsets.push_back(static_cast<uint32_t>(expert * bench_case.rows_per_expert));
  const Result<Buffer<uint32_t>> row_offsets = rank_.upload(offsets);
  if (!row_offsets.ok()) return row_offsets.status();
  // What a case does not write must not look as if it had: the one before may have had the same input.
  SWITCHYARD_RETURN_IF_ERROR(output_.fill_bytes(0xff));
  Graphs graphs;
  Result<std::unique_ptr<Graph>> graph = world_.capture([&] {
    SWITCHYARD_RETURN_IF_ERROR(world_.mark("sweep"));
    SWITCHYARD_RETURN_IF_ERROR(sweep());
    SWITCHYARD_RETURN_IF_ERROR(world_.mark("matmul"));
    return matmul.value()->run({.rows = rows_.data(),
                                .weights = weights_.data(),
                                .output = output_.data(),
                                .row_offsets = row_offsets.value().data()});
  });
  if (!graph.ok()) return graph.status();
  graphs.push_back(std::move(graph).value());
  const Result<std::vector<PhaseSamples>> samples = time_replays(graphs, num_replays);
  if (!samples.ok()) return samples.status();
  MatmulBenchResult result{.bench_case = bench_case,
                           .tuning = matmul.value()->tuning(),
                           .num_blocks = matmul.value()->num_blocks(),
                           .timing = samples.value().back().summarize(bench_case.bytes())};
  Result<reference::MatmulDifference> difference = compare(bench_case);
  if (!difference.ok()) return difference.status();
  result.difference = difference.value();
  return result;
}

// Of every expert the first and the last row, and of each a few columns, the last one among them.
Result<reference::MatmulDifference> MatmulBench::compare(const MatmulBenchCase& bench_case) {
  constexpr size_t kColumnsLookedAt = 8;
  const size_t inner = static_cast<size_t>(bench_case.inner),
               columns = static_cast<size_t>(bench_case.columns),
               num_rows = static_cast<size_t>(bench_case.rows_per_expert);
  reference::MatmulDifference difference;
  for (size_t expert = 0; expert < static_cast<size_t>(bench_case.num_experts); ++expert)
    for (const size_t row_in_expert : {size_t{0}, num_rows - 1}) {
      const size_t row = expert * num_rows + row_in_expert;
      const Result<std::vector<bf16>> output = rank_.view(output_.data() + row * columns, columns).download();
      if (!output.ok()) return output.status();
      const std::vector<bf16> values = numbers_.at(kRowShift, row * inner, (row + 1) * inner);
      for (size_t i = 0; i < kColumnsLookedAt; ++i) {
        const size_t column = columns - 1 - (i * (columns / kColumnsLookedAt) + i * expert) % columns;
        const size_t first_weight = (expert * columns + column) * inner;
        difference.add(values, numbers_.at(kWeightShift, first_weight, first_weight + inner),
                       output.value()[column],
                       "row " + std::to_string(row) + ", column " + std::to_string(column));
      }
    }
  return difference;
}

}  // namespace switchyard::tools
