#include "switchyard/detail/device/device.hpp"

namespace switchyard {

Result<DeviceMemory> DeviceMemory::allocate(Device& device, uint64_t bytes, StreamHandle user) {
  Result<void*> memory = user != nullptr ? device.allocate_for(user, bytes) : device.allocate(bytes);
  if (!memory.ok()) return memory.status();
  DeviceMemory result;
  result.device_ = &device;
  result.user_ = user;
  result.memory_ = memory.value();
  result.bytes_ = bytes;
  return result;
}

Result<DeviceMemory> DeviceMemory::allocate_host_visible(Device& device, uint64_t bytes) {
  Result<void*> memory = device.allocate_host_visible(bytes);
  if (!memory.ok()) return memory.status();
  DeviceMemory result;
  result.device_ = &device;
  result.memory_ = memory.value();
  result.bytes_ = bytes;
  result.host_visible_ = true;
  return result;
}

DeviceMemory::~DeviceMemory() {
  if (memory_ == nullptr) return;
  if (user_ != nullptr)
    device_->deallocate_behind(user_, memory_);
  else if (host_visible_)
    device_->deallocate_host_visible(memory_);
  else
    device_->deallocate(memory_);
}

}  // namespace switchyard
