// The transport of a world whose ranks are all in this process: memory is reached by its address, and there
// is nobody to agree with.
#pragma once

#include <memory>
#include <vector>

#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/transport/transport.hpp"

namespace switchyard {

// The devices, one entry per rank, must outlive the transport.
std::unique_ptr<Transport> create_local_transport(std::vector<Device*> device_of_rank);

}  // namespace switchyard
