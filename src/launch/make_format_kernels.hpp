// Instantiates both protocols' dispatch of one token format for the target this file is compiled for.
#pragma once

#include "format_kernels.hpp"
#include "switchyard/detail/format/all_formats.hpp"
#include "switchyard/detail/launch/make_dispatch_kernels.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <TokenFormatKind kKind, FixedShape Fixed>
FormatKernels kernels_of_kind() {
  static_assert(agrees<FormatOf<kKind>>(info_of(kKind)), "the line of the registry and its type disagree");
  return {&kDispatchKernels<Slotted, Fixed, FormatOf<kKind>>,
          &kDispatchKernels<Direct, Fixed, FormatOf<kKind>>, &kLinkedDispatchKernels<Fixed, FormatOf<kKind>>};
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
