#include "matmul_bench.hpp"

#include <algorithm>
#include <cmath>

#include "limits.hpp"
#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/detail/runtime/internals.hpp"
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
  size_t num_outputs = 0, num_output_scales = 0, num_rows = 0;
  for (const MatmulBenchCase& bench_case : cases) {
    num_outputs = std::max(num_outputs, bench_case.num_rows() * bench_case.output_columns());
    num_output_scales = std::max(num_output_scales, bench_case.num_output_scales());
    num_rows = std::max(num_rows, bench_case.num_rows());
  }
  Rank& rank = bench->rank_;
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(bench->output_, rank, num_outputs));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(bench->output_scales_, rank, num_output_scales));
  std::vector<float> row_weights(num_rows);
  for (size_t row = 0; row < num_rows; ++row) row_weights[row] = scale_at(row);
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(bench->row_weights_, rank, num_rows));
  SWITCHYARD_RETURN_IF_ERROR(bench->row_weights_.upload(row_weights));
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
  const uint32_t num_blocks = static_cast<uint32_t>(device_of(rank_).num_multiprocessors());
  return rank_.launch(benchmarks::limit_kernels(world_.target()).sweep,
                      {.num_blocks = num_blocks, .num_threads = 1024},
                      {swept_.data(), swept_.size() * sizeof(uint32_t)});
}

Result<std::unique_ptr<GroupedMatmul>> MatmulBench::make_matmul(const MatmulBenchCase& bench_case) {
  return GroupedMatmul::create(rank_,
                               {.num_groups = bench_case.num_experts,
                                .element = bench_case.element,
                                .inner = bench_case.inner,
                                .columns = bench_case.columns,
                                .activation = bench_case.is_gated() ? Activation::kSiLU : Activation::kNone,
                                .output = bench_case.stores_fp8() ? MatmulOutput::kFP8 : MatmulOutput::kBF16,
                                .max_rows = static_cast<int64_t>(bench_case.num_rows()),
                                .num_blocks = bench_case.num_blocks,
                                .tuning = bench_case.tuning});
}

GroupedMatmulTensors MatmulBench::tensors_of(const MatmulBenchCase& bench_case, const uint32_t* row_offsets) {
  const Operands& from = operands(bench_case.element);
  GroupedMatmulTensors tensors{.rows = from.rows.data(),
                               .weights = from.weights.data(),
                               .output = output_.data(),
                               .row_offsets = row_offsets,
                               .row_scales = from.row_scales.data(),
                               .weight_scales = from.weight_scales.data()};
  if (bench_case.epilogue == MatmulEpilogue::kAffine) tensors.row_weights = row_weights_.data();
  if (bench_case.stores_fp8()) tensors.output_scales = output_scales_.data();
  return tensors;
}

