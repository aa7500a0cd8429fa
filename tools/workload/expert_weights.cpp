#include "expert_weights.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "buffers.hpp"
#include "switchyard/detail/base/minifloat.hpp"

namespace switchyard::tools {
namespace {

constexpr size_t kBlock = kMatmulScaleGroup;

// The matrix of an expert, [inner][columns], as weights: [columns][inner].
struct Transposed {
  size_t columns, inner;
  std::vector<bf16> values;

  Transposed(const std::vector<bf16>& matrix, size_t num_inner, size_t num_columns)
      : columns(num_columns), inner(num_inner), values(matrix.size()) {
    for (size_t column = 0; column < columns; ++column)
      for (size_t i = 0; i < inner; ++i) values[column * inner + i] = matrix[i * columns + column];
  }
  // The least power of two by which no magnitude of the block exceeds 448.
  float scale_of(size_t column_block, size_t inner_block) const {
    float amax = 0;
    for (size_t column = column_block * kBlock; column < std::min(columns, (column_block + 1) * kBlock);
         ++column)
      for (size_t i = inner_block * kBlock; i < std::min(inner, (inner_block + 1) * kBlock); ++i)
        amax = std::max(amax, std::abs(to_float(values[column * inner + i])));
    return amax == 0 ? 1.0f : std::exp2(std::ceil(std::log2(amax / e4m3::max())));
  }
  std::vector<float> scales() const {
    std::vector<float> all;
    for (size_t column_block = 0; column_block * kBlock < columns; ++column_block)
      for (size_t inner_block = 0; inner_block * kBlock < inner; ++inner_block)
        all.push_back(scale_of(column_block, inner_block));
    return all;
  }
  std::span<bf16> row(size_t column) { return {values.data() + column * inner, inner}; }
  e4m3 code_of(size_t column, size_t i, const std::vector<float>& scales) const {
    const float scale = scales[column / kBlock * ceil_div(inner, kBlock) + i / kBlock];
    return to_minifloat<e4m3>(to_float(values[column * inner + i]) / scale);
  }
};

// How a row of coded weights is cut into groups that share a scale: a power of two, for NVFP4 times one of
// eight factors in turn. A number that was rounded so is the same when it is rounded again: then the scale
// may be half of what it was, and the codes twice as large.
class RowCodes {
 public:
  explicit RowCodes(WeightFormat format) : format_(format) {}

  // Appends packed codes and the scales of a row, and overwrites it with what they stand for.
  void encode(std::span<bf16> row, std::vector<uint8_t>& codes, std::vector<uint8_t>& scales) const {
    const size_t group_size = static_cast<size_t>(scale_group_size(format_));
    for (size_t group = 0; group * group_size < row.size(); ++group)
      encode_group(row.subspan(group * group_size, group_size), group, codes, scales);
  }
  // What the sums are multiplied by: the scales of NVFP4 have only 4 bits of exponent.
  float tensor_scale() const { return format_ == WeightFormat::kNVFP4 ? 0x1p-8f : 1.0f; }

 private:
  void encode_group(std::span<bf16> values, size_t group, std::vector<uint8_t>& codes,
                    std::vector<uint8_t>& scales) const {
    const bool is_nvfp4 = format_ == WeightFormat::kNVFP4, is_mxfp8 = format_ == WeightFormat::kMXFP8;
    const float largest_code = is_mxfp8 ? e4m3::max() : e2m1::max();
    const float factor = is_nvfp4 ? 1.0f + static_cast<float>(group % 8) / 8 : 1.0f;
    float amax = 0;
    for (const bf16 value : values) amax = std::max(amax, std::abs(to_float(value)) / tensor_scale());
    const int least = is_nvfp4 ? -6 : -80;
    const int fitting =
        amax == 0 ? least : static_cast<int>(std::ceil(std::log2(amax / largest_code / factor)));
    const int exponent = std::max(least, fitting);
    const float scale = std::ldexp(factor, exponent);
    scales.push_back(is_nvfp4 ? to_minifloat<e4m3>(scale).bits : static_cast<uint8_t>(exponent + 127));
    for (size_t i = 0; i < values.size(); ++i) {
      const float quotient = to_float(values[i]) / tensor_scale() / scale;
      const uint8_t code = is_mxfp8 ? to_minifloat<e4m3>(quotient).bits : to_minifloat<e2m1>(quotient).bits;
      const float rounded = is_mxfp8 ? to_float(e4m3{code}) : to_float(e2m1{code});
      values[i] = to_bf16(rounded * scale * tensor_scale());
      if (is_mxfp8 || i % 2 == 0)
        codes.push_back(code);
      else
        codes.back() = static_cast<uint8_t>(codes.back() | code << 4);
    }
  }

