// Memory that a caller has allocated, and that another process opens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "switchyard/detail/device/device.hpp"

namespace switchyard {

// What another process opens memory by that was not made to be shared.
using MemoryTicket = std::array<uint64_t, 8>;

// A piece of memory that an allocator has given out, as the driver knows it.
struct Allocation {
  uint64_t id = 0;  // no other of this process has, or ever had, the same
  const std::byte* begin = nullptr;
};

// What memory lies in, a ticket for that, and what another process makes of the ticket. This one cannot.
class MemoryOpener {
 public:
  virtual ~MemoryOpener() = default;
  // Whether kernels of the process's other devices, which have access to each other's memory, can read it.
  virtual bool is_open_to_other_devices(const void*) const { return true; }
  virtual Result<Allocation> allocation_of(const void*) const { return not_here(); }
  virtual Result<MemoryTicket> export_allocation(const Allocation&) const { return not_here(); }
  virtual Result<std::unique_ptr<SharedMapping>> open_allocation(const MemoryTicket&) { return not_here(); }

 private:
  static Status not_here() { return unavailable("the caller's memory is this process's own on this target"); }
};

// One for memory of the device. With CUDA it can, for memory of cudaMalloc's; that of pools and of virtual
// memory management has no tickets.
std::unique_ptr<MemoryOpener> create_memory_opener(Device& device);

}  // namespace switchyard
