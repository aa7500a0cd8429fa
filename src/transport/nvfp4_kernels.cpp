// Dispatch of NVFP4, for the target this file is compiled for.
#include "make_dispatch_kernels.hpp"
#include "switchyard/format/nv_block_scaled.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

using OneScaleNVFP4 = NVBlockScaledTokenFormat<NVFP4<OneInputScale>>;

inline OneScaleNVFP4 make_format(std::type_identity<OneScaleNVFP4>, int hidden,
                                 const FormatTensors& tensors) {
  return {hidden, NVFP4<OneInputScale>{{tensors.tensor_scale}}, reinterpret_cast<uint8_t*>(tensors.rows),
          reinterpret_cast<uint8_t*>(tensors.scales), /*scale_row_offsets=*/nullptr};
}

FormatKernels nvfp4_kernels() { return kFormatKernels<OneScaleNVFP4>; }

}  // namespace switchyard::inline SWITCHYARD_TARGET
