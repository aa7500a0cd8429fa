#include "switchyard/detail/device/gpu_architecture.hpp"

#include <algorithm>
#include <charconv>

namespace switchyard {
namespace {

bool is_one_of(std::string_view architectures, const auto& fits) {
  while (!architectures.empty()) {
    const size_t end = std::min(architectures.find(','), architectures.size());
    if (fits(architectures.substr(0, end))) return true;
    architectures.remove_prefix(std::min(end + 1, architectures.size()));
  }
  return false;
}

bool one_runs_on(std::string_view architecture, const ComputeCapability& gpu) {
  int number = 0;
  const char* end = architecture.data() + architecture.size();
  const auto [rest, error] = std::from_chars(architecture.data(), end, number);
  if (error != std::errc()) return true;
  const std::string_view variant(rest, static_cast<size_t>(end - rest));
  const ComputeCapability built{number / 10, number % 10};
  if (variant.starts_with('a')) return gpu == built;
  const bool is_same_family = gpu.major == built.major && gpu.minor >= built.minor;
  if (variant.starts_with('f') || variant == "-real") return is_same_family;
  return gpu >= built;  // the driver compiles it for any later one
}

}  // namespace

bool runs_on(std::string_view architectures, const ComputeCapability& gpu) {
  return is_one_of(architectures, [&](std::string_view one) { return one_runs_on(one, gpu); });
}

bool has_matrix_unit(std::string_view architectures, const ComputeCapability& gpu) {
  return gpu == ComputeCapability{9, 0} &&
         is_one_of(architectures, [](std::string_view one) { return one.starts_with("90a"); });
}

}  // namespace switchyard
