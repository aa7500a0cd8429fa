// GPU memory that several processes map, and host memory that kernels may use.
#pragma once

#include "switchyard/detail/device/shared_memory.hpp"

namespace switchyard {

// Both call the CUDA driver for the current device, which is `ordinal`. The memory is not zeroed.
Result<SharedMemory> create_shared_cuda_memory(int ordinal, uint64_t bytes);
Result<std::unique_ptr<SharedMapping>> map_shared_cuda_memory(int ordinal, const FileDescriptor& file,
                                                              uint64_t bytes);

// Registers mapped host memory with CUDA until the object is destroyed.
Result<std::unique_ptr<SharedMapping>> make_visible_to_cuda(std::unique_ptr<SharedMapping> mapping,
                                                            uint64_t bytes);

}  // namespace switchyard
