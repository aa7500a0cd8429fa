// Makes a GPU current for the calling thread, and restores the previous one afterwards: the caller's choice
// of a device must not change.
#pragma once

#include <utility>

#include "switchyard/status.hpp"

namespace switchyard {

// How the current device is queried and set: cudaGetDevice and cudaSetDevice, or a test's substitutes.
struct CurrentDeviceCalls {
  Status (*get)(int& ordinal);
  Status (*set)(int ordinal);
};

class [[nodiscard]] DeviceScope {
 public:
  // For a target that has no current device.
  DeviceScope() = default;
  DeviceScope(const CurrentDeviceCalls& calls, int ordinal) {
    int previous = 0;
    (void)(status_ = calls.get(previous));
    if (!status_.ok() || previous == ordinal) return;
    (void)(status_ = calls.set(ordinal));
    if (!status_.ok()) return;
    set_ = calls.set;
    previous_ = previous;
  }
  DeviceScope(DeviceScope&& other) noexcept
      : status_(std::move(other.status_)),
        set_(std::exchange(other.set_, nullptr)),
        previous_(other.previous_) {}
  DeviceScope& operator=(DeviceScope&&) = delete;
  ~DeviceScope() {
    if (set_ != nullptr) (void)set_(previous_);  // an error here has no one left to hear it
  }

  // Whether the device is current.
  const Status& status() const { return status_; }

 private:
  Status status_;
  Status (*set_)(int ordinal) = nullptr;  // null: there is nothing to restore
  int previous_ = 0;
};

}  // namespace switchyard
