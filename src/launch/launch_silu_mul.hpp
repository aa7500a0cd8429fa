// Instantiates SiLU-and-multiply for every output, for the target this file is compiled for.
#pragma once

#include "switchyard/detail/gemm/silu_mul.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Writer>
Status launch_silu_mul_to(const LaunchShape& shape, StreamHandle stream, const SiluMulArguments& arguments,
                          const Writer& writer) {
  if (arguments.width <= 0 || arguments.width % Writer::kWidthMultiple != 0)
    return invalid_argument("silu_mul: width is %d; %s needs a multiple of %d", arguments.width,
                            Writer::kName, Writer::kWidthMultiple);
  return target::launch("silu_mul", silu_mul_kernel<Writer>, shape, stream,
                        SiluMulParams<Writer>{arguments, writer});
}

#if defined(__CUDACC__)
template <typename... Scales>
Status load_silu_mul_kernels_of() {
  const target::ResidentKernel kernels[] = {{&silu_mul_kernel<BF16Writer>, 0},
                                            {&silu_mul_kernel<QuantizedWriter<Scales>>, 0}...};
  return target::max_resident_blocks(kernels, kWarpSize).status();
}
// Of all outputs of launch_silu_mul().
inline Status load_silu_mul_kernels() {
  return load_silu_mul_kernels_of<TransposedScales<e4m3>, TransposedScales<e5m2>, RowScales<e4m3>,
                                  RowScales<e5m2>, RowScales<e2m3>, RowScales<e3m2>, RowScales<e2m1>,
                                  TiledScales<TiledMX<e4m3>>, TiledScales<TiledMX<e5m2>>,
                                  TiledScales<TiledMX<e2m1>>, TiledScales<NVFP4<GroupTensorScales>>>();
}
#endif

inline Status launch_silu_mul(const LaunchShape& shape, StreamHandle stream,
                              const SiluMulArguments& arguments, const SiluMulDestination& to) {
  const auto launch = [&](const auto& writer) {
    return launch_silu_mul_to(shape, stream, arguments, writer);
  };
  const auto launch_quantized = [&](const auto& scales) {
    return launch(QuantizedWriter<std::decay_t<decltype(scales)>>{static_cast<uint8_t*>(to.rows), scales});
  };
  const auto blockwise = [&](auto element) {
    return launch_quantized(TransposedScales<decltype(element)>{static_cast<float*>(to.scales), to.max_rows});
  };
  const auto mx = [&](auto element) {
    return launch_quantized(RowScales<decltype(element)>{static_cast<e8m0*>(to.scales)});
  };
  const auto tiled = [&](const auto& scheme) {
    return launch_quantized(TiledScales<std::decay_t<decltype(scheme)>>{
        scheme, static_cast<uint8_t*>(to.scales), to.scale_row_offsets});
  };
  switch (to.output) {
    case SiluOutput::kBF16:
      return launch(BF16Writer{static_cast<bf16*>(to.rows)});
    case SiluOutput::kBlockwiseE4M3:
      return blockwise(e4m3{});
    case SiluOutput::kBlockwiseE5M2:
      return blockwise(e5m2{});
    case SiluOutput::kMXE4M3:
      return mx(e4m3{});
    case SiluOutput::kMXE5M2:
      return mx(e5m2{});
    case SiluOutput::kMXE2M3:
      return mx(e2m3{});
    case SiluOutput::kMXE3M2:
      return mx(e3m2{});
    case SiluOutput::kMXE2M1:
      return mx(e2m1{});
    case SiluOutput::kTiledMXE4M3:
      return tiled(TiledMX<e4m3>{});
    case SiluOutput::kTiledMXE5M2:
      return tiled(TiledMX<e5m2>{});
    case SiluOutput::kTiledMXE2M1:
      return tiled(TiledMX<e2m1>{});
    case SiluOutput::kNVFP4:
      return tiled(NVFP4<GroupTensorScales>{{to.tensor_scale, to.group_tensor_scales}});
  }
  return invalid_argument("silu_mul: there is no output %d", static_cast<int>(to.output));
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
