#include "fast_experts.hpp"

#include <algorithm>
#include <cmath>

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
  e4m3 code_of(size_t column, size_t i, const std::vector<float>& scales) const {
    const float scale = scales[column / kBlock * ceil_div(inner, kBlock) + i / kBlock];
    return to_minifloat<e4m3>(to_float(values[column * inner + i]) / scale);
  }
};

void round_matrix(std::vector<bf16>& matrix, size_t inner, size_t columns) {
  const Transposed weights(matrix, inner, columns);
  const std::vector<float> scales = weights.scales();
  for (size_t column = 0; column < columns; ++column)
    for (size_t i = 0; i < inner; ++i)
      matrix[i * columns + column] = to_bf16(to_float(weights.code_of(column, i, scales)) *
                                             scales[column / kBlock * ceil_div(inner, kBlock) + i / kBlock]);
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

int num_matrices(const ExpertParallel& ep) {
  return ep.n_local_experts() + (ep.config().shared_expert == SharedExpert::kFused ? 1 : 0);
}

Result<std::unique_ptr<FastExperts>> FastExperts::create(World& world, const ExpertParallel& ep,
                                                         const reference::MlpExperts& experts,
                                                         const MatmulRows& rows, uint32_t max_rows) {
  auto fast = std::make_unique<FastExperts>();
  fast->ranks_.resize(static_cast<size_t>(world.n_ranks()));
  for (const int r : world.local_ranks()) {
    RankState& state = fast->ranks_[static_cast<size_t>(r)];
    // The shared expert has the last index but comes first.
    std::vector<size_t> of_group;
    if (num_matrices(ep) > ep.n_local_experts()) of_group.push_back(experts.gate_up.size() - 1);
    for (int seat = 0; seat < ep.n_local_experts(); ++seat)  // an empty seat has any weights
      of_group.push_back(static_cast<size_t>(std::max(0, ep.placement().expert_at({r, seat}))));
    const auto upload = [&](const std::vector<std::vector<bf16>>& matrices, int inner, int columns,
                            Weights& weights) {
      std::vector<uint8_t> bytes;
      std::vector<float> scales;
      for (const size_t expert : of_group)
        append(Transposed(matrices[expert], static_cast<size_t>(inner), static_cast<size_t>(columns)),
               rows.element, bytes, scales);
      SWITCHYARD_RETURN_IF_ERROR(upload_into(weights.elements, world.rank(r), bytes));
      return upload_into(weights.scales, world.rank(r), scales);
    };
    SWITCHYARD_RETURN_IF_ERROR(
        upload(experts.gate_up, experts.hidden, 2 * experts.width, state.gate_up_weights));
    SWITCHYARD_RETURN_IF_ERROR(upload(experts.down, experts.width, experts.hidden, state.down_weights));
    // On a GPU any number of blocks will do; an emulated block is costly.
    const int num_blocks = world.target() == Target::kHost ? ep.n_sms() : 0;
    SWITCHYARD_RETURN_IF_ERROR(make_matmuls(world.rank(r),
                                            {.num_groups = num_matrices(ep),
                                             .element = rows.element,
                                             .row_scales = rows.row_scales,
                                             .inner = experts.hidden,
                                             .columns = 2 * experts.width,
                                             .activation = Activation::kSiLU,
                                             .max_rows = max_rows,
                                             .num_blocks = num_blocks},
                                            state));
  }
  return fast;
}

// `shape` is that of gate_up, but for the format of its output.
Status FastExperts::make_matmuls(Rank& rank, GroupedMatmulShape shape, RankState& state) {
  const int hidden = shape.inner, width = shape.columns / 2;
  const uint32_t max_rows = static_cast<uint32_t>(shape.max_rows);
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(
      state.activated, rank,
      uint64_t{max_rows} * static_cast<uint64_t>(width) * static_cast<uint64_t>(bytes_of(shape.element))));
  if (shape.element == MatmulElement::kFP8) {
    shape.output = MatmulOutput::kFP8;
    const TransposedScaleLayout layout{ceil_div(width, kMatmulScaleGroup), max_rows};
    SWITCHYARD_RETURN_IF_ERROR(
        allocate_into(state.activated_scales, rank, layout.bytes().value() / sizeof(float)));
  }
  Result<std::unique_ptr<GroupedMatmul>> gate_up = GroupedMatmul::create(rank, shape);
  if (!gate_up.ok()) return gate_up.status();
  shape.row_scales = MatmulRowScales::kFloat;  // of what gate_up writes
  shape.inner = width;
  shape.columns = hidden;
  shape.activation = Activation::kNone;
  shape.output = MatmulOutput::kBF16;
  Result<std::unique_ptr<GroupedMatmul>> down = GroupedMatmul::create(rank, shape);
  if (!down.ok()) return down.status();
  state.gate_up = std::move(gate_up).value();
  state.down = std::move(down).value();
  return Status();
}

Status FastExperts::gate_up(int rank, const void* rows, const void* row_scales, const Groups& groups) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  return state.gate_up->run({.rows = rows,
                             .weights = state.gate_up_weights.elements.data(),
                             .output = state.activated.data(),
                             .row_offsets = groups.row_offsets,
                             .row_counts = groups.row_counts,
                             .row_scales = row_scales,
                             .weight_scales = state.gate_up_weights.scales.data(),
                             .output_scales = state.activated_scales.data()});
}

Status FastExperts::down(int rank, const Groups& groups, bf16* output) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  return state.down->run({.rows = state.activated.data(),
                          .weights = state.down_weights.elements.data(),
                          .output = output,
                          .row_offsets = groups.row_offsets,
                          .row_counts = groups.row_counts,
                          .row_scales = state.activated_scales.data(),
                          .weight_scales = state.down_weights.scales.data()});
}

}  // namespace switchyard::tools
