// CUDA's plugin: NVSHMEM 3 (detail/transport/shmem_api.hpp). A launcher starts the processes, one per rank:
// mpirun, or whatever else NVSHMEM's bootstraps know; or the caller has, and gives them an id.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nvshmem_host.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "abandon.hpp"
#include "nvshmem_kernels.hpp"
#include "switchyard/detail/transport/shmem_api.hpp"
#include "switchyard/version.hpp"

namespace switchyard {
namespace {

constexpr uint64_t kAlignment = 256;
constexpr uint64_t kGatherBytes = 4096;  // of a PE, in one round of all_gather()

// Symmetric memory of all_gather(): [pe][kGatherBytes], of which each PE fills its own, and others read it.
std::byte* gathered = nullptr;
// Ours alone: it waits for no kernel of a rank, which may be waiting for a peer.
cudaStream_t stream = nullptr;
int my_gpu = -1;

[[gnu::format(printf, 2, 3)]] int fail(ShmemError* error, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error->text, sizeof(error->text), format, arguments);
  va_end(arguments);
  return 1;
}
int check(cudaError_t code, const char* call, ShmemError* error) {
  return code == cudaSuccess ? 0 : fail(error, "%s: %s", call, cudaGetErrorString(code));
}

// The number of this process on its machine, as launchers say it; -1: none does.
int number_on_machine() {
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID", "LOCAL_RANK"})
    if (const char* value = getenv(name); value != nullptr) return atoi(value);
  return -1;
}

int choose_gpu(const ShmemRequirements& requirements, ShmemError* error) {
  int num_gpus = 0;
  if (check(cudaGetDeviceCount(&num_gpus), "cudaGetDeviceCount", error) != 0) return 1;
  my_gpu = requirements.gpu;
  if (my_gpu < 0 && num_gpus > 1 && number_on_machine() < 0)
    return fail(
        error,
        "there are %d GPUs, and the launcher does not number the processes of a machine: say which GPU",
        num_gpus);
  if (my_gpu < 0) my_gpu = std::max(number_on_machine(), 0) % std::max(num_gpus, 1);
  if (my_gpu >= num_gpus) return fail(error, "GPU %d asked for, %d there", my_gpu, num_gpus);
  return check(cudaSetDevice(my_gpu), "cudaSetDevice", error);
}

constexpr int kKeep = 0;  // of setenv(): what the user has set stays

// NVSHMEM reads the environment once, in its first call, which may be that for an id: then that PE alone
// would not know what is set later, and the others would wait for it in vain. So this comes before every
// first call. Processes may share a GPU, as far as MPS lets their kernels run at once: the library sees to it
// that all blocks of all ranks are resident together.
void prepare_environment() { setenv("NVSHMEM_IGNORE_CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "1", kKeep); }

// How the processes find each other, unless the user has said it: NVSHMEM would look for PMI-1 only.
int choose_bootstrap(const ShmemRequirements& requirements, ShmemError* error) {
  if (requirements.n_ranks != 0) return 0;
  const bool is_open_mpi = getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  if (getenv("NVSHMEM_BOOTSTRAP") == nullptr && is_open_mpi) setenv("NVSHMEM_BOOTSTRAP", "MPI", kKeep);
  if (getenv("PMIX_RANK") != nullptr) setenv("NVSHMEM_BOOTSTRAP_PMI", "PMIX", kKeep);
  const char* bootstrap = getenv("NVSHMEM_BOOTSTRAP");
  if (bootstrap == nullptr && getenv("PMIX_RANK") == nullptr && getenv("PMI_RANK") == nullptr)
    return fail(error,
                "no launcher has started this process; start it by mpirun, set NVSHMEM_BOOTSTRAP, or give "
                "JoinOptions::all_gather");
  if (bootstrap == nullptr || std::strcmp(bootstrap, "MPI") != 0) return 0;
  // Parts of Open MPI look up its symbols among the global ones.
  if (dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL) != nullptr) return 0;
  return fail(error, "NVSHMEM's bootstrap by MPI needs Open MPI: %s", dlerror());
}

static_assert(sizeof(nvshmemx_uniqueid_t) <= sizeof(ShmemId));
int make_id(ShmemId* id, ShmemError* error) {
  prepare_environment();
  nvshmemx_uniqueid_t made = NVSHMEMX_UNIQUEID_INITIALIZER;
  const int code = nvshmemx_get_uniqueid(&made);
  if (code != 0) return fail(error, "nvshmemx_get_uniqueid: error %d; NVSHMEM_DEBUG=INFO says more", code);
  std::memcpy(id->bytes, &made, sizeof(made));
  return 0;
}

// NVSHMEM's own macros would end the process where it does not start.
int start(const ShmemRequirements& requirements, ShmemError* error) {
  int provided = NVSHMEM_THREAD_SINGLE;
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  unsigned flags = 0;
  if (requirements.n_ranks != 0) {
    std::memcpy(&id, requirements.id.bytes, sizeof(id));
    flags = NVSHMEMX_INIT_WITH_UNIQUEID;
    const int code =
        nvshmemx_set_attr_uniqueid_args(requirements.rank, requirements.n_ranks, &id, &attributes);
    if (code != 0) return fail(error, "nvshmemx_set_attr_uniqueid_args: error %d", code);
  }
  const nvshmemi_version_t version = {NVSHMEM_VENDOR_MAJOR_VERSION, NVSHMEM_VENDOR_MINOR_VERSION,
                                      NVSHMEM_VENDOR_PATCH_VERSION};
  const int code = nvshmemi_init_thread(NVSHMEM_THREAD_SERIALIZED, &provided, flags,
                                        flags != 0 ? &attributes : nullptr, version);
  if (code != 0) return fail(error, "nvshmem_init_thread: error %d; NVSHMEM_DEBUG=INFO says more", code);
  if (provided < NVSHMEM_THREAD_SERIALIZED)
    return fail(error, "nvshmem_init_thread: thread level %d; it must be at least %d", provided,
                NVSHMEM_THREAD_SERIALIZED);
  return 0;
}

// Once there is symmetric memory NVSHMEM has started wholly, and knows who shares a GPU.
int check_sharing(ShmemError* error) {
  const int status = nvshmemx_init_status();
  if (status == NVSHMEM_STATUS_IS_INITIALIZED || status == NVSHMEM_STATUS_FULL_MPG) return 0;
  if (status == NVSHMEM_STATUS_LIMITED_MPG)
    return fail(error, "processes share GPU %d, which needs MPS: start nvidia-cuda-mps-control -d", my_gpu);
  return fail(error, "nvshmem_init_thread left status %d", status);
}

// A peer's signal arrives behind its puts over a network only if the GPU orders what network cards write,
// since kernels look at their own memory without asking NVSHMEM.
int check_order_of_writes(ShmemError* error) {
  int order = 0;
  if (check(cudaDeviceGetAttribute(&order, cudaDevAttrGPUDirectRDMAWritesOrdering, my_gpu),
            "cudaDeviceGetAttribute", error) != 0)
    return 1;
  for (int pe = 0; pe < nvshmem_n_pes(); ++pe)
    if (nvshmem_ptr(gathered, pe) == nullptr && order < cudaGPUDirectRDMAWritesOrderingOwner)
      return fail(
          error,
          "PE %d is reached over a network, but GPU %d orders writes of network cards by %d; it must be %d",
          pe, my_gpu, order, cudaGPUDirectRDMAWritesOrderingOwner);
  return 0;
}

int init(const ShmemRequirements* requirements, ShmemError* error) {
  prepare_environment();
  if (choose_bootstrap(*requirements, error) != 0 || choose_gpu(*requirements, error) != 0 ||
      start(*requirements, error) != 0)
    return 1;
  if (check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate", error) != 0)
    return 1;
  const uint64_t bytes = static_cast<uint64_t>(nvshmem_n_pes()) * kGatherBytes;
  gathered = static_cast<std::byte*>(nvshmem_align(kAlignment, bytes));
  if (gathered == nullptr)
    return fail(error, "nvshmem_align: no %llu bytes", static_cast<unsigned long long>(bytes));
  return check_sharing(error) != 0 ? 1 : check_order_of_writes(error);
}

void* allocate(uint64_t bytes) { return nvshmem_align(kAlignment, bytes); }
int gpu() { return my_gpu; }
void finalize() { nvshmem_finalize(); }
void* pointer_at(const void* address, int pe) { return nvshmem_ptr(address, pe); }

int copy(void* to, const void* from, uint64_t bytes, ShmemError* error) {
  if (check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync", error) != 0)
    return 1;
  return check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", error);
}

// NVSHMEM's barrier of the host knows nothing of what kernels have put; those of this PE have ended.
void barrier() {
  nvshmemx_quiet_on_stream(stream);
  (void)cudaStreamSynchronize(stream);
  nvshmem_barrier_all();
}

// Reads the part that a PE has filled; where stores do not reach it, through this PE's copy of that part.
int fetch(int pe, void* to, uint64_t bytes, ShmemError* error) {
  std::byte* const part = gathered + static_cast<uint64_t>(pe) * kGatherBytes;
  const void* at_peer = nvshmem_ptr(part, pe);
  if (at_peer == nullptr) {
    nvshmem_getmem(part, part, bytes, pe);
    at_peer = part;
  }
  return copy(to, at_peer, bytes, error);
}

// All PEs take part in every round, also those at which a copy has failed.
int all_gather(const void* mine, uint64_t bytes, void* all, ShmemError* error) {
  std::byte* const my_part = gathered + static_cast<uint64_t>(nvshmem_my_pe()) * kGatherBytes;
  int failed = 0;
  for (uint64_t done = 0; done < bytes; done += kGatherBytes) {
    const uint64_t part_bytes = std::min(bytes - done, kGatherBytes);
    failed |= copy(my_part, static_cast<const std::byte*>(mine) + done, part_bytes, error);
    barrier();
    for (int pe = 0; pe < nvshmem_n_pes(); ++pe)
      failed |= fetch(pe, static_cast<std::byte*>(all) + static_cast<uint64_t>(pe) * bytes + done, part_bytes,
                      error);
    barrier();
  }
  return failed;
}

const ShmemApi& table() {
  static char library[64];
  int major = 0, minor = 0, patch = 0;
  nvshmemx_vendor_get_version_info(&major, &minor, &patch);
  std::snprintf(library, sizeof(library), "NVSHMEM %d.%d.%d", major, minor, patch);
  static const ShmemApi kApi = {
      .size = sizeof(ShmemApi),
      .version = kVersion,
      .library = library,
      .heap_variable = "NVSHMEM_SYMMETRIC_SIZE",
      .target = kShmemCuda,
      .make_id = make_id,
      .init = init,
      .finalize = finalize,
      .abandon = abandon,
      .my_pe = nvshmem_my_pe,
      .n_pes = nvshmem_n_pes,
      .gpu = gpu,
      .allocate = allocate,
      .release = nvshmem_free,
      .pointer_at = pointer_at,
      .put = nullptr,
      .fence = nullptr,
      .signal = nullptr,
      .quiet = nullptr,
      .progress = nullptr,
      .barrier = barrier,
      .all_gather = all_gather,
      .kernels = &nvshmem_kernels(),
  };
  return kApi;
}

}  // namespace
}  // namespace switchyard

extern "C" __attribute__((visibility("default"))) const ShmemApi* switchyard_shmem_api() {
  return &switchyard::table();
}
