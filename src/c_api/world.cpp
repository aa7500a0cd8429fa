#include "handles.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/version.hpp"

namespace switchyard::c_api {
namespace {

thread_local std::string last_error;  // NOLINT: of the calling thread

Status read_memory(const switchyard_memory_functions* given, MemoryFunctions& memory) {
  if (given == nullptr) return Status();
  switchyard_memory_functions functions;
  SWITCHYARD_RETURN_IF_ERROR(read("memory", given, functions));
  if (functions.allocate != nullptr)
    memory.allocate = [functions](uint64_t bytes, int gpu, StreamHandle stream) {
      return functions.allocate(functions.context, bytes, gpu, stream);
    };
  if (functions.deallocate != nullptr)
    memory.deallocate = [functions](void* pointer, uint64_t bytes, int gpu, StreamHandle stream) {
      functions.deallocate(functions.context, pointer, bytes, gpu, stream);
    };
  return Status();
}

// Bytes of any number, by a function that takes equally many of each process: the numbers first.
Result<std::vector<std::vector<std::byte>>> gather(const switchyard_join_options& options,
                                                   const std::vector<std::byte>& mine) {
  const size_t num_processes = static_cast<size_t>(options.num_processes);
  const auto call = [&](const void* from, size_t bytes, void* to) {
    const int32_t result = options.all_gather(options.context, from, bytes, to);
    return result == 0 ? Status() : unavailable("all_gather returned %d", result);
  };
  const uint64_t my_bytes = mine.size();
  std::vector<uint64_t> sizes(num_processes);
  SWITCHYARD_RETURN_IF_ERROR(call(&my_bytes, sizeof(my_bytes), sizes.data()));
  const size_t largest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::byte> padded = mine;
  if (largest < mine.size())
    return unavailable("all_gather: %zu bytes of this process are not among what came back", mine.size());
  padded.resize(largest);
  std::vector<std::byte> all(num_processes * largest);
  SWITCHYARD_RETURN_IF_ERROR(call(padded.data(), largest, all.data()));
  std::vector<std::vector<std::byte>> gathered;
  for (size_t i = 0; i < num_processes; ++i) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(i * largest);
    gathered.emplace_back(begin, begin + static_cast<ptrdiff_t>(sizes[i]));
  }
  return gathered;
}

Status read_join(const switchyard_join_options* given, JoinOptions& join) {
  switchyard_join_options options;
  SWITCHYARD_RETURN_IF_ERROR(read("options", given, options));
  SWITCHYARD_RETURN_IF_ERROR(
      read_enum("transport", options.transport, TransportChoice::kShmem, join.transport));
  SWITCHYARD_RETURN_IF_ERROR(read_enum("target", options.target, TargetChoice::kCuda, join.target));
  join.rank = options.rank;
  join.num_local_ranks = or_default(options.num_local_ranks, 1);
  join.n_ranks = or_default(options.n_ranks, 1);
  join.gpu = options.gpu_number - 1;
  join.host.num_workers = options.num_workers;
  join.timeout_ns = or_default(options.timeout_ns, join.timeout_ns);
  if (options.all_gather != nullptr) {
    if (options.num_processes < 1)
      return invalid_argument("num_processes is %d; all_gather needs it", options.num_processes);
    join.all_gather = [options](const std::vector<std::byte>& mine) { return gather(options, mine); };
  }
  if (options.rendezvous != nullptr) join.rendezvous = options.rendezvous;
  if (options.token != nullptr) join.token = options.token;
  return read_memory(options.memory, join.memory);
}

Status hand_out(Result<std::unique_ptr<World>> made, switchyard_world** world) {
  if (!made.ok()) return made.status();
  *world = new switchyard_world{{}, std::move(made).value(), std::make_shared<switchyard_world::Memory>()};
  return Status();
}

}  // namespace

switchyard_status report(const Status& status) noexcept {
  if (status.ok()) return SWITCHYARD_OK;
  try {
    last_error = status.message();
  } catch (...) {
    last_error.clear();
  }
  return static_cast<switchyard_status>(status.code());
}

}  // namespace switchyard::c_api

