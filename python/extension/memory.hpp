// The caller's allocator, (allocate, deallocate), as the library calls it.
#pragma once

#include <memory>

#include "session.hpp"
#include "switchyard/types/memory_functions.hpp"

namespace switchyard::python {

// None: null, and no functions: the memory is the library's own.
std::shared_ptr<ReturnedMemory> python_memory(nb::handle given);
MemoryFunctions allocator_of(const std::shared_ptr<ReturnedMemory>& memory);

}  // namespace switchyard::python
