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

// Scales: what lies where can be told without reading it back.
float float_scale_at(size_t i) { return 0.5f + static_cast<float>(i % 61) / 64.0f; }
uint8_t code_scale_at(WeightFormat weights, size_t i) {
  return static_cast<uint8_t>(weights == WeightFormat::kNVFP4 ? 0x28 + i % 29 : 122 + i % 5);
}
float tensor_scale_at(WeightFormat weights, size_t expert) {
  return weights == WeightFormat::kNVFP4 ? float_scale_at(expert) : 1.0f;
}

template <typename T, typename ValueAt>
Status upload_values(Buffer<T>& buffer, const Rank& rank, size_t size, const ValueAt& value_at) {
  std::vector<T> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = value_at(i);
  Result<Buffer<T>> uploaded = rank.upload(values);
  if (!uploaded.ok()) return uploaded.status();
  buffer = std::move(uploaded).value();
  return Status();
}

Result<PeriodicNumbers> make_numbers(const Rank& rank, uint64_t seed, bool are_codes) {
  return are_codes ? PeriodicNumbers::create_codes(rank, seed) : PeriodicNumbers::create(rank, seed);
}

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
  SWITCHYARD_RETURN_IF_ERROR(upload_values(bench->row_weights_, rank, num_rows, float_scale_at));
  const uint64_t swept_bytes = world.target() == Target::kHost ? kSweptBytesOnHost : kSweptBytes;
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(bench->swept_, rank, swept_bytes / sizeof(uint32_t)));
  SWITCHYARD_RETURN_IF_ERROR(bench->prepare_operands(cases, seed));
  SWITCHYARD_RETURN_IF_ERROR(bench->prepare_scales(cases));
  return bench;
}

Status MatmulBench::prepare_operands(const std::vector<MatmulBenchCase>& cases, uint64_t seed) {
  size_t num_rows = 0, num_weights = 0;
  for (const MatmulBenchCase& bench_case : cases) {
    num_rows = std::max(num_rows, bench_case.num_rows() * bench_case.row_pairs());
    num_weights = std::max(num_weights, bench_case.num_weight_rows() * bench_case.weight_row_pairs());
  }
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(rows_, rank_, num_rows));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(weights_, rank_, num_weights));
  const bool is_fp8 = cases.front().element == MatmulElement::kFP8;
  Result<PeriodicNumbers> row_numbers = make_numbers(rank_, seed, is_fp8);
  if (!row_numbers.ok()) return row_numbers.status();
  Result<PeriodicNumbers> weight_numbers =
      make_numbers(rank_, seed, is_fp8 || is_coded(cases.front().weights));
  if (!weight_numbers.ok()) return weight_numbers.status();
  row_numbers_ = std::move(row_numbers).value();
  weight_numbers_ = std::move(weight_numbers).value();
  SWITCHYARD_RETURN_IF_ERROR(row_numbers_.fill(rows_, kRowShift));
  return weight_numbers_.fill(weights_, kWeightShift);
}

Status MatmulBench::prepare_scales(const std::vector<MatmulBenchCase>& cases) {
  size_t num_row_scales = 0, num_weight_scales = 0, num_code_scales = 0, num_experts = 0;
  for (const MatmulBenchCase& bench_case : cases) {
    num_row_scales = std::max(num_row_scales, bench_case.num_row_scales());
    num_weight_scales = std::max(num_weight_scales, bench_case.num_weight_scales());
    num_code_scales =
        std::max(num_code_scales, bench_case.num_weight_rows() * bench_case.code_scales_per_row());
    num_experts = std::max(num_experts, static_cast<size_t>(bench_case.num_experts));
  }
  const WeightFormat weights = cases.front().weights;
  if (is_coded(weights)) {
    SWITCHYARD_RETURN_IF_ERROR(upload_values(code_scales_, rank_, num_code_scales,
                                             [&](size_t i) { return code_scale_at(weights, i); }));
    return upload_values(tensor_scales_, rank_, num_experts,
                         [&](size_t expert) { return tensor_scale_at(weights, expert); });
  }
  if (cases.front().element == MatmulElement::kBF16) return Status();
  SWITCHYARD_RETURN_IF_ERROR(upload_values(row_scales_, rank_, num_row_scales, float_scale_at));
  return upload_values(weight_scales_, rank_, num_weight_scales, float_scale_at);
}

Status MatmulBench::sweep() {
  const uint32_t num_blocks = static_cast<uint32_t>(device_of(rank_).num_multiprocessors());
  return rank_.launch(benchmarks::limit_kernels(world_.target()).sweep,
                      {.num_blocks = num_blocks, .num_threads = 1024},
                      {swept_.data(), swept_.size() * sizeof(uint32_t)});
}

Status MatmulBench::read_weights(const MatmulBenchCase& bench_case) {
  const uint32_t num_blocks = static_cast<uint32_t>(device_of(rank_).num_multiprocessors());
  const uint64_t half = bench_case.weight_bytes() / 32 * 16;
  return rank_.launch(benchmarks::limit_kernels(world_.target()).read,
                      {.num_blocks = num_blocks, .num_threads = kWarpSize, .programmatic_dependent = true},
                      {{weights_.data(), reinterpret_cast<const std::byte*>(weights_.data()) + half}, half});
}

