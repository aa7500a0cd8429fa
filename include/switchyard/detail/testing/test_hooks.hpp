// What the tests of Switchyard itself change in a world of the host target.
#pragma once

#include <memory>
#include <optional>

#include "switchyard/detail/testing/order_mutant.hpp"

struct ShmemApi;  // detail/transport/shmem_api.hpp

namespace switchyard {

struct KernelTable;
class MemoryOpener;  // detail/device/memory_opener.hpp

struct TestHooks {
  const KernelTable* kernels = nullptr;              // others than the library's
  std::optional<OrderMutant> mutant = std::nullopt;  // for the weak memory
  const ShmemApi* shmem = nullptr;                   // instead of the plugin's
  // Makes what opens the caller's memory in other processes, instead of the device's, which cannot.
  std::unique_ptr<MemoryOpener> (*make_memory_opener)() = nullptr;
};

}  // namespace switchyard
