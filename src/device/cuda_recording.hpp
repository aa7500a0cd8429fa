// A CUDA graph captured from several streams.
#pragma once

#include "switchyard/detail/device/device.hpp"

namespace switchyard {

Result<std::unique_ptr<Recording>> begin_cuda_recording(const std::vector<DeviceStream>& streams);

}  // namespace switchyard
