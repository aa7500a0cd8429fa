// What there is to know of a token format, for callers that allocate its rows and scales.
#include "handles.hpp"

using namespace switchyard;
using namespace switchyard::c_api;

switchyard_status switchyard_format_get_info(const char* format, int32_t hidden, uint32_t max_rows,
                                             switchyard_format_info* info) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("format", format));
    TokenFormatKind kind{};
    SWITCHYARD_RETURN_IF_ERROR(read_format("format", format, kind));
    const TokenFormatInfo of = info_of(kind);
    if (hidden < 1 || hidden % of.hidden_multiple() != 0)
      return invalid_argument("hidden is %d; format %s needs a positive multiple of %d", hidden, of.name,
                              of.hidden_multiple());
    const ScaleTensor scales = of.scale_tensor(max_rows, hidden);
    if (!scales.bytes().ok())
      return invalid_argument("max_rows is %u; their scales exceed 64 bits", max_rows);
    return write("info",
                 {.element_bits = of.num_bits,
                  .group_size = of.group_size,
                  .hidden_multiple = of.hidden_multiple(),
                  .row_alignment = static_cast<int32_t>(of.row_alignment),
                  .row_bytes = of.row_bytes(hidden),
                  .num_scales = of.num_scales(hidden),
                  .scale_element = static_cast<int32_t>(scales.element),
                  .num_scale_dimensions = scales.num_dimensions,
                  .scale_shape = {scales.shape[0], scales.shape[1]},
                  .scales_bytes = scales.bytes().value()},
                 info);
  });
}
