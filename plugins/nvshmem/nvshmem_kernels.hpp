// What nvshmem_kernels.cu gives the plugin.
#pragma once

#include "switchyard/detail/launch/kernel_table.hpp"

namespace switchyard {

// Only the kernels with a wire; all others are null.
const KernelTable& nvshmem_kernels();

}  // namespace switchyard
