// The launch of silu_mul with the writer of a token format, for the target this file is compiled for.
#pragma once

#include "switchyard/detail/format/all_formats.hpp"
#include "switchyard/detail/format/visit_kind.hpp"
#include "switchyard/detail/gemm/silu_mul.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The writer of rows of a format: its type quantises, and its line of the registry says where scales lie.
template <TokenFormatKind kKind>
auto silu_mul_writer(const SiluMulDestination& to) {
  constexpr ScalePlacement kPlacement = info_of(kKind).placement;
  if constexpr (kPlacement == ScalePlacement::kNone) {
    return BF16Writer{static_cast<bf16*>(to.rows)};
  } else {
    using Quantizer = typename FormatOf<kKind>::Quantizer;
    const auto with_scales = [&](const auto& scales) {
      return QuantizedWriter<std::decay_t<decltype(scales)>>{static_cast<uint8_t*>(to.rows), scales};
    };
    if constexpr (kPlacement == ScalePlacement::kTransposed)
      return with_scales(TransposedScales<Quantizer>{static_cast<float*>(to.scales), to.max_rows});
    else if constexpr (kPlacement == ScalePlacement::kByRow)
      return with_scales(RowScales<Quantizer>{static_cast<typename Quantizer::Scale*>(to.scales)});
    else if constexpr (kPlacement == ScalePlacement::kPacked)
      return with_scales(PackedScales<Quantizer>{static_cast<uint8_t*>(to.scales), to.max_rows});
    else if constexpr (kPlacement == ScalePlacement::kTiled)
      return with_scales(TiledScales<Quantizer>{GroupQuantizers<Quantizer>::make(to),
                                                static_cast<uint8_t*>(to.scales), to.scale_row_offsets});
    else
      static_assert(kPlacement == ScalePlacement::kTiled,
                    "silu_mul has no writer of scales placed like this");
  }
}

// Calls with_writer(writer) with that of the destination's format.
template <typename WithWriter>
Status choose_silu_mul_writer(const SiluMulDestination& to, const WithWriter& with_writer) {
  return visit_kind(
      to.format, [&]<TokenFormatKind kKind>() { return with_writer(silu_mul_writer<kKind>(to)); },
      [&] { return invalid_argument("silu_mul: there is no token format %d", static_cast<int>(to.format)); });
}

inline Status launch_silu_mul(const LaunchShape& shape, StreamHandle stream, const SiluMulInput& input,
                              const SiluMulDestination& to) {
  return choose_silu_mul_writer(to, [&]<typename Writer>(const Writer& writer) {
    if (input.width <= 0 || input.width % Writer::kWidthMultiple != 0)
      return invalid_argument("silu_mul: width is %d; format %s needs a multiple of %d", input.width,
                              to_string(to.format), Writer::kWidthMultiple);
    return target::launch("silu_mul", silu_mul_kernel<Writer>, shape, stream,
                          SiluMulParams<Writer>{input, writer});
  });
}

#if defined(__CUDACC__)
// Of all formats.
inline Status load_silu_mul_kernels() {
  for (const TokenFormatKind format : kTokenFormatKinds)
    SWITCHYARD_RETURN_IF_ERROR(choose_silu_mul_writer({.format = format}, []<typename Writer>(const Writer&) {
      const target::ResidentKernel kernels[] = {{&silu_mul_kernel<Writer>, 0}};
      return target::max_resident_blocks(kernels, kWarpSize).status();
    }));
  return Status();
}
#endif

}  // namespace switchyard::inline SWITCHYARD_TARGET
