// Tickets of the CUDA driver (CUDA IPC) for memory of the caller's. The driver's calls leave no error behind
// that the caller's next call of the CUDA runtime would find.
#include <bit>

#include "cuda_driver.hpp"
#include "outside_of_recordings.hpp"
#include "switchyard/detail/device/memory_opener.hpp"

namespace switchyard {
namespace {

// The functions that are used here, of the driver that is there.
struct TicketDriver {
  decltype(&cuPointerGetAttribute) pointer_attribute;
  decltype(&cuMemGetAddressRange) address_range;
  decltype(&cuIpcGetMemHandle) get_ticket;
  decltype(&cuIpcOpenMemHandle) open_ticket;
  decltype(&cuIpcCloseMemHandle) close_ticket;
};

Result<TicketDriver> load_ticket_driver() {
  TicketDriver driver{};
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuPointerGetAttribute", driver.pointer_attribute));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuMemGetAddressRange", driver.address_range));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuIpcGetMemHandle", driver.get_ticket));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuIpcOpenMemHandle", driver.open_ticket));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuIpcCloseMemHandle", driver.close_ticket));
  return driver;
}

class OpenedAllocation : public SharedMapping {
 public:
  OpenedAllocation(Device& device, const TicketDriver& calls, CUdeviceptr address)
      : device_(device), driver_(calls), address_(address) {}
  ~OpenedAllocation() override {
    const DeviceScope active = device_.activate();
    const OutsideOfRecordings outside;
    (void)driver_.close_ticket(address_);
  }
  OpenedAllocation(const OpenedAllocation&) = delete;
  OpenedAllocation& operator=(const OpenedAllocation&) = delete;

  void* data() const override { return reinterpret_cast<void*>(address_); }

 private:
  Device& device_;
  const TicketDriver& driver_;
  const CUdeviceptr address_;
};

class CudaMemoryOpener : public MemoryOpener {
 public:
  CudaMemoryOpener(Device& device, const TicketDriver& calls) : device_(device), driver_(calls) {}

  // Access between devices is of cudaMalloc's memory; a pool, and memory that was mapped by hand, has its
  // own.
  bool is_open_to_other_devices(const void* memory) const override {
    int is_of_malloc = 0;
    const CUresult asked =
        driver_.pointer_attribute(&is_of_malloc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                  reinterpret_cast<CUdeviceptr>(memory));
    return asked == CUDA_SUCCESS && is_of_malloc != 0;
  }
  Result<Allocation> allocation_of(const void* memory) const override {
    const DeviceScope active = device_.activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    const auto address = reinterpret_cast<CUdeviceptr>(memory);
    Allocation found;
    SWITCHYARD_RETURN_IF_ERROR(
        check_driver(driver_.pointer_attribute(&found.id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address),
                     "cuPointerGetAttribute"));
    CUdeviceptr begin = 0;
    size_t bytes = 0;
    SWITCHYARD_RETURN_IF_ERROR(
        check_driver(driver_.address_range(&begin, &bytes, address), "cuMemGetAddressRange"));
    found.begin = reinterpret_cast<const std::byte*>(begin);
    return found;
  }
  Result<MemoryTicket> export_allocation(const Allocation& allocation) const override {
    const DeviceScope active = device_.activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    const OutsideOfRecordings outside;
    CUipcMemHandle handle{};
    SWITCHYARD_RETURN_IF_ERROR(check_driver(
        driver_.get_ticket(&handle, reinterpret_cast<CUdeviceptr>(allocation.begin)), "cuIpcGetMemHandle"));
    return std::bit_cast<MemoryTicket>(handle);
  }
  Result<std::unique_ptr<SharedMapping>> open_allocation(const MemoryTicket& ticket) override {
    const DeviceScope active = device_.activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    const OutsideOfRecordings outside;
    CUdeviceptr address = 0;
    SWITCHYARD_RETURN_IF_ERROR(
        check_driver(driver_.open_ticket(&address, std::bit_cast<CUipcMemHandle>(ticket),
                                         CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                     "cuIpcOpenMemHandle"));
    return std::unique_ptr<SharedMapping>(std::make_unique<OpenedAllocation>(device_, driver_, address));
  }

 private:
  Device& device_;
  const TicketDriver& driver_;
};

}  // namespace

// A process that only uses the host does not ask for CUDA's driver: it may fork processes that use it.
std::unique_ptr<MemoryOpener> create_memory_opener(Device& device) {
  if (device.target() != Target::kCuda) return std::make_unique<MemoryOpener>();
  static const Result<TicketDriver> driver = load_ticket_driver();
  if (!driver.ok()) return std::make_unique<MemoryOpener>();
  return std::make_unique<CudaMemoryOpener>(device, driver.value());
}

}  // namespace switchyard
