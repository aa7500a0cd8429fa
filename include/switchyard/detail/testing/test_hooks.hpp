// What the tests of Switchyard itself change in a world of the host target.
#pragma once

#include <optional>

#include "switchyard/detail/testing/order_mutant.hpp"

struct ShmemApi;  // detail/transport/shmem_api.hpp

namespace switchyard {

struct KernelTable;

struct TestHooks {
  const KernelTable* kernels = nullptr;              // others than the library's
  std::optional<OrderMutant> mutant = std::nullopt;  // for the weak memory
  const ShmemApi* shmem = nullptr;                   // instead of the plugin's
};

}  // namespace switchyard
