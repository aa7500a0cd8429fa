#include "switchyard/grouped_matmul.hpp"

#include <cinttypes>
#include <numeric>

#include "switchyard/detail/format/scale_layout.hpp"
#include "switchyard/detail/launch/decoding_matmul_kernels.hpp"
#include "switchyard/detail/launch/early_matmul_kernels.hpp"
#include "switchyard/detail/launch/matmul_kernels.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/row_completion.hpp"
#include "switchyard/row_readiness.hpp"

namespace switchyard {
namespace {

constexpr int kMultiple = 8;  // of N: rows begin at multiples of 16 bytes

MatmulEpilogue epilogue_of(const GroupedMatmulShape& shape) {
  if (shape.output == MatmulOutput::kFP8Rows) return MatmulEpilogue::kAffineFP8;
  if (shape.activation == Activation::kNone) return MatmulEpilogue::kPlain;
  return shape.output == MatmulOutput::kFP8 ? MatmulEpilogue::kGatedFP8 : MatmulEpilogue::kGated;
}

// Of N: with an activation, gates and ups have as many columns each. In fp8, 64 of them share a scale in
// either layout. Rows of fp8 have whole scale groups.
int column_multiple(const GroupedMatmulShape& shape) {
  if (shape.output == MatmulOutput::kFP8Rows) return kMatmulScaleGroup;
  if (shape.activation == Activation::kNone) return kMultiple;
  return shape.element == MatmulElement::kFP8 ? kMatmulScaleGroup : 2 * kMultiple;
}

bool has_coded_rows(const GroupedMatmulShape& shape) { return shape.row_format != TokenFormatKind::kBF16; }

// Of K: rows of either operand begin at multiples of 16 bytes, and coded ones hold whole scale groups.
int inner_multiple(const GroupedMatmulShape& shape) {
  const int of_weights =
      is_coded(shape.weights) ? inner_multiple_of(shape.weights) : 16 / bytes_of(shape.element);
  return has_coded_rows(shape) ? std::lcm(of_weights, info_of(shape.row_format).hidden_multiple())
                               : of_weights;
}

// What coded rows ask of a shape.
Status check_row_format(const GroupedMatmulShape& shape) {
  if (!has_coded_rows(shape)) return Status();
  const TokenFormatInfo format = info_of(shape.row_format);
  if (format.scale == ScaleType::kNone)
    return invalid_argument("row_format: there is no token format %d", static_cast<int>(shape.row_format));
  if (shape.element != MatmulElement::kBF16)
    return invalid_argument("row_format: %s needs element bf16, not %s", format.name,
                            to_string(shape.element));
  if (shape.group_capacity % format.row_alignment != 0)
    return invalid_argument("group_capacity: %" PRId64 " must be a multiple of %u with row_format %s",
                            shape.group_capacity, format.row_alignment, format.name);
  return Status();
}

Status check_output(const GroupedMatmulShape& shape) {
  if (shape.output == MatmulOutput::kFP8 &&
      (shape.activation == Activation::kNone || shape.element != MatmulElement::kFP8))
    return invalid_argument("output: fp8 needs an activation and element fp8, not activation %s and %s",
                            to_string(shape.activation), to_string(shape.element));
  if (shape.output == MatmulOutput::kFP8Rows && shape.activation != Activation::kNone)
    return invalid_argument("output: fp8-rows needs activation none, not %s", to_string(shape.activation));
  if (shape.output == MatmulOutput::kFP8Rows && has_coded_rows(shape))
    return invalid_argument("output: %s needs row_format bf16, not %s", to_string(shape.output),
                            to_string(shape.row_format));
  if (shape.output == MatmulOutput::kFP8Rows && is_coded(shape.weights))
    return invalid_argument("output: fp8-rows needs weights as-rows, not %s", to_string(shape.weights));
  return Status();
}

Status check_shape(const GroupedMatmulShape& shape) {
  if (shape.num_groups < 1) return invalid_argument("num_groups: %d must be at least 1", shape.num_groups);
  if (shape.num_experts < 0)
    return invalid_argument("num_experts: %d must not be negative", shape.num_experts);
  if (is_coded(shape.weights) && shape.element != MatmulElement::kBF16)
    return invalid_argument("weights: %s needs element bf16, not %s", to_string(shape.weights),
                            to_string(shape.element));
  SWITCHYARD_RETURN_IF_ERROR(check_row_format(shape));
  if (shape.inner < inner_multiple(shape) || shape.inner % inner_multiple(shape) != 0)
    return invalid_argument("inner: %d must be a positive multiple of %d%s%s%s%s", shape.inner,
                            inner_multiple(shape), is_coded(shape.weights) ? " with weights " : "",
                            is_coded(shape.weights) ? to_string(shape.weights) : "",
                            has_coded_rows(shape) ? " with row_format " : "",
                            has_coded_rows(shape) ? to_string(shape.row_format) : "");
  if (shape.columns < column_multiple(shape) || shape.columns % column_multiple(shape) != 0)
    return invalid_argument("columns: %d must be a positive multiple of %d", shape.columns,
                            column_multiple(shape));
  SWITCHYARD_RETURN_IF_ERROR(check_output(shape));
  if (shape.row_scales != MatmulRowScales::kFloat && shape.element != MatmulElement::kFP8)
    return invalid_argument("row_scales: %s need element fp8, not %s",
                            shape.row_scales == MatmulRowScales::kPackedE8M0 ? "packed ones" : "those by row",
                            to_string(shape.element));
  if (shape.max_rows < 0 || shape.max_rows > INT32_MAX)
    return invalid_argument("max_rows: %" PRId64 " must be 0..%d", shape.max_rows, INT32_MAX);
  if (shape.group_capacity < 0 || shape.group_capacity * shape.num_groups > shape.max_rows)
    return invalid_argument("group_capacity: %" PRId64 " in each of %d groups exceeds max_rows, %" PRId64,
                            shape.group_capacity, shape.num_groups, shape.max_rows);
  if (shape.prefetch_bytes < 0)
    return invalid_argument("prefetch_bytes: %" PRId64 " must not be negative", shape.prefetch_bytes);
  if (shape.num_blocks < 0) return invalid_argument("num_blocks: %d must not be negative", shape.num_blocks);
  // Places in the order of tiles are counted in 32 bits.
  constexpr int64_t kSmallestTileColumns = 128;
  const int64_t smallest_tile_rows = is_coded(shape.weights) ? 16 : 64;
  const int64_t max_row_tiles = shape.max_rows / smallest_tile_rows + shape.num_groups;
  const int64_t column_tiles = ceil_div<int64_t>(shape.columns, kSmallestTileColumns);
  if (max_row_tiles * column_tiles > INT32_MAX)
    return invalid_argument("max_rows: %" PRId64 " rows in %d groups by %d columns make more than %d tiles",
                            shape.max_rows, shape.num_groups, shape.columns, INT32_MAX);
  return Status();
}

MatmulTuning choose_tuning(const GroupedMatmulShape& shape) {
  const int64_t num_rows = shape.expected_rows_per_group;
  if (has_coded_rows(shape)) return choose_decoding_tuning(shape.weights, num_rows, shape.columns);
  if (is_coded(shape.weights)) return choose_matmul_tuning(shape.weights, num_rows);
  return choose_matmul_tuning(epilogue_of(shape), shape.element, num_rows, shape.columns, shape.inner);
}

int64_t weight_row_bytes(const GroupedMatmulShape& shape) {
  const int num_bits = is_coded(shape.weights) ? code_bits_of(shape.weights) : 8 * bytes_of(shape.element);
  return int64_t{shape.inner} * num_bits / 8;
}
uint64_t weight_bytes(const GroupedMatmulShape& shape) {
  return static_cast<uint64_t>(int64_t{shape.num_experts} * shape.columns * weight_row_bytes(shape));
}

// The tensor is described in pairs of bytes.
TensorShape matrix_of(const void* base, int64_t row_bytes, int64_t heads, int64_t rows) {
  TensorShape shape;
  shape.base = base;
  shape.columns = static_cast<uint32_t>(row_bytes / 2);
  shape.heads = static_cast<uint32_t>(heads);
  shape.rows = static_cast<uint32_t>(rows);
  shape.head_stride_bytes = static_cast<uint64_t>(row_bytes);
  shape.row_stride_bytes = shape.head_stride_bytes * shape.heads;
  return shape;
}

// Of the weights. Where gates and ups have boxes of their own, a row of the tensor map has the gates of an
// expert, and the next row the ups. (Interleaved, most rows overlap; only those two of each expert are read.)
TensorShape weights_of(const GroupedMatmulShape& shape, const void* weights) {
  const int64_t row_bytes = weight_row_bytes(shape);
  const int64_t columns = shape.columns, num_experts = shape.num_experts;
  if (shape.activation == Activation::kNone) return matrix_of(weights, row_bytes, columns, num_experts);
  if (shape.gate_layout == GateLayout::kStacked)
    return matrix_of(weights, row_bytes, columns / 2, 2 * num_experts);
  TensorShape interleaved = matrix_of(weights, row_bytes, columns / 2, num_experts * columns);
  interleaved.head_stride_bytes = 2 * static_cast<uint64_t>(row_bytes);
  interleaved.row_stride_bytes = static_cast<uint64_t>(row_bytes);
  return interleaved;
}

}  // namespace

struct GroupedMatmul::Impl {
  Rank& rank;
  GroupedMatmulShape shape;
  MatmulTuning tuning;
  // Null: there is none. If rows are decoded there is no other kernel.
  const DecodingMatmulKernel* decoding_kernel = nullptr;
  const MatmulKernel* kernel = nullptr;
  const MatmulKernel* affine_kernel = nullptr;          // for launches with a bias or with weights of rows
  const EarlyMatmulKernel* early_kernel = nullptr;      // for launches that wait for rows
  const TellingMatmulKernel* telling_kernel = nullptr;  // for launches with a completion
  uint32_t num_blocks = 0;
  Buffer<uint32_t> queue = {};
  bool uses_callers_streams = false;

