// The launch of recode_rows, for the target this file is compiled for.
#include "launch_recode_rows.hpp"
#include "switchyard/detail/gemm/recode_rows.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {
namespace {

template <typename Scales>
EncodedSource<Scales> encoded(const RecodeArguments& arguments, const Scales& scales) {
  return {reinterpret_cast<const uint8_t*>(arguments.input.rows), arguments.hidden, scales};
}

// Calls with_source(source) with that of the arguments' format.
template <typename WithSource>
Status choose_source(const RecodeArguments& arguments, WithSource with_source) {
  const FormatTensors& input = arguments.input;
  const auto transposed = [&](auto element) {
    return with_source(encoded(
        arguments, TransposedScaleSource<decltype(element)>{reinterpret_cast<const float*>(input.scales),
                                                            {arguments.hidden / 128, input.max_rows}}));
  };
  const auto by_row = [&](auto element) {
    return with_source(
        encoded(arguments, RowScaleSource<decltype(element)>{reinterpret_cast<const e8m0*>(input.scales),
                                                             arguments.hidden / 32}));
  };
  const auto tiled = [&](auto element) {
    return with_source(
        encoded(arguments, TiledScaleSource<decltype(element)>{reinterpret_cast<const uint8_t*>(input.scales),
                                                               {arguments.hidden / 32}}));
  };
  switch (arguments.format) {
    case TokenFormatKind::kBF16:
      break;
    case TokenFormatKind::kFP8:
      return transposed(e4m3{});
    case TokenFormatKind::kFP8E5M2:
      return transposed(e5m2{});
    case TokenFormatKind::kMXFP8:
      return by_row(e4m3{});
    case TokenFormatKind::kMXFP8E5M2:
      return by_row(e5m2{});
    case TokenFormatKind::kMXFP6:
      return by_row(e2m3{});
    case TokenFormatKind::kMXFP6E3M2:
      return by_row(e3m2{});
    case TokenFormatKind::kMXFP4:
      return by_row(e2m1{});
    case TokenFormatKind::kNVFP4:
    case TokenFormatKind::kNVFP4ByExpert:
      return with_source(encoded(arguments, NVFP4ScaleSource{reinterpret_cast<const uint8_t*>(input.scales),
                                                             {arguments.hidden / 16},
                                                             input.tensor_scale,
                                                             arguments.group_tensor_scales,
                                                             arguments.row_offsets,
                                                             arguments.num_groups}));
    case TokenFormatKind::kMXFP8Tiled:
      return tiled(e4m3{});
    case TokenFormatKind::kMXFP4Tiled:
      return tiled(e2m1{});
  }
  return with_source(BF16Source{reinterpret_cast<const bf16*>(input.rows), arguments.hidden});
}

}  // namespace

Status launch_recode_rows(const LaunchShape& shape, StreamHandle stream, const RecodeArguments& arguments) {
  const int multiple = arguments.output_format == CombineFormat::kFP8 ? 128 : kElementsPerLane;
  if (arguments.hidden % multiple != 0)
    return invalid_argument("recode_rows: hidden is %d; it must be a multiple of %d", arguments.hidden,
                            multiple);
  return choose_source(arguments, [&]<typename Source>(const Source& source) {
    return target::launch("recode_rows", recode_rows_kernel<Source>, shape, stream,
                          RecodeParams<Source>{arguments, source});
  });
}

#if defined(__CUDACC__)
Status load_recode_rows_kernels() {
  RecodeArguments arguments{};
  for (int format = 0; format < kNumTokenFormats; ++format) {
    arguments.format = static_cast<TokenFormatKind>(format);
    SWITCHYARD_RETURN_IF_ERROR(choose_source(arguments, []<typename Source>(const Source&) {
      const target::ResidentKernel kernels[] = {{&recode_rows_kernel<Source>, 0}};
      return target::max_resident_blocks(kernels, kWarpSize).status();
    }));
  }
  return Status();
}
#endif

}  // namespace switchyard::inline SWITCHYARD_TARGET