Result<std::unique_ptr<GroupedMatmul>> MatmulBench::make_matmul(const MatmulBenchCase& bench_case) {
  return GroupedMatmul::create(rank_,
                               {.num_groups = bench_case.num_experts,
                                .element = bench_case.element,
                                .weights = bench_case.weights,
                                .inner = bench_case.inner,
                                .columns = bench_case.columns,
                                .activation = bench_case.is_gated() ? Activation::kSiLU : Activation::kNone,
                                .output = bench_case.stores_fp8() ? MatmulOutput::kFP8 : MatmulOutput::kBF16,
                                .max_rows = static_cast<int64_t>(bench_case.num_rows()),
                                .num_blocks = bench_case.num_blocks,
                                .tuning = bench_case.tuning});
}

GroupedMatmulTensors MatmulBench::tensors_of(const MatmulBenchCase& bench_case, const uint32_t* row_offsets) {
  GroupedMatmulTensors tensors{.rows = rows_.data(),
                               .weights = weights_.data(),
                               .output = output_.data(),
                               .row_offsets = row_offsets,
                               .row_scales = row_scales_.data(),
                               .weight_scales = weight_scales_.data()};
  if (is_coded(bench_case.weights)) {
    tensors.weight_scales = code_scales_.data();
    tensors.weight_tensor_scales = tensor_scales_.data();
  }
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
    SWITCHYARD_RETURN_IF_ERROR(matmul.value()->run(tensors_of(bench_case, row_offsets.value().data())));
    SWITCHYARD_RETURN_IF_ERROR(world_.mark("sweep again"));
    SWITCHYARD_RETURN_IF_ERROR(sweep());
    SWITCHYARD_RETURN_IF_ERROR(world_.mark("read"));
    return read_weights(bench_case);
  });
  if (!graph.ok()) return graph.status();
  graphs.push_back(std::move(graph).value());
  const Result<std::vector<SpanSamples>> samples = time_replays(graphs, num_replays);
  if (!samples.ok()) return samples.status();
  MatmulBenchResult result{.bench_case = bench_case,
                           .tuning = matmul.value()->tuning(),
                           .num_blocks = matmul.value()->num_blocks(),
                           .timing = samples.value()[1].summarize(bench_case.bytes()),
                           .read_us = samples.value().back().summarize(0).median_us};
  Result<reference::MatmulDifference> difference = compare(bench_case);
  if (!difference.ok()) return difference.status();
  result.difference = difference.value();
  return result;
}

std::vector<float> MatmulBench::values_of(const MatmulBenchCase& bench_case, bool is_weight, size_t row) {
  const size_t pairs = is_weight ? bench_case.weight_row_pairs() : bench_case.row_pairs();
  const std::vector<bf16> numbers = is_weight
                                        ? weight_numbers_.at(kWeightShift, row * pairs, (row + 1) * pairs)
                                        : row_numbers_.at(kRowShift, row * pairs, (row + 1) * pairs);
  if (is_weight && is_coded(bench_case.weights)) return coded_values_of(bench_case, numbers, row);
  std::vector<float> values;
  for (size_t i = 0; i < pairs; ++i) {
    if (bench_case.element == MatmulElement::kBF16) {
      values.push_back(to_float(numbers[i]));
      continue;
    }
    const size_t group = 2 * i / kMatmulScaleGroup;
    const float scale = float_scale_at(is_weight ? bench_case.weight_scale_index(row, group)
                                                 : bench_case.row_scale_index(row, group));
    for (const int shift : {0, 8})
      values.push_back(to_float(e4m3{static_cast<uint8_t>(numbers[i].bits >> shift)}) * scale);
  }
  return values;
}

std::vector<float> MatmulBench::coded_values_of(const MatmulBenchCase& bench_case,
                                                const std::vector<bf16>& numbers, size_t row) const {
  std::vector<uint8_t> codes, scales;
  for (const bf16 pair : numbers)
    for (const int shift : {0, 8}) codes.push_back(static_cast<uint8_t>(pair.bits >> shift));
  const size_t num_scales = bench_case.code_scales_per_row();
  for (size_t i = 0; i < num_scales; ++i)
    scales.push_back(code_scale_at(bench_case.weights, row * num_scales + i));
  return reference::decode_weights(
      bench_case.weights, codes, scales,
      tensor_scale_at(bench_case.weights, row / static_cast<size_t>(bench_case.columns)));
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
        for (float& value : values) value *= float_scale_at(row);
      for (size_t i = 0; i < kColumnsLookedAt; ++i) {
        const size_t column = columns - 1 - (i * (columns / kColumnsLookedAt) + i * expert) % columns;
        compare_column(bench_case, row, column, values, output.value(), difference);
      }
    }
  return difference;
}

}  // namespace switchyard::tools
