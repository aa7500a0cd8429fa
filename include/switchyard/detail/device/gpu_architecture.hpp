// Which GPUs the machine code of a build runs on, from the architectures that it was configured with.
#pragma once

#include <compare>
#include <string>
#include <string_view>

namespace switchyard {

struct ComputeCapability {
  int major = 0;
  int minor = 0;

  auto operator<=>(const ComputeCapability&) const = default;
  std::string to_string() const { return std::to_string(major) + "." + std::to_string(minor); }
};

// `architectures` is CMAKE_CUDA_ARCHITECTURES with commas, as "80-real,90a-real". A name without a number
// ("native") is left to the driver.
bool runs_on(std::string_view architectures, const ComputeCapability& gpu);

// Attention and the tiled matmul are written for the matrix unit of Hopper: machine code for 90a, on a GPU of
// compute capability 9.0.
bool has_matrix_unit(std::string_view architectures, const ComputeCapability& gpu);

}  // namespace switchyard
