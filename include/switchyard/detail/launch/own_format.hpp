// What the runtime must know of a token format without knowing its type: of one of the library's, or of a
// caller's own, whose kernels come with it (own_kernels.hpp makes them).
#pragma once

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"

namespace switchyard {

// Of one hidden size.
struct FormatLayout {
  const char* name;
  uint32_t encoded_bytes;  // of a token on its way
  uint32_t row_bytes;      // of a row of the output
  uint32_t scales_bytes;   // of a row's scales; 0: there are none
  uint32_t row_alignment;  // each expert's rows start at a multiple of it
  bool encodes_by_expert;  // a token is not the same to all of its experts
  bool interleaves_rows;   // scales of neighbouring rows lie side by side
  bool has_tiled_scales;
};

struct OwnFormat {
  struct Kernels {
    const DispatchKernels* slotted;
    const DispatchKernels* direct;  // null: the direct protocol cannot carry the format
    const DispatchKernels* linked;  // direct, by kernels that link siblings
  };

  Target target;                // that the kernels are compiled for
  Status (*check)(int hidden);  // whether the format takes rows of this size
  FormatLayout (*layout)(int hidden);
  CheckedSize (*scale_tensor_bytes)(uint32_t max_rows, int hidden);
  Kernels near;   // between ranks that load from and store to each other's memory
  Kernels wired;  // where some ranks are reached over a wire
};

// A caller's own epilogue of combine.
struct OwnEpilogue {
  // Only `wait` and `fused`: combine_async has no epilogue.
  struct Kernels {
    CombineKernels bf16;
    CombineKernels fp8;
  };

  struct OfProtocol {
    Kernels slotted;
    Kernels direct;
    Kernels linked;  // direct, by kernels that pull siblings as their sum
  };

  Target target;
  OfProtocol near;  // as those of a format
  OfProtocol wired;
};

}  // namespace switchyard
