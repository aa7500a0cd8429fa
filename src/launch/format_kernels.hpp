// The dispatch kernels of every token format, each of which is compiled in a file of its own.
#pragma once

#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// Both protocols' dispatch of one format.
struct FormatKernels {
  const DispatchKernels* slotted = nullptr;
  const DispatchKernels* direct = nullptr;
  const DispatchKernels* linked = nullptr;  // direct, by kernels that link siblings
};

// `Fixed` is RunTimeShape or, for kernels with a wire, WiredShape. make_format_kernels.hpp defines it.
// src/CMakeLists.txt writes files for each kind of the registry that instantiate it; a kind without its files
// does not link. Whoever goes over all kinds must not see the
// definition, or would compile the kernels of all of them.
template <TokenFormatKind kKind, FixedShape Fixed>
FormatKernels kernels_of_kind();

}  // namespace switchyard::inline SWITCHYARD_TARGET