  WeightFormat format_;
};

void round_matrix(std::vector<bf16>& matrix, size_t inner, size_t columns) {
  const Transposed weights(matrix, inner, columns);
  const std::vector<float> scales = weights.scales();
  for (size_t column = 0; column < columns; ++column)
    for (size_t i = 0; i < inner; ++i)
      matrix[i * columns + column] = to_bf16(to_float(weights.code_of(column, i, scales)) *
                                             scales[column / kBlock * ceil_div(inner, kBlock) + i / kBlock]);
}

void round_matrix(std::vector<bf16>& matrix, size_t inner, size_t columns, WeightFormat format) {
  Transposed weights(matrix, inner, columns);
  std::vector<uint8_t> codes, scales;
  for (size_t column = 0; column < columns; ++column) {
    RowCodes(format).encode(weights.row(column), codes, scales);
    for (size_t i = 0; i < inner; ++i) matrix[i * columns + column] = weights.row(column)[i];
  }
}

void append(const Transposed& weights, MatmulElement element, std::vector<uint8_t>& bytes,
            std::vector<float>& scales) {
  if (element == MatmulElement::kBF16) {
    const auto* begin = reinterpret_cast<const uint8_t*>(weights.values.data());
    bytes.insert(bytes.end(), begin, begin + weights.values.size() * sizeof(bf16));
    return;
  }
  const std::vector<float> of_matrix = weights.scales();
  for (size_t column = 0; column < weights.columns; ++column)
    for (size_t i = 0; i < weights.inner; ++i) bytes.push_back(weights.code_of(column, i, of_matrix).bits);
  scales.insert(scales.end(), of_matrix.begin(), of_matrix.end());
}

}  // namespace

void round_to_fp8(reference::MlpExperts& experts) {
  const size_t hidden = static_cast<size_t>(experts.hidden), width = static_cast<size_t>(experts.width);
  for (std::vector<bf16>& matrix : experts.gate_up) round_matrix(matrix, hidden, 2 * width);
  for (std::vector<bf16>& matrix : experts.down) round_matrix(matrix, width, hidden);
}

void round_to_codes(reference::MlpExperts& experts, WeightFormat format) {
  const size_t hidden = static_cast<size_t>(experts.hidden), width = static_cast<size_t>(experts.width);
  for (std::vector<bf16>& matrix : experts.gate_up) round_matrix(matrix, hidden, 2 * width, format);
  for (std::vector<bf16>& matrix : experts.down) round_matrix(matrix, width, hidden, format);
}

std::vector<size_t> experts_of_rank(const ExpertParallel& ep, int rank, int n_experts) {
  std::vector<size_t> of_rank;
  if (ep.config().shared_expert == SharedExpert::kFused) of_rank.push_back(static_cast<size_t>(n_experts));
  for (int seat = 0; seat < ep.n_local_experts(); ++seat)
    of_rank.push_back(static_cast<size_t>(std::max(0, ep.placement().expert_at({rank, seat}))));
  return of_rank;
}

Result<WeightTensors> WeightTensors::create(const Rank& rank, MatmulElement element, WeightFormat format,
                                            int num_experts, int hidden, int width) {
  WeightTensors tensors;
  tensors.element_ = element;
  tensors.format_ = format;
  const auto allocate = [&](Tensor& tensor, int columns, int inner) {
    const auto blocks = [](int size) { return ceil_div(static_cast<uint64_t>(size), uint64_t{kBlock}); };
    const uint64_t size = static_cast<uint64_t>(columns) * static_cast<uint64_t>(inner),
                   num = static_cast<uint64_t>(num_experts);
    const int num_bits = is_coded(format) ? code_bits_of(format) : 8 * bytes_of(element);
    SWITCHYARD_RETURN_IF_ERROR(
        allocate_into(tensor.elements, rank, num * size * static_cast<uint64_t>(num_bits) / 8));
    if (is_coded(format)) {
      if (format == WeightFormat::kNVFP4)
        SWITCHYARD_RETURN_IF_ERROR(allocate_into(tensor.tensor_scales, rank, num));
      return allocate_into(tensor.code_scales, rank,
                           num * size / static_cast<uint64_t>(scale_group_size(format)));
    }
    if (element == MatmulElement::kBF16) return Status();
    return allocate_into(tensor.scales, rank, num * blocks(columns) * blocks(inner));
  };
  SWITCHYARD_RETURN_IF_ERROR(allocate(tensors.gate_up_, 2 * width, hidden));
  SWITCHYARD_RETURN_IF_ERROR(allocate(tensors.down_, hidden, width));
  return tensors;
}

Status WeightTensors::upload(const reference::MlpExperts& experts, const std::vector<size_t>& of_rank) {
  const auto upload = [&](const std::vector<std::vector<bf16>>& matrices, int inner, int columns,
                          Tensor& tensor) {
    std::vector<uint8_t> bytes, code_scales;
    std::vector<float> scales;
    for (const size_t expert : of_rank) {
      Transposed weights(matrices[expert], static_cast<size_t>(inner), static_cast<size_t>(columns));
      if (!is_coded(format_)) append(weights, element_, bytes, scales);
      for (size_t column = 0; is_coded(format_) && column < weights.columns; ++column)
        RowCodes(format_).encode(weights.row(column), bytes, code_scales);
    }
    SWITCHYARD_RETURN_IF_ERROR(tensor.elements.upload(bytes));
    SWITCHYARD_RETURN_IF_ERROR(tensor.code_scales.upload(code_scales));
    if (format_ == WeightFormat::kNVFP4)
      SWITCHYARD_RETURN_IF_ERROR(
          tensor.tensor_scales.upload(std::vector<float>(of_rank.size(), RowCodes(format_).tensor_scale())));
    return tensor.scales.upload(scales);
  };
  SWITCHYARD_RETURN_IF_ERROR(upload(experts.gate_up, experts.hidden, 2 * experts.width, gate_up_));
  return upload(experts.down, experts.width, experts.hidden, down_);
}

ExpertWeights WeightTensors::pointers() const {
  return {.gate_up = gate_up_.elements.data(),
          .down = down_.elements.data(),
          .gate_up_scales = gate_up_.scale_pointer(format_),
          .down_scales = down_.scale_pointer(format_),
          .gate_up_tensor_scales = gate_up_.tensor_scales.data(),
          .down_tensor_scales = down_.tensor_scales.data()};
}

}  // namespace switchyard::tools
