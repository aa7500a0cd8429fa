// Virtual memory management of the CUDA driver: a process creates memory, exports it as a file descriptor,
// and every process maps it into its own address space.
#include "cuda_shared_memory.hpp"

#include <algorithm>

#include "cuda_driver.hpp"

namespace switchyard {
namespace {

// The functions that are used here, of the driver that is there.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free_address;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemExportToShareableHandle) export_handle;
  decltype(&cuMemImportFromShareableHandle) import_handle;
};

Result<Driver> load_driver() {
  Driver driver{};
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuMemGetAllocationGranularity", driver.granularity));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuMemCreate", driver.create));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuMemRelease", driver.release));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuMemAddressReserve", driver.reserve));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuMemAddressFree", driver.free_address));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuMemMap", driver.map));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuMemUnmap", driver.unmap));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuMemSetAccess", driver.set_access));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuMemExportToShareableHandle", driver.export_handle));
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuMemImportFromShareableHandle", driver.import_handle));
  return driver;
}

const Result<Driver>& driver() {
  static const Result<Driver> loaded = load_driver();
  return loaded;
}

CUmemAllocationProp shareable_on(int ordinal) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
  return properties;
}

// Created, reserved and mapped step by step; what was done is undone with the object.
class CudaMapping : public SharedMapping {
 public:
  CudaMapping(const Driver& calls, uint64_t bytes) : driver_(calls), bytes_(bytes) {}
  ~CudaMapping() override {
    if (is_mapped_) (void)driver_.unmap(address_, bytes_);
    if (address_ != 0) (void)driver_.free_address(address_, bytes_);
    if (has_handle_) (void)driver_.release(handle_);
  }
  CudaMapping(const CudaMapping&) = delete;
  CudaMapping& operator=(const CudaMapping&) = delete;

  void* data() const override { return reinterpret_cast<void*>(address_); }

  Status create(int ordinal) {
    const CUmemAllocationProp properties = shareable_on(ordinal);
    SWITCHYARD_RETURN_IF_ERROR(check_driver(driver_.create(&handle_, bytes_, &properties, 0), "cuMemCreate"));
    has_handle_ = true;
    return Status();
  }
  Result<FileDescriptor> export_file() const {
    int number = -1;
    SWITCHYARD_RETURN_IF_ERROR(
        check_driver(driver_.export_handle(&number, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                     "cuMemExportToShareableHandle"));
    return FileDescriptor(number);
  }
  Status import(const FileDescriptor& file) {
    void* number = reinterpret_cast<void*>(static_cast<uintptr_t>(file.number()));
    SWITCHYARD_RETURN_IF_ERROR(
        check_driver(driver_.import_handle(&handle_, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                     "cuMemImportFromShareableHandle"));
    has_handle_ = true;
    return Status();
  }
  // Kernels of the device `ordinal` may load and store from here on.
  Status map(int ordinal) {
    SWITCHYARD_RETURN_IF_ERROR(
        check_driver(driver_.reserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve"));
    SWITCHYARD_RETURN_IF_ERROR(check_driver(driver_.map(address_, bytes_, 0, handle_, 0), "cuMemMap"));
    is_mapped_ = true;
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return check_driver(driver_.set_access(address_, bytes_, &access, 1), "cuMemSetAccess");
  }

 private:
  const Driver& driver_;
  const uint64_t bytes_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  bool has_handle_ = false;
  bool is_mapped_ = false;
};

// Every GPU of ours has the same granularity, so that all processes round alike.
Result<std::unique_ptr<CudaMapping>> empty_mapping(int ordinal, uint64_t bytes) {
  if (!driver().ok()) return driver().status();
  const Driver& calls = driver().value();
  const CUmemAllocationProp properties = shareable_on(ordinal);
  size_t granularity = 0;
  SWITCHYARD_RETURN_IF_ERROR(
      check_driver(calls.granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                   "cuMemGetAllocationGranularity"));
  const uint64_t rounded = (std::max<uint64_t>(bytes, 1) + granularity - 1) / granularity * granularity;
  return std::make_unique<CudaMapping>(calls, rounded);
}

class RegisteredMapping : public SharedMapping {
 public:
  explicit RegisteredMapping(std::unique_ptr<SharedMapping> mapping) : mapping_(std::move(mapping)) {}
  ~RegisteredMapping() override {
    if (is_registered_) (void)cudaHostUnregister(mapping_->data());
  }
  RegisteredMapping(const RegisteredMapping&) = delete;
  RegisteredMapping& operator=(const RegisteredMapping&) = delete;

  void* data() const override { return mapping_->data(); }
  Status register_memory(uint64_t bytes) {
    SWITCHYARD_RETURN_IF_ERROR(check_cuda(cudaHostRegister(mapping_->data(), std::max<uint64_t>(bytes, 1),
                                                           cudaHostRegisterPortable | cudaHostRegisterMapped),
                                          "cudaHostRegister"));
    is_registered_ = true;
    return Status();
  }

 private:
  std::unique_ptr<SharedMapping> mapping_;
  bool is_registered_ = false;
};

}  // namespace

Result<SharedMemory> create_shared_cuda_memory(int ordinal, uint64_t bytes) {
  Result<std::unique_ptr<CudaMapping>> mapping = empty_mapping(ordinal, bytes);
  if (!mapping.ok()) return mapping.status();
  SWITCHYARD_RETURN_IF_ERROR(mapping.value()->create(ordinal));
  Result<FileDescriptor> file = mapping.value()->export_file();
  if (!file.ok()) return file.status();
  SWITCHYARD_RETURN_IF_ERROR(mapping.value()->map(ordinal));
  return SharedMemory{std::move(mapping).value(), std::move(file).value()};
}

Result<std::unique_ptr<SharedMapping>> map_shared_cuda_memory(int ordinal, const FileDescriptor& file,
                                                              uint64_t bytes) {
  Result<std::unique_ptr<CudaMapping>> mapping = empty_mapping(ordinal, bytes);
  if (!mapping.ok()) return mapping.status();
  SWITCHYARD_RETURN_IF_ERROR(mapping.value()->import(file));
  SWITCHYARD_RETURN_IF_ERROR(mapping.value()->map(ordinal));
  return std::unique_ptr<SharedMapping>(std::move(mapping).value());
}

Result<std::unique_ptr<SharedMapping>> make_visible_to_cuda(std::unique_ptr<SharedMapping> mapping,
                                                            uint64_t bytes) {
  auto registered = std::make_unique<RegisteredMapping>(std::move(mapping));
  SWITCHYARD_RETURN_IF_ERROR(registered->register_memory(bytes));
  return std::unique_ptr<SharedMapping>(std::move(registered));
}

}  // namespace switchyard