  Status find_kernels(Target target);
  Status load_kernels() const;
  uint32_t cluster_blocks() const { return kernel != nullptr ? kernel->cluster_blocks : 1; }
  Status check_tensors(const GroupedMatmulTensors& tensors) const;
  Status check_tensor_scales(const GroupedMatmulTensors& tensors) const;
  Status check_epilogue(const GroupedMatmulTensors& tensors) const;
  Status check_readiness(const GroupedMatmulTensors& tensors) const;
  Status check_completion(const GroupedMatmulTensors& tensors) const;
  MatmulSettings settings_of(const GroupedMatmulTensors& tensors) const;
  RowCodes row_codes_of(const GroupedMatmulTensors& tensors) const;
};

GroupedMatmul::GroupedMatmul(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GroupedMatmul::~GroupedMatmul() {
  // What is freed now may be in use on streams that the rank does not know.
  if (impl_->uses_callers_streams) device_of(impl_->rank).drain_all();
}

const GroupedMatmulShape& GroupedMatmul::shape() const { return impl_->shape; }
const MatmulTuning& GroupedMatmul::tuning() const { return impl_->tuning; }
uint32_t GroupedMatmul::num_blocks() const { return impl_->num_blocks; }

Result<std::unique_ptr<GroupedMatmul>> GroupedMatmul::create(Rank& rank, const GroupedMatmulShape& given) {
  SWITCHYARD_RETURN_IF_ERROR(check_shape(given));
  SWITCHYARD_RETURN_IF_ERROR(device_of(rank).check_matrix_unit());
  GroupedMatmulShape shape = given;
  if (shape.num_experts == 0) shape.num_experts = shape.num_groups;
  if (shape.expected_rows_per_group == 0)
    shape.expected_rows_per_group = ceil_div<int64_t>(shape.max_rows, shape.num_groups);
  const uint32_t budget =
      static_cast<uint32_t>(shape.num_blocks > 0 ? shape.num_blocks : device_of(rank).num_multiprocessors());
  MatmulTuning chosen = choose_tuning(shape);
  if (budget == 1) chosen.sharing = MatmulSharing::kNone;
  std::unique_ptr<Impl> impl(new Impl{rank, shape, shape.tuning.value_or(chosen)});
  SWITCHYARD_RETURN_IF_ERROR(impl->find_kernels(device_of(rank).target()));
  if (budget < impl->cluster_blocks())
    return invalid_argument("num_blocks: %u must be at least %u for the matmul kernel %s", budget,
                            impl->cluster_blocks(), to_string(impl->tuning).c_str());
  impl->num_blocks = budget - budget % impl->cluster_blocks();
  const DeviceScope active = device_of(rank).activate();
  SWITCHYARD_RETURN_IF_ERROR(active.status());
  Result<Buffer<uint32_t>> queue = rank.allocate<uint32_t>(1);
  if (!queue.ok()) return queue.status();
  impl->queue = std::move(queue).value();
  SWITCHYARD_RETURN_IF_ERROR(impl->load_kernels());
  return std::unique_ptr<GroupedMatmul>(new GroupedMatmul(std::move(impl)));
}

Status GroupedMatmul::Impl::find_kernels(Target target) {
  if (tuning.element != shape.element)
    return invalid_argument("tuning: %s is not one of element %s", to_string(tuning).c_str(),
                            to_string(shape.element));
  if (tuning.weights != shape.weights)
    return invalid_argument("tuning: %s is not one of weights %s", to_string(tuning).c_str(),
                            to_string(shape.weights));
  const bool is_gated = shape.activation != Activation::kNone;
  if (has_coded_rows(shape)) {
    decoding_kernel =
        decoding_matmul_kernel(target, is_gated ? MatmulEpilogue::kGated : MatmulEpilogue::kAffine, tuning);
    if (decoding_kernel != nullptr) return Status();
    return invalid_argument("tuning: there is no matmul kernel %s with row_format %s",
                            to_string(tuning).c_str(), to_string(shape.row_format));
  }
  const MatmulEpilogue epilogue = epilogue_of(shape);
  kernel = matmul_kernels(target, epilogue).find(tuning);
  if (kernel == nullptr)
    return invalid_argument("tuning: there is no matmul kernel %s%s", to_string(tuning).c_str(),
                            epilogue == MatmulEpilogue::kAffineFP8 ? " that writes rows of fp8"
                            : is_gated                             ? " with an activation"
                                                                   : "");
  const bool is_plain = epilogue == MatmulEpilogue::kPlain;
  affine_kernel = is_plain ? matmul_kernels(target, MatmulEpilogue::kAffine).find(tuning) : kernel;
  if (epilogue == early_epilogue(shape.element)) early_kernel = early_matmul_kernel(target, tuning);
  if (is_plain) telling_kernel = telling_matmul_kernel(target, tuning);
  return Status();
}

Status GroupedMatmul::Impl::load_kernels() const {
  if (decoding_kernel != nullptr) return decoding_kernel->load();
  SWITCHYARD_RETURN_IF_ERROR(kernel->load());
  if (affine_kernel != nullptr) SWITCHYARD_RETURN_IF_ERROR(affine_kernel->load());
  if (early_kernel != nullptr) SWITCHYARD_RETURN_IF_ERROR(early_kernel->load());
  return telling_kernel != nullptr ? telling_kernel->load() : Status();
}

Status GroupedMatmul::Impl::check_tensors(const GroupedMatmulTensors& tensors) const {
  const bool has_row_scales = shape.element == MatmulElement::kFP8 || has_coded_rows(shape),
             has_weight_scales = shape.element == MatmulElement::kFP8 || is_coded(shape.weights);
  struct Needed {
    const char* name;
    const void* tensor;
    bool is_needed;
    size_t alignment;
  };
  const Needed all_needed[] = {{"rows", tensors.rows, true, sizeof(Vec16)},
                               {"weights", tensors.weights, true, sizeof(Vec16)},
                               {"output", tensors.output, true, sizeof(Vec16)},
                               {"row_scales", tensors.row_scales, has_row_scales, sizeof(float)},
                               {"weight_scales", tensors.weight_scales, has_weight_scales, sizeof(float)}};
  for (const auto& [name, tensor, is_needed, alignment] : all_needed) {
    if ((tensor != nullptr) != is_needed)
      return invalid_argument("%s: must%s be null with element %s, row_format %s and weights %s", name,
                              is_needed ? " not" : "", to_string(shape.element), to_string(shape.row_format),
                              to_string(shape.weights));
    if (reinterpret_cast<uintptr_t>(tensor) % alignment != 0)
      return invalid_argument("%s: %p must be aligned to %zu bytes", name, tensor, alignment);
  }
  SWITCHYARD_RETURN_IF_ERROR(check_tensor_scales(tensors));
  if (shape.group_capacity == 0 && tensors.row_offsets == nullptr)
    return invalid_argument("row_offsets: must not be null where group_capacity is 0");
  if (shape.group_capacity > 0 && (tensors.row_offsets != nullptr || tensors.row_counts == nullptr))
    return invalid_argument("row_counts: with group_capacity there are counts, and no row_offsets");
  if (tensors.readiness != nullptr) SWITCHYARD_RETURN_IF_ERROR(check_readiness(tensors));
  if (tensors.completion != nullptr) SWITCHYARD_RETURN_IF_ERROR(check_completion(tensors));
  return check_epilogue(tensors);
}

Status GroupedMatmul::Impl::check_tensor_scales(const GroupedMatmulTensors& tensors) const {
  if (!is_coded(shape.weights) && tensors.weight_tensor_scales != nullptr)
    return invalid_argument("weight_tensor_scales: must be null with weights %s, which have none",
                            to_string(shape.weights));
  if (reinterpret_cast<uintptr_t>(tensors.weight_tensor_scales) % sizeof(float) != 0)
    return invalid_argument("weight_tensor_scales: %p must be aligned to %zu bytes",
                            static_cast<const void*>(tensors.weight_tensor_scales), sizeof(float));
  if (!has_coded_rows(shape) || !info_of(shape.row_format).has_tensor_scale()) {
    const char* given = tensors.row_tensor_scale != 1                ? "row_tensor_scale"
                        : tensors.device_row_tensor_scale != nullptr ? "device_row_tensor_scale"
                        : tensors.row_tensor_scales != nullptr       ? "row_tensor_scales"
                                                                     : nullptr;
    if (given != nullptr)
      return invalid_argument("%s: there is none with row_format %s", given, to_string(shape.row_format));
  }
  for (const float* scales : {tensors.row_tensor_scales, tensors.device_row_tensor_scale})
    if (reinterpret_cast<uintptr_t>(scales) % sizeof(float) != 0)
      return invalid_argument(
          "%s: %p must be aligned to %zu bytes",
          scales == tensors.row_tensor_scales ? "row_tensor_scales" : "device_row_tensor_scale",
          static_cast<const void*>(scales), sizeof(float));
  const int max_scales = tensors.row_tensor_scales != nullptr ? shape.num_groups : 0;
  if (tensors.num_row_tensor_scales < 0 || tensors.num_row_tensor_scales > max_scales)
    return invalid_argument("num_row_tensor_scales: %d must be 0..%d%s", tensors.num_row_tensor_scales,
                            max_scales, max_scales == 0 ? " without row_tensor_scales" : "");
  return Status();
}

Status GroupedMatmul::Impl::check_readiness(const GroupedMatmulTensors& tensors) const {
  if (early_kernel == nullptr)
    return invalid_argument(
        "readiness: must be null with element %s, row_format %s, weights %s, activation %s and output %s; "
        "matmuls with an activation whose output has the element of the rows start before all rows are there",
        to_string(shape.element), to_string(shape.row_format), to_string(shape.weights),
        to_string(shape.activation), to_string(shape.output));
  if (tensors.readiness->n_local_experts > shape.num_groups)
    return invalid_argument("readiness: is of %d experts, and num_groups is %d",
                            tensors.readiness->n_local_experts, shape.num_groups);
  if (tensors.row_counts != nullptr)
    return invalid_argument(
        "readiness: must be null with row_counts, and so with group_capacity: dispatch_wait writes them");
  return Status();
}

Status GroupedMatmul::Impl::check_completion(const GroupedMatmulTensors& tensors) const {
  if (telling_kernel == nullptr)
    return invalid_argument(
        "completion: must be null with row_format %s, weights %s, activation %s, output %s and tuning %s; "
        "there is no such kernel",
        to_string(shape.row_format), to_string(shape.weights), to_string(shape.activation),
        to_string(shape.output), to_string(tuning).c_str());
  if (tensors.completion->num_groups != shape.num_groups)
    return invalid_argument("completion: is of %d groups, and num_groups is %d",
                            tensors.completion->num_groups, shape.num_groups);
  if (tensors.expert_ids != nullptr)
    return invalid_argument("completion: must be null with expert_ids; group g is that of expert g");
  return Status();
}

Status GroupedMatmul::Impl::check_epilogue(const GroupedMatmulTensors& tensors) const {
  if (tensors.row_weights != nullptr && shape.activation != Activation::kNone)
    return invalid_argument("row_weights: must be null with an activation (%s)", to_string(shape.activation));
  if ((tensors.bias != nullptr || tensors.row_weights != nullptr) && affine_kernel == nullptr &&
      decoding_kernel == nullptr)
    return invalid_argument("%s: must be null, for there is no such matmul kernel %s",
                            tensors.bias != nullptr ? "bias" : "row_weights", to_string(tuning).c_str());
  if (shape.output == MatmulOutput::kFP8 && tensors.output_scales == nullptr)
    return invalid_argument("output_scales: must not be null where the output is fp8");
  return Status();
}

MatmulSettings GroupedMatmul::Impl::settings_of(const GroupedMatmulTensors& tensors) const {
  const uint32_t max_rows = static_cast<uint32_t>(shape.max_rows);
  MatmulSettings settings;
  settings.groups = {tensors.row_offsets, tensors.row_counts, static_cast<uint32_t>(shape.group_capacity),
                     static_cast<uint32_t>(shape.num_groups), max_rows};
  settings.expert_ids = tensors.expert_ids;
  settings.row_scales = static_cast<const uint32_t*>(tensors.row_scales);
  settings.row_scale_kind = shape.row_scales;
  const uint32_t scale_stride = TransposedScaleLayout{0, max_rows}.stride();
  const bool is_by_row = shape.row_scales == MatmulRowScales::kFloatByRow;
  settings.row_scale_row_stride =
      is_by_row ? ceil_div(static_cast<uint32_t>(shape.inner), uint32_t{kMatmulScaleGroup}) : 1;
  settings.row_scale_word_stride = is_by_row ? 1 : scale_stride;
  settings.weight_scales = tensors.weight_scales;
  settings.num_experts = static_cast<uint32_t>(shape.num_experts);
  settings.inner = static_cast<uint32_t>(shape.inner);
  settings.columns = static_cast<uint32_t>(shape.columns);
  settings.output = static_cast<bf16*>(tensors.output);
  settings.queue = const_cast<uint32_t*>(queue.data());
  settings.bias = tensors.bias;
  settings.row_weights = tensors.row_weights;
  settings.activation = numbers_of(shape.activation);
  settings.gate_layout = shape.gate_layout;
  settings.output_scales = tensors.output_scales;
  settings.output_scale_stride = scale_stride;
  settings.weight_tensor_scales = tensors.weight_tensor_scales;
  settings.prefetched =
      first_of(tensors.weights, weight_bytes(shape), static_cast<uint64_t>(shape.prefetch_bytes));
  return settings;
}

RowCodes GroupedMatmul::Impl::row_codes_of(const GroupedMatmulTensors& tensors) const {
  RowCodes codes;
  codes.format = shape.row_format;
  codes.group_tensor_scales = tensors.row_tensor_scales;
  if (tensors.num_row_tensor_scales > 0)
    codes.first_scaled_group = static_cast<uint32_t>(shape.num_groups - tensors.num_row_tensor_scales);
  // Kernels only read what a format writes.
  codes.tensors.rows = static_cast<std::byte*>(const_cast<void*>(tensors.rows));
  codes.tensors.scales = static_cast<std::byte*>(const_cast<void*>(tensors.row_scales));
  codes.tensors.max_rows = static_cast<uint32_t>(shape.max_rows);
  codes.tensors.tensor_scale = tensors.row_tensor_scale;
  codes.tensors.device_tensor_scale = tensors.device_row_tensor_scale;
  return codes;
}

Status GroupedMatmul::run(const GroupedMatmulTensors& tensors, Stream stream) {
  const GroupedMatmulShape& shape = impl_->shape;
  if (shape.max_rows == 0) return Status();
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_tensors(tensors));
  const Result<StreamHandle> handle = impl_->rank.handle_of(stream);
  if (!handle.ok()) return handle.status();
  impl_->uses_callers_streams |= stream.is_callers();
  const DeviceScope active = device_of(impl_->rank).activate();
  SWITCHYARD_RETURN_IF_ERROR(active.status());
  const bool is_affine = tensors.bias != nullptr || tensors.row_weights != nullptr;
  const int64_t row_bytes = int64_t{shape.inner} * bytes_of(shape.element);
  const MatmulTensorShapes shapes{matrix_of(tensors.rows, row_bytes, shape.max_rows, 1),
                                  weights_of(shape, tensors.weights)};
  if (impl_->decoding_kernel != nullptr)
    return impl_->decoding_kernel->launch(impl_->num_blocks, handle.value(), shapes,
                                          impl_->settings_of(tensors), impl_->row_codes_of(tensors));
  if (tensors.readiness != nullptr)
    return impl_->early_kernel->launch(impl_->num_blocks, handle.value(), shapes, impl_->settings_of(tensors),
                                       *tensors.readiness);
  if (tensors.completion != nullptr)
    return impl_->telling_kernel->launch(impl_->num_blocks, handle.value(), shapes,
                                         impl_->settings_of(tensors), *tensors.completion);
  return (is_affine ? impl_->affine_kernel : impl_->kernel)
      ->launch(impl_->num_blocks, handle.value(), shapes, impl_->settings_of(tensors));
}

}  // namespace switchyard