Result<MatmulBenchResult> MatmulBench::time(const MatmulBenchCase& bench_case, int num_replays) {
  Result<std::unique_ptr<GroupedMatmul>> matmul = make_matmul(bench_case);
  if (!matmul.ok()) return matmul.status();
  std::vector<uint32_t> offsets;
  for (int expert = 0; expert <= bench_case.num_experts; ++expert)
    offsets.push_back(static_cast<uint32_t>(expert * bench_case.rows_per_expert));
  const Result<Buffer<uint32_t>> row_offsets = rank_.upload(offsets);
  if (!row_offsets.ok()) return row_offsets.status();
  // What a case does not write must not look as if it had: the one before may have had the same input.
  SWITCHYARD_RETURN_IF_ERROR(output_.fill_bytes(0xff));
  SWITCHYARD_RETURN_IF_ERROR(output_scales_.fill_bytes(0xff));
  Graphs graphs;
  Result<std::unique_ptr<Graph>> graph = world_.capture([&] {
    SWITCHYARD_RETURN_IF_ERROR(world_.mark("sweep"));
    SWITCHYARD_RETURN_IF_ERROR(sweep());
    SWITCHYARD_RETURN_IF_ERROR(world_.mark("matmul"));
    return matmul.value()->run(tensors_of(bench_case, row_offsets.value().data()));
  });
  if (!graph.ok()) return graph.status();
  graphs.push_back(std::move(graph).value());
  const Result<std::vector<SpanSamples>> samples = time_replays(graphs, num_replays);
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

Result<MatmulBench::OutputRow> MatmulBench::output_row(const MatmulBenchCase& bench_case, size_t row) {
  const size_t columns = bench_case.output_columns();
  OutputRow output{.values = {}, .scales = std::vector<float>(columns, 1.0f)};
  if (!bench_case.stores_fp8()) {
    const Result<std::vector<bf16>> values = rank_.view(output_.data() + row * columns, columns).download();
    if (!values.ok()) return values.status();
    for (const bf16 value : values.value()) output.values.push_back(to_float(value));
    return output;
  }
  uint8_t* codes_of_row = reinterpret_cast<uint8_t*>(output_.data()) + row * columns;
  const Result<std::vector<uint8_t>> codes = rank_.view(codes_of_row, columns).download();
  if (!codes.ok()) return codes.status();
  for (size_t column = 0; column < columns; ++column) {
    if (column % kMatmulScaleGroup == 0) {
      const size_t at = bench_case.row_scale_index(row, column / kMatmulScaleGroup);
      const Result<std::vector<float>> scale = rank_.view(output_scales_.data() + at, 1).download();
      if (!scale.ok()) return scale.status();
      std::fill(output.scales.begin() + static_cast<ptrdiff_t>(column), output.scales.end(),
                scale.value().front());
    }
    output.values.push_back(to_float(e4m3{codes.value()[column]}) * output.scales[column]);
  }
  return output;
}

void MatmulBench::compare_column(const MatmulBenchCase& bench_case, size_t row, size_t column,
                                 const std::vector<float>& row_values, const OutputRow& output,
                                 reference::MatmulDifference& difference) {
  const size_t expert = row / static_cast<size_t>(bench_case.rows_per_expert);
  const size_t first_weight = expert * static_cast<size_t>(bench_case.columns) + column;
  const std::string where = "row " + std::to_string(row) + ", column " + std::to_string(column);
  const auto sum_of = [&](size_t weight_row) {
    return reference::multiply(row_values, values_of(bench_case, /*is_weight=*/true, weight_row));
  };
  const double sum_error = reference::sum_error(bench_case.element, row_values.size());
  const double value = static_cast<double>(output.values[column]);
  const reference::MatmulValue first = sum_of(first_weight);
  reference::GatedValue expected{first.value, first.magnitude * sum_error};
  if (bench_case.is_gated()) {
    const reference::MatmulValue up = sum_of(first_weight + bench_case.output_columns());
    expected = reference::activate(Activation::kSiLU, first.value, first.magnitude * sum_error, up.value,
                                   up.magnitude * sum_error);
  }
  const double rounding =
      bench_case.stores_fp8() ? 0x1p-4 + 0x1p-20 : 0x1p-8;  // half a unit in the last place
  const double smallest = bench_case.stores_fp8() ? static_cast<double>(output.scales[column]) * 0x1p-10 : 0;
  difference.add(value, expected.value,
                 expected.error + (std::abs(expected.value) + expected.error) * rounding + smallest, where);
}

// Of every expert the first and the last row, and of each a few columns, the last one among them.
Result<reference::MatmulDifference> MatmulBench::compare(const MatmulBenchCase& bench_case) {
  constexpr size_t kColumnsLookedAt = 8;
  const size_t columns = bench_case.output_columns(),
               num_rows = static_cast<size_t>(bench_case.rows_per_expert);
  reference::MatmulDifference difference;
  for (size_t expert = 0; expert < static_cast<size_t>(bench_case.num_experts); ++expert)
    for (const size_t row_in_expert : {size_t{0}, num_rows - 1}) {
      const size_t row = expert * num_rows + row_in_expert;
      const Result<OutputRow> output = output_row(bench_case, row);
      if (!output.ok()) return output.status();
      std::vector<float> values = values_of(bench_case, /*is_weight=*/false, row);
      if (bench_case.epilogue == MatmulEpilogue::kAffine)
        for (float& value : values) value *= scale_at(row);
      for (size_t i = 0; i < kColumnsLookedAt; ++i) {
        const size_t column = columns - 1 - (i * (columns / kColumnsLookedAt) + i * expert) % columns;
        compare_column(bench_case, row, column, values, output.value(), difference);
      }
    }
  return difference;
}

}  // namespace switchyard::tools