using namespace switchyard;
using namespace switchyard::c_api;

const char* switchyard_version(void) { return kVersion; }
const char* switchyard_status_name(switchyard_status status) {
  return to_string(static_cast<StatusCode>(status));
}
const char* switchyard_last_error(void) { return last_error.c_str(); }

switchyard_status switchyard_world_create(const switchyard_world_options* given, switchyard_world** world) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    switchyard_world_options options;
    SWITCHYARD_RETURN_IF_ERROR(read("options", given, options));
    WorldOptions create;
    SWITCHYARD_RETURN_IF_ERROR(read_enum("target", options.target, TargetChoice::kCuda, create.target));
    create.n_ranks = or_default(options.n_ranks, 1);
    create.num_gpus = options.num_gpus;
    create.host.num_workers = options.num_workers;
    SWITCHYARD_RETURN_IF_ERROR(read_memory(options.memory, create.memory));
    return hand_out(World::create(create), world);
  });
}

switchyard_status switchyard_world_join(const switchyard_join_options* given, switchyard_world** world) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    JoinOptions join;
    SWITCHYARD_RETURN_IF_ERROR(read_join(given, join));
    return hand_out(World::join(join), world);
  });
}

void switchyard_world_destroy(switchyard_world* world) { destroy(world); }

switchyard_status switchyard_world_get_info(const switchyard_world* world, switchyard_world_info* info) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    const std::vector<int> local = world->world->local_ranks();
    const bool is_host = world->world->target() == Target::kHost;
    return write("info",
                 {.target = is_host ? SWITCHYARD_TARGET_HOST : SWITCHYARD_TARGET_CUDA,
                  .n_ranks = world->world->n_ranks(),
                  .first_local_rank = local.front(),
                  .num_local_ranks = static_cast<int32_t>(local.size())},
                 info);
  });
}

switchyard_status switchyard_world_synchronize(const switchyard_world* world) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    return world->world->synchronize();
  });
}

switchyard_status switchyard_stream_create(const switchyard_world* world, int32_t rank,
                                           switchyard_stream* stream) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("stream", stream));
    const Result<Stream> made = world->world->rank(rank).create_stream();
    if (made.ok()) *stream = made.value().handle();
    return made.status();
  });
}

switchyard_status switchyard_stream_synchronize(const switchyard_world* world, int32_t rank,
                                                switchyard_stream stream) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    return world->world->rank(rank).synchronize(stream_of(stream));
  });
}

switchyard_status switchyard_allocate(const switchyard_world* world, int32_t rank, uint64_t bytes,
                                      void** memory) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("memory", memory));
    Result<Buffer<std::byte>> allocated = world->world->rank(rank).allocate<std::byte>(bytes);
    if (!allocated.ok()) return allocated.status();
    void* const address = allocated.value().data();
    std::lock_guard lock(world->memory->mutex);
    world->memory->buffers.insert_or_assign(address, std::pair(rank, std::move(allocated).value()));
    *memory = address;
    return Status();
  });
}

switchyard_status switchyard_deallocate(const switchyard_world* world, int32_t rank, void* memory) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    if (memory == nullptr) return Status();
    SWITCHYARD_RETURN_IF_ERROR(world->process.check("deallocate"));
    std::lock_guard lock(world->memory->mutex);
    const auto found = world->memory->buffers.find(memory);
    if (found == world->memory->buffers.end() || found->second.first != rank)
      return invalid_argument("memory is %p, which switchyard_allocate() has not given to rank %d", memory,
                              rank);
    world->memory->buffers.erase(found);
    return Status();
  });
}

switchyard_status switchyard_copy(const switchyard_world* world, int32_t rank, void* destination,
                                  const void* source, uint64_t bytes) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    if (bytes == 0) return Status();
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("destination", destination));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("source", source));
    const Rank& here = world->world->rank(rank);
    return device_of(here).copy(destination, source, bytes, here.stream());
  });
}
