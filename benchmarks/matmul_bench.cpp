#include "matmul_bench.hpp"

#include <algorithm>

#include "limits.hpp"
#include "switchyard/detail/base/minifloat.hpp"
#include "workload/buffers.hpp"

namespace switchyard::tools {
namespace {

constexpr int kRowShift = 0, kWeightShift = 1000003;
// Several times the L2 of any GPU we know.
constexpr uint64_t kSweptBytes = 256ull << 20;
constexpr uint64_t kSweptBytesOnHost = 1 << 16;

// Scales of fp8: what lies where can be told without reading it back.
float scale_at(size_t i) { return 0.5f + static_cast<float>(i % 61) / 64.0f; }

}  // namespace

Result<std::unique_ptr<MatmulBench>> MatmulBench::create(World& world,
                                                         const std::vector<MatmulBenchCase>& cases,
                                                         uint64_t seed) {
  std::unique_ptr<MatmulBench> bench(new MatmulBench(world));
  size_t num_outputs = 0;
  for (const MatmulBenchCase& bench_case : cases)
    num_outputs = std::max(num_outputs, bench_case.num_rows() * static_cast<size_t>(bench_case.columns));
  Rank& rank = bench->rank_;
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(bench->output_, rank, num_outputs));
  const uint64_t swept_bytes = world.target() == Target::kHost ? kSweptBytesOnHost : kSweptBytes;
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(bench->swept_, rank, swept_bytes / sizeof(uint32_t)));
  for (const MatmulElement element : {MatmulElement::kBF16, MatmulElement::kFP8})
    SWITCHYARD_RETURN_IF_ERROR(bench->prepare(element, cases, seed));
  return bench;
}

Status MatmulBench::prepare(MatmulElement element, const std::vector<MatmulBenchCase>& cases, uint64_t seed) {
  size_t num_rows = 0, num_weights = 0, num_row_scales = 0, num_weight_scales = 0;
  for (const MatmulBenchCase& bench_case : cases) {
    if (bench_case.element != element) continue;
    const size_t rows = bench_case.num_rows(), weights = bench_case.num_weight_rows(),
                 pairs = bench_case.row_pairs();
    num_rows = std::max(num_rows, rows * pairs);
    num_weights = std::max(num_weights, weights * pairs);
    num_row_scales = std::max(num_row_scales, bench_case.num_row_scales());
    num_weight_scales = std::max(num_weight_scales, bench_case.num_weight_scales());
  }
  if (num_weights == 0) return Status();
  Operands& to = operands(element);
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(to.rows, rank_, num_rows));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(to.weights, rank_, num_weights));
  Result<PeriodicNumbers> numbers = element == MatmulElement::kFP8
                                        ? PeriodicNumbers::create_codes(rank_, seed)
                                        : PeriodicNumbers::create(rank_, seed);
  if (!numbers.ok()) return numbers.status();
  to.numbers = std::move(numbers).value();
  SWITCHYARD_RETURN_IF_ERROR(to.numbers.fill(to.rows, kRowShift));
  SWITCHYARD_RETURN_IF_ERROR(to.numbers.fill(to.weights, kWeightShift));
  if (element == MatmulElement::kBF16) return Status();
  for (const auto& [scales, size] :
       {std::pair{&to.row_scales, num_row_scales}, std::pair{&to.weight_scales, num_weight_scales}}) {
    std::vector<float> values(size);
    for (size_t i = 0; i < size; ++i) values[i] = scale_at(i);
    Result<Buffer<float>> uploaded = rank_.upload(values);
    if (!uploaded.ok()) return uploaded.status();
    *scales = std::move(uploaded).value();
  }
  return Status();
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
                                    .element = bench_case.element,
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
  const Operands& from = operands(bench_case.element);
  Graphs graphs;
  Result<std::unique_ptr<Graph>> graph = world_.capture([&] {
    SWITCHYARD_RETURN_IF_ERROR(world_.mark("sweep"));
    SWITCHYARD_RETURN_IF_ERROR(sweep());
    SWITCHYARD_RETURN_IF_ERROR(world_.mark("matmul"));
    return matmul.value()->run({.rows = from.rows.data(),
                                .weights = from.weights.data(),
                                .output = output_.data(),
                                .row_offsets = row_offsets.value().data(),
                                .row_scales = from.row_scales.data(),
                                .weight_scales = from.weight_scales.data()});
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

std::vector<float> MatmulBench::values_of(const MatmulBenchCase& bench_case, bool is_weight, size_t row) {
  const size_t pairs = bench_case.row_pairs();
  const std::vector<bf16> numbers =
      operands(bench_case.element)
          .numbers.at(is_weight ? kWeightShift : kRowShift, row * pairs, (row + 1) * pairs);
  std::vector<float> values;
  for (size_t i = 0; i < pairs; ++i) {
    if (bench_case.element == MatmulElement::kBF16) {
      values.push_back(to_float(numbers[i]));
      continue;
    }
    const size_t group = 2 * i / kMatmulScaleGroup;
    const float scale = scale_at(is_weight ? bench_case.weight_scale_index(row, group)
                                           : bench_case.row_scale_index(row, group));
    for (const int shift : {0, 8})
      values.push_back(to_float(e4m3{static_cast<uint8_t>(numbers[i].bits >> shift)}) * scale);
  }
  return values;
}

// Of every expert the first and the last row, and of each a few columns, the last one among them.
Result<reference::MatmulDifference> MatmulBench::compare(const MatmulBenchCase& bench_case) {
  constexpr size_t kColumnsLookedAt = 8;
  const size_t columns = static_cast<size_t>(bench_case.columns),
               num_rows = static_cast<size_t>(bench_case.rows_per_expert);
  reference::MatmulDifference difference;
  for (size_t expert = 0; expert < static_cast<size_t>(bench_case.num_experts); ++expert)
    for (const size_t row_in_expert : {size_t{0}, num_rows - 1}) {
      const size_t row = expert * num_rows + row_in_expert;
      const Result<std::vector<bf16>> output = rank_.view(output_.data() + row * columns, columns).download();
      if (!output.ok()) return output.status();
      const std::vector<float> values = values_of(bench_case, /*is_weight=*/false, row);
      for (size_t i = 0; i < kColumnsLookedAt; ++i) {
        const size_t column = columns - 1 - (i * (columns / kColumnsLookedAt) + i * expert) % columns;
        difference.add(
            bench_case.element, values, values_of(bench_case, /*is_weight=*/true, expert * columns + column),
            output.value()[column], "row " + std::to_string(row) + ", column " + std::to_string(column));
      }
    }
  return difference;
}

}  // namespace switchyard::tools
