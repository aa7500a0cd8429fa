#include "formats.hpp"

#include <nanobind/stl/string.h>

namespace switchyard::python {
namespace {

const Element& element_of(const TokenFormatInfo& format) {
  switch (format.element) {
    case ElementType::kBF16:
      return kBFloat16;
    case ElementType::kE4M3:
      return kE4M3;
    case ElementType::kE5M2:
      return kE5M2;
    case ElementType::kE2M3:
    case ElementType::kE3M2:
    case ElementType::kE2M1:
      return kUInt8;  // packed codes
  }
  return kUInt8;
}

const Element& element_of(ScaleTensorElement element) {
  switch (element) {
    case ScaleTensorElement::kFloat:
      return kFloat32;
    case ScaleTensorElement::kE8M0:
      return kE8M0;
    case ScaleTensorElement::kWord:
      return kUInt32;
    case ScaleTensorElement::kTileByte:
      return kUInt8;
  }
  return kUInt8;
}

nb::dict to_python(TokenFormatKind kind) {
  const TokenFormatInfo info = info_of(kind);
  nb::dict result;
  result["element"] = switchyard::to_string(info.element);
  result["num_bits"] = info.num_bits;
  result["group_size"] = info.group_size;
  // As NumPy calls it.
  result["scale"] = info.scale == ScaleType::kFloat ? "float32" : switchyard::to_string(info.scale);
  result["scale_placement"] = switchyard::to_string(info.placement);
  result["row_alignment"] = info.row_alignment;
  result["hidden_multiple"] = info.hidden_multiple();
  return result;
}

}  // namespace

ArrayType rows_in(const TokenFormatInfo& format, uint32_t max_rows, int hidden) {
  const bool is_packed = format.num_bits < 8;
  return {element_of(format), {max_rows, is_packed ? format.row_bytes(hidden) : static_cast<size_t>(hidden)}};
}

ArrayType scales_in(const TokenFormatInfo& format, uint32_t max_rows, int hidden) {
  const ScaleTensor scales = format.scale_tensor(max_rows, hidden);
  return {element_of(scales.element), {scales.shape, scales.shape + scales.num_dimensions}};
}

void bind_formats(nb::module_& module) {
  module.def(
      "token_formats",
      [] {
        nb::dict formats;
        for (const TokenFormatKind kind : kTokenFormatKinds)
          formats[switchyard::to_string(kind)] = to_python(kind);
        return formats;
      },
      nb::sig("def token_formats() -> dict[str, dict[str, object]]"),
      "Returns the formats that dispatch_format may name, and what there is to know of each.");
}

}  // namespace switchyard::python
