// Rank and the memory of a Buffer: calls on the rank's device.
#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/world.hpp"

namespace switchyard {

UntypedBuffer& UntypedBuffer::operator=(UntypedBuffer&& other) noexcept {
  if (this == &other) return *this;
  if (is_owner_) device_->deallocate_behind(stream_, data_);
  data_ = std::exchange(other.data_, nullptr);
  device_ = std::exchange(other.device_, nullptr);
  stream_ = std::exchange(other.stream_, nullptr);
  is_owner_ = std::exchange(other.is_owner_, false);
  return *this;
}

UntypedBuffer::~UntypedBuffer() {
  if (is_owner_) device_->deallocate_behind(stream_, data_);
}

Status UntypedBuffer::upload(const void* values, size_t bytes) {
  return device_ == nullptr ? Status() : device_->copy(data_, values, bytes, stream_);
}

Status UntypedBuffer::download(void* values, size_t bytes) const {
  return device_ == nullptr ? Status() : device_->copy(values, data_, bytes, stream_);
}

Status UntypedBuffer::fill(uint8_t value, size_t bytes) {
  return device_ == nullptr ? Status() : device_->fill(data_, value, bytes, stream_);
}

Rank::~Rank() {
  for (const StreamHandle made : made_streams_) device_.destroy_stream(made);
  device_.destroy_stream(stream_);
}

std::string Rank::device_name() const { return device_.name(); }

Result<Stream> Rank::create_stream() const {
  SWITCHYARD_RETURN_IF_ERROR(process_.check("create_stream"));
  const Result<StreamHandle> made = device_.create_stream();
  if (!made.ok()) return made.status();
  std::lock_guard lock(mutex_);
  made_streams_.push_back(made.value());
  return Stream(made.value());
}

Result<StreamHandle> Rank::handle_of(Stream stream) const {
  SWITCHYARD_RETURN_IF_ERROR(process_.check("a call of a rank"));
  if (!stream.is_callers()) return stream_;
  SWITCHYARD_RETURN_IF_ERROR(device_.check_stream(stream.handle()));
  return stream.handle();
}

Status Rank::synchronize(Stream stream) const {
  const Result<StreamHandle> handle = handle_of(stream);
  if (!handle.ok()) return handle.status();
  // CUDA's null stream is that of the current device.
  const DeviceScope active = device_.activate();
  SWITCHYARD_RETURN_IF_ERROR(active.status());
  return device_.synchronize(handle.value());
}

Status Rank::with_device(Status (*function)(const void* call), const void* call) const {
  const DeviceScope active = device_.activate();
  SWITCHYARD_RETURN_IF_ERROR(active.status());
  return function(call);
}

Result<UntypedBuffer> Rank::allocate_elements(size_t size, size_t element_bytes) const {
  SWITCHYARD_RETURN_IF_ERROR(process_.check("allocate"));
  const CheckedSize bytes = CheckedSize(size) * CheckedSize(element_bytes);
  if (!bytes.ok())
    return invalid_argument("allocate: %zu elements of %zu bytes exceed 64 bits", size, element_bytes);
  Result<void*> memory = device_.allocate_for(stream_, bytes.value());
  if (!memory.ok()) return memory.status();
  return UntypedBuffer(memory.value(), device_, stream_, true);
}

}  // namespace switchyard
