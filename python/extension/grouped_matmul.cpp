#include "switchyard/grouped_matmul.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include "formats.hpp"
#include "kernels.hpp"
#include "matmul_arguments.hpp"
#include "options.hpp"

namespace switchyard::python {
namespace {

constexpr Choice<MatmulElement> kElementChoices[] = {{"bf16", MatmulElement::kBF16},
                                                     {"fp8", MatmulElement::kFP8}};
constexpr Choice<MatmulOutput> kOutputs[] = {
    {"bf16", MatmulOutput::kBF16}, {"fp8", MatmulOutput::kFP8}, {"fp8-rows", MatmulOutput::kFP8Rows}};
constexpr Choice<MatmulRowScales> kRowScales[] = {{"float32", MatmulRowScales::kFloat},
                                                  {"packed-e8m0", MatmulRowScales::kPackedE8M0},
                                                  {"float32-by-row", MatmulRowScales::kFloatByRow}};

using MatmulHandle = KernelHandle<GroupedMatmul>;

std::unique_ptr<MatmulHandle> create(std::shared_ptr<Session> session, int rank, int num_groups, int inner,
                                     int columns, int64_t max_rows, int num_experts,
                                     const std::string& element, const std::string& row_scale_format,
                                     const std::string& row_format, const std::string& weight_format,
                                     const std::string& activation, const std::string& gate_layout,
                                     const std::string& output, int64_t group_capacity,
                                     int64_t expected_rows_per_group, int num_blocks,
                                     int64_t prefetch_bytes) {
  const GroupedMatmulShape shape{.num_groups = num_groups,
                                 .num_experts = num_experts,
                                 .element = parse(kElementChoices, "element", element),
                                 .row_scales = parse(kRowScales, "row_scale_format", row_scale_format),
                                 .weights = parse(kWeightFormats, "weight_format", weight_format),
                                 .row_format = parse(kFormats, "row_format", row_format),
                                 .inner = inner,
                                 .columns = columns,
                                 .activation = parse(kActivations, "activation", activation),
                                 .gate_layout = parse(kGateLayouts, "gate_layout", gate_layout),
                                 .output = parse(kOutputs, "output", output),
                                 .max_rows = max_rows,
                                 .group_capacity = group_capacity,
                                 .expected_rows_per_group = expected_rows_per_group,
                                 .num_blocks = num_blocks,
                                 .tuning = {},
                                 .prefetch_bytes = prefetch_bytes};
  // By the names of the arguments, which the library has others for.
  const bool is_bf16 = shape.element == MatmulElement::kBF16;
  if (is_coded(shape.weights) && !is_bf16)
    raise(invalid_argument("weight_format is '%s'; element must be 'bf16' with it", weight_format.c_str()));
  if (shape.row_scales != MatmulRowScales::kFloat && is_bf16)
    raise(invalid_argument("row_scale_format is '%s'; element must be 'fp8' with it",
                           row_scale_format.c_str()));
  if (shape.row_format != TokenFormatKind::kBF16 && !is_bf16)
    raise(invalid_argument("row_format is '%s'; element must be 'bf16' with it", row_format.c_str()));
  return make_handle<GroupedMatmul>("GroupedMatmul", std::move(session), rank, shape);
}

// Where the groups are, as the kernel reads it.
void add_groups(const MatmulHandle& handle, Arguments& arguments, nb::handle row_offsets,
                nb::handle row_counts, nb::handle expert_ids, GroupedMatmulTensors& tensors) {
  const GroupedMatmulShape& shape = handle.kernel->shape();
  const Session& session = *handle.session;
  const int64_t groups = shape.num_groups;
  tensors.row_counts = checked_pointer<uint32_t>(
      arguments, session, row_counts, "row_counts", {kUInt32, {groups}, "(num_groups,)"},
      shape.group_capacity != 0 ? shape.group_capacity : shape.max_rows);
  tensors.row_offsets =
      checked_pointer<uint32_t>(arguments, session, row_offsets, "row_offsets",
                                {kUInt32, {groups + 1}, "(num_groups + 1,)"}, shape.max_rows, true);
  tensors.expert_ids = checked_pointer<int32_t>(arguments, session, expert_ids, "expert_ids",
                                                {kInt32, {groups}, "(num_groups,)"}, shape.num_experts - 1);
}

// In which dispatch writes such rows.
TokenFormatKind format_of(const GroupedMatmulShape& shape) {
  if (shape.element == MatmulElement::kBF16) return shape.row_format;
  switch (shape.row_scales) {
    case MatmulRowScales::kFloat:
      return TokenFormatKind::kFP8;
    case MatmulRowScales::kPackedE8M0:
      return TokenFormatKind::kFP8UE8M0;
    case MatmulRowScales::kFloatByRow:
      return TokenFormatKind::kFP8ByRow;
  }
  return TokenFormatKind::kFP8;
}

const char* scale_shape_name(ScalePlacement placement) {
  switch (placement) {
    case ScalePlacement::kTransposed:
      return "(ceil(inner / 128), max_rows rounded up to 4)";
    case ScalePlacement::kPacked:
      return "(ceil(inner / 512), max_rows rounded up to 4)";
    case ScalePlacement::kByRow:
      return "(max_rows, scales of a row)";
    case ScalePlacement::kTiled:
      return "(bytes of all scale tiles,)";
    case ScalePlacement::kNone:
      break;
  }
  return "None";
}

// The rows and their scales, as dispatch writes them.
void add_rows(const GroupedMatmulShape& shape, Arguments& arguments, nb::handle rows, nb::handle row_scales,
              GroupedMatmulTensors& tensors) {
  const TokenFormatInfo format = info_of(format_of(shape));
  const auto max_rows = static_cast<uint32_t>(shape.max_rows);
  const ArrayType codes = rows_in(format, max_rows, shape.inner);
  tensors.rows = arguments.pointer<const void>(
      rows, "rows",
      {codes.element,
       {codes.shape.begin(), codes.shape.end()},
       format.num_bits < 8 ? "(max_rows, bytes of the codes of a row)" : "(max_rows, inner)"});
  if (row_scales.is_none()) return;
  if (format.scale == ScaleType::kNone)
    raise(invalid_argument("run: row_scales must be None: rows are %s, which has none", format.name));
  // In fp8 the last scale of a row may be of fewer elements.
  const int whole_inner = static_cast<int>(ceil_of(shape.inner, format.group_size)) * format.group_size;
  const ArrayType scales = scales_in(format, max_rows, whole_inner);
  tensors.row_scales = arguments.pointer<const void>(
      row_scales, "row_scales",
      {scales.element, {scales.shape.begin(), scales.shape.end()}, scale_shape_name(format.placement)});
}

// Of rows in NVFP4: a number, or an array that has it in the rank's memory, and those of the last groups.
void add_row_tensor_scales(const GroupedMatmulShape& shape, Arguments& arguments, nb::handle scale,
                           nb::handle scales_of_groups, GroupedMatmulTensors& tensors) {
  if (scale.is_none() && scales_of_groups.is_none()) return;
  if (!info_of(format_of(shape)).has_tensor_scale())
    raise(invalid_argument("run: %s must be None: rows are %s, which has no tensor scale",
                           scale.is_none() ? "row_tensor_scales" : "row_tensor_scale",
                           info_of(format_of(shape)).name));
  if (nb::hasattr(scale, "__dlpack__") || nb::hasattr(scale, "__cuda_array_interface__")) {
    tensors.device_row_tensor_scale =
        arguments.pointer<const float>(scale, "row_tensor_scale", {kFloat32, {1}, "(1,)"});
  } else if (!scale.is_none() && !nb::try_cast(scale, tensors.row_tensor_scale)) {
    PyErr_Format(PyExc_TypeError, "run: row_tensor_scale is a %s; it must be a number or an array",
                 Py_TYPE(scale.ptr())->tp_name);
    throw nb::python_error();
  }
  if (scales_of_groups.is_none()) return;
  const Array array =
      arguments.array(scales_of_groups, "row_tensor_scales", {kFloat32, {-1}, "(at most num_groups,)"});
  if (array.shape[0] < 1 || array.shape[0] > shape.num_groups)
    raise(
        invalid_argument("run: row_tensor_scales has shape (%lld,); it must have 1..%d (num_groups) elements",
                         static_cast<long long>(array.shape[0]), shape.num_groups));
  tensors.row_tensor_scales = static_cast<const float*>(array.data);
  tensors.num_row_tensor_scales = static_cast<int>(array.shape[0]);
}

constexpr WeightNames kNames{.weights = "weights",
                             .scales = "weight_scales",
                             .tensor_scales = "weight_tensor_scales",
                             .bias = "bias",
                             .experts = "num_experts",
                             .columns = "columns",
                             .inner = "inner"};

nb::any run(MatmulHandle& handle, nb::handle rows, nb::handle weights, nb::handle row_offsets, nb::object out,
            nb::handle row_counts, nb::handle expert_ids, nb::handle row_scales, nb::handle row_tensor_scale,
            nb::handle row_tensor_scales, nb::handle weight_scales, nb::handle weight_tensor_scales,
            nb::handle bias, nb::handle row_weights, nb::handle output_scales, nb::handle stream) {
  Session& session = *handle.session;
  (void)session.rank("run", handle.rank);
  const GroupedMatmulShape& shape = handle.kernel->shape();
  Arguments arguments("run", session, handle.rank, stream);
  const bool has_fp8_rows = shape.output == MatmulOutput::kFP8Rows;
  const int64_t columns = shape.columns;
  const int64_t out_columns = has_fp8_rows ? combine_row_bytes(CombineFormat::kFP8, shape.columns)
                              : shape.activation == Activation::kNone ? columns
                                                                      : columns / 2;
  const int64_t scale_rows = ceil_of(shape.max_rows, 4) * 4;
  const Element& out_element = has_fp8_rows ? kUInt8 : shape.output == MatmulOutput::kFP8 ? kE4M3 : kBFloat16;
  arguments.make_output(out, "out", {shape.max_rows, out_columns}, out_element);
  GroupedMatmulTensors tensors;
  add_rows(shape, arguments, rows, row_scales, tensors);
  add_row_tensor_scales(shape, arguments, row_tensor_scale, row_tensor_scales, tensors);
  const Weights given =
      weights_of(arguments, {shape.element, shape.weights, shape.num_experts, shape.columns, shape.inner},
                 kNames, {weights, weight_scales, weight_tensor_scales, bias});
  tensors.weights = given.weights;
  tensors.weight_scales = given.scales;
  tensors.weight_tensor_scales = given.tensor_scales;
  tensors.bias = given.bias;
  tensors.output = arguments.pointer<void>(
      out, "out",
      {out_element,
       {shape.max_rows, out_columns},
       has_fp8_rows ? "(max_rows, combine_message_bytes)" : "(max_rows, output columns)",
       Access::kWrite});
  add_groups(handle, arguments, row_offsets, row_counts, expert_ids, tensors);
  tensors.row_weights =
      arguments.pointer<const float>(row_weights, "row_weights", {kFloat32, {shape.max_rows}, "(max_rows,)"});
  tensors.output_scales = arguments.pointer<float>(output_scales, "output_scales",
                                                   {kFloat32,
                                                    {ceil_of(out_columns, 128), scale_rows},
                                                    "(ceil(output columns / 128), max_rows rounded up to 4)",
                                                    Access::kWrite});
  return run_kernel(handle, tensors, arguments, out);
}

}  // namespace

void bind_grouped_matmul(nb::module_& module) {
  nb::class_<MatmulHandle>(
      module, "GroupedMatmul",
      "A matmul over the groups of rows that dispatch writes, of one shape on one rank: "
      "the rows of each group times the "
      "weights of its expert. element is 'bf16' or 'fp8', activation 'none', 'silu', "
      "'gelu' or 'clamped-swiglu', "
      "gate_layout 'stacked' or 'interleaved', output 'bf16', 'fp8' or 'fp8-rows': bytes, as "
      "combine takes them in fp8 in the direct protocol. row_scale_format, of fp8, "
      "is 'float32', 'packed-e8m0' or 'float32-by-row', as dispatch in fp8, fp8-ue8m0 or fp8-by-row "
      "writes scales. row_format, with element 'bf16', is any dispatch_format: the kernel decodes rows, "
      "which are given as dispatch writes them, with row_scales. "
      "weight_format is 'as-rows', or, with element 'bf16', 'mxfp4', 'nvfp4' or 'mxfp8': codes, "
      "of 4 bits two in a byte of uint8, with scales of float8_e8m0fnu, of nvfp4 "
      "float8_e4m3fn, or either as uint8.")
      .def(nb::new_(&create), nb::arg("world"), nb::arg("rank"), nb::kw_only(), nb::arg("num_groups"),
           nb::arg("inner"), nb::arg("columns"), nb::arg("max_rows"), nb::arg("num_experts") = 0,
           nb::arg("element") = "bf16", nb::arg("row_scale_format") = "float32",
           nb::arg("row_format") = "bf16", nb::arg("weight_format") = "as-rows",
           nb::arg("activation") = "none", nb::arg("gate_layout") = "stacked", nb::arg("output") = "bf16",
           nb::arg("group_capacity") = 0, nb::arg("expected_rows_per_group") = 0, nb::arg("num_blocks") = 0,
           nb::arg("prefetch_bytes") = 0)
      .def(
          "run", &run, nb::arg("rows").none(), nb::arg("weights").none(), nb::arg("row_offsets") = nb::none(),
          nb::kw_only(), nb::arg("out") = nb::none(), nb::arg("row_counts") = nb::none(),
          nb::arg("expert_ids") = nb::none(), nb::arg("row_scales") = nb::none(),
          nb::arg("row_tensor_scale") = nb::none(), nb::arg("row_tensor_scales") = nb::none(),
          nb::arg("weight_scales") = nb::none(), nb::arg("weight_tensor_scales") = nb::none(),
          nb::arg("bias") = nb::none(), nb::arg("row_weights") = nb::none(),
          nb::arg("output_scales") = nb::none(), nb::arg("stream") = nb::none(),
          nb::sig(SWITCHYARD_OUT_SIGNATURES(
              "run", "rows: object | None, weights: object | None, row_offsets: object | None = None",
              "row_counts: object | None = None, expert_ids: object | None = None, row_scales: object | "
              "None = None, row_tensor_scale: object | None = None, row_tensor_scales: object | None = "
              "None, "
              "weight_scales: object | None = None, weight_tensor_scales: object | None = None, bias: "
              "object | None = "
              "None, row_weights: object | None = None, output_scales: object | None = None, stream: object "
              "| None = "
              "None")),
          "Enqueues the matmul on the stream, or the rank's, and returns out, (max_rows, columns); rows of "
          "no group "
          "are not "
          "written. row_offsets, row_counts and expert_ids are what DispatchedRows has; those of a GPU, and "
          "a "
          "Tensor's, are taken on trust. row_tensor_scale, of rows in NVFP4, is a number or an array of one; "
          "row_tensor_scales has those of the last groups, as expert_tensor_scales of DispatchedRows.");
}

}  // namespace switchyard::python
