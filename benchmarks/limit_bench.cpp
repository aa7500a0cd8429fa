#include "limit_bench.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include "limits.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "workload/host_memory.hpp"

namespace switchyard::tools {
namespace {

// One device's part of one of the sets that alternate.
struct DeviceBuffers {
  const Rank* rank;  // the first rank of the device, whose stream runs the kernels
  LaunchShape scatter_shape, gather_shape;
  uint32_t num_tokens;
  Buffer<bf16> tokens, rows, output;
  Buffer<uint32_t> row_indices;
  Buffer<float> weights;
};
using BufferSet = std::vector<DeviceBuffers>;

template <typename T>
Status take(Result<Buffer<T>> allocated, Buffer<T>& buffer) {
  if (!allocated.ok()) return allocated.status();
  buffer = std::move(allocated).value();
  return Status();
}

// Values in [1, 2), so that no addition is special. They repeat after a prime number of them, so that no two
// rows are equal.
std::vector<bf16> plain_values(size_t count) {
  constexpr size_t kPeriod = 1048573;
  std::vector<bf16> values(count);
  uint32_t state = 1;
  for (size_t i = 0; i < std::min(kPeriod, count); ++i)
    values[i] = {static_cast<uint16_t>(0x3f80 | (state = state * 1664525 + 1013904223) >> 25)};
  for (size_t i = kPeriod; i < count; ++i) values[i] = values[i - kPeriod];
  return values;
}

Result<BufferSet> make_set(World& world, const Workload& workload, int n_sms, std::mt19937_64& random) {
  BufferSet set;
  for (int r = 0; r < world.n_ranks(); ++r) {
    const Rank& rank = world.rank(r);
    const bool is_first = std::none_of(set.begin(), set.end(), [&](const DeviceBuffers& buffers) {
      return &device_of(*buffers.rank) == &device_of(rank);
    });
    if (!is_first) continue;
    const bool is_host = world.target() == Target::kHost;
    const int num_sharing = world.num_ranks_on_device_of(r);
    const uint32_t num_blocks = static_cast<uint32_t>(num_sharing * n_sms);
    DeviceBuffers& buffers = set.emplace_back();
    buffers.rank = &rank;
    buffers.scatter_shape = {.num_blocks = num_blocks,
                             .num_threads = is_host ? 64u : 256u,
                             .max_shared_bytes = device_of(rank).max_shared_bytes()};
    buffers.gather_shape = {.num_blocks = num_blocks, .num_threads = is_host ? 64u : 1024u};
    buffers.num_tokens = static_cast<uint32_t>(num_sharing * workload.tokens_per_rank.front());
    const size_t num_values = size_t{buffers.num_tokens} * static_cast<size_t>(workload.hidden);
    std::vector<uint32_t> row_indices(size_t{buffers.num_tokens} * static_cast<size_t>(workload.top_k));
    std::iota(row_indices.begin(), row_indices.end(), 0u);
    std::shuffle(row_indices.begin(), row_indices.end(), random);
    const std::vector<float> weights(row_indices.size(), 1.0f / static_cast<float>(workload.top_k));
    SWITCHYARD_RETURN_IF_ERROR(take(rank.upload(plain_values(num_values)), buffers.tokens));
    SWITCHYARD_RETURN_IF_ERROR(
        take(rank.allocate<bf16>(row_indices.size() * static_cast<size_t>(workload.hidden)), buffers.rows));
    SWITCHYARD_RETURN_IF_ERROR(take(rank.allocate<bf16>(num_values), buffers.output));
    SWITCHYARD_RETURN_IF_ERROR(take(rank.upload(row_indices), buffers.row_indices));
    SWITCHYARD_RETURN_IF_ERROR(take(rank.upload(weights), buffers.weights));
  }
  return set;
}

Status enqueue(World& world, const Workload& workload, uint64_t lead_us, const BufferSet& set) {
  const benchmarks::LimitKernels& kernels = benchmarks::limit_kernels(world.target());
  SWITCHYARD_RETURN_IF_ERROR(enqueue_lead(world, lead_us));
  SWITCHYARD_RETURN_IF_ERROR(world.mark("scatter"));
  for (const DeviceBuffers& buffers : set) {
    SWITCHYARD_RETURN_IF_ERROR(
        buffers.rank->launch(kernels.scatter, buffers.scatter_shape,
                             {buffers.tokens.data(), buffers.rows.data(), buffers.row_indices.data(),
                              buffers.num_tokens, workload.top_k, workload.hidden}));
  }
  SWITCHYARD_RETURN_IF_ERROR(world.mark("gather"));
  for (const DeviceBuffers& buffers : set) {
    SWITCHYARD_RETURN_IF_ERROR(
        buffers.rank->launch(kernels.gather, buffers.gather_shape,
                             {buffers.rows.data(), buffers.output.data(), buffers.row_indices.data(),
                              buffers.weights.data(), buffers.num_tokens, workload.top_k, workload.hidden}));
  }
  return Status();
}

}  // namespace

Result<Limits> measure_limits(World& world, const Workload& workload, const EpLaunch& launch,
                              int num_replays) {
  const WorkloadBytes bytes(workload);
  const uint64_t bytes_moved = static_cast<uint64_t>(bytes.tokens + bytes.rows);
  const int num_sets =
      num_buffer_sets(world.target(), bytes_moved + static_cast<uint64_t>(bytes.tokens), num_replays);
  const double buffer_bytes = num_sets * (2 * bytes.tokens + bytes.rows);
  SWITCHYARD_RETURN_IF_ERROR(
      check_host_memory(bytes.tokens + (world.target() == Target::kHost ? buffer_bytes : 0)));
  std::vector<BufferSet> sets;
  Graphs graphs;
  std::mt19937_64 random(workload.seed);
  for (int set_idx = 0; set_idx < num_sets; ++set_idx) {
    Result<BufferSet> set = make_set(world, workload, launch.n_sms, random);
    if (!set.ok()) return set.status();
    sets.push_back(std::move(set).value());
  }
  for (const BufferSet& set : sets) {
    Result<std::unique_ptr<Graph>> graph =
        world.capture([&] { return enqueue(world, workload, launch.lead_us, set); });
    if (!graph.ok()) return graph.status();
    graphs.push_back(std::move(graph).value());
    SWITCHYARD_RETURN_IF_ERROR(graphs.back()->launch());  // warms up
  }
  SWITCHYARD_RETURN_IF_ERROR(world.synchronize());
  Result<std::vector<SpanSamples>> samples = time_replays(graphs, num_replays);
  if (!samples.ok()) return samples.status();
  return Limits{samples.value()[0].summarize(bytes_moved), samples.value()[1].summarize(bytes_moved)};
}

}  // namespace switchyard::tools
