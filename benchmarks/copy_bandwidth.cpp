// The copy bandwidth of this machine, with which the benchmarks compare.
#include <algorithm>
#include <chrono>
#include <limits>
#include <set>

#include "ep_bench.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard::tools {

Result<CopyBandwidth> measure_copy(const World& world) {
  const Rank& rank = world.rank(0);
  const bool is_host = world.target() == Target::kHost;
  // The buffer is large, since the time includes that of the call. It is smaller if memory is short, but
  // never so small that a cache could hold it.
  uint64_t bytes = is_host ? 256ull << 20 : 8ull << 30;
  const uint64_t min_bytes = is_host ? bytes : 1ull << 30;
  for (;; bytes /= 2) {
    Result<Buffer<std::byte>> source = rank.allocate<std::byte>(bytes),
                              copy = rank.allocate<std::byte>(bytes);
    if (!source.ok() || !copy.ok()) {
      if (bytes / 2 >= min_bytes) continue;
      return source.ok() ? copy.status() : source.status();
    }
    // Pages that were never written may all map to the same zero page.
    SWITCHYARD_RETURN_IF_ERROR(source.value().fill_bytes(1));
    double best_seconds = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 6; ++i) {
      const auto start = std::chrono::steady_clock::now();
      SWITCHYARD_RETURN_IF_ERROR(
          device_of(rank).copy(copy.value().data(), source.value().data(), bytes, rank.stream()));
      best_seconds = std::min(
          best_seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::set<const Device*> devices;
    for (int r = 0; r < world.n_ranks(); ++r) devices.insert(&device_of(world.rank(r)));
    return CopyBandwidth{
        2.0 * static_cast<double>(bytes) * static_cast<double>(devices.size()) / best_seconds, bytes};
  }
}

}  // namespace switchyard::tools
