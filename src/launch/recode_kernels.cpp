// The launch of recode_rows, for the target this file is compiled for.
#include "launch_recode_rows.hpp"
#include "switchyard/detail/format/all_formats.hpp"
#include "switchyard/detail/format/visit_kind.hpp"
#include "switchyard/detail/gemm/recode_rows.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {
namespace {

// Calls with_source(source) with that of the call' format.
template <typename WithSource>
Status choose_source(const RecodeCall& call, const WithSource& with_source) {
  const RowGroups groups{call.num_groups, call.row_offsets, call.group_tensor_scales};
  return visit_kind(
      call.format,
      [&]<TokenFormatKind kKind>() {
        return with_source(FormatOf<kKind>::source(call.hidden, call.input, groups));
      },
      [&] {
        return invalid_argument("recode_rows: there is no token format %d", static_cast<int>(call.format));
      });
}

}  // namespace

Status launch_recode_rows(const LaunchShape& shape, StreamHandle stream, const RecodeCall& call) {
  const int multiple = call.output_format == CombineFormat::kFP8 ? 128 : kElementsPerLane;
  if (call.hidden % multiple != 0)
    return invalid_argument("recode_rows: hidden is %d; it must be a multiple of %d", call.hidden, multiple);
  return choose_source(call, [&]<typename Source>(const Source& source) {
    return target::launch("recode_rows", recode_rows_kernel<Source>, shape, stream,
                          RecodeParams<Source>{call, source});
  });
}

#if defined(__CUDACC__)
Status load_recode_rows_kernels() {
  RecodeCall call{};
  for (const TokenFormatKind format : kTokenFormatKinds) {
    call.format = format;
    SWITCHYARD_RETURN_IF_ERROR(choose_source(call, []<typename Source>(const Source&) {
      const target::ResidentKernel kernels[] = {{&recode_rows_kernel<Source>, 0}};
      return target::max_resident_blocks(kernels, kWarpSize).status();
    }));
  }
  return Status();
}
#endif

}  // namespace switchyard::inline SWITCHYARD_TARGET
