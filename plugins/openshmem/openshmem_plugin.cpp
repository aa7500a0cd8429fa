// The host's plugin: OpenSHMEM 1.4, as Open MPI has it (detail/transport/shmem_api.hpp).
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <shmem.h>
#include <stdlib.h>

#include <cstdio>

#include "abandon.hpp"
#include "switchyard/detail/transport/shmem_api.hpp"
#include "switchyard/version.hpp"

namespace {

int init(const ShmemRequirements*, ShmemError* error) {
  // Open MPI 4.1 crashes at its end with the component "rdma", which nothing here uses.
  setenv("OMPI_MCA_osc", "^rdma", /*overwrite=*/0);
  int provided = SHMEM_THREAD_SINGLE;
  const int code = shmem_init_thread(SHMEM_THREAD_FUNNELED, &provided);
  if (code == 0 && provided >= SHMEM_THREAD_FUNNELED) return 0;
  std::snprintf(error->text, sizeof(error->text),
                "shmem_init_thread: error %d, thread level %d; it must be at least %d", code, provided,
                SHMEM_THREAD_FUNNELED);
  return 1;
}

void* allocate(uint64_t bytes) { return shmem_align(256, bytes); }
void put(void* dst, const void* src, uint64_t bytes, int pe) { shmem_putmem_nbi(dst, src, bytes, pe); }
void signal(uint64_t* cell, uint64_t value, int pe) { shmem_uint64_p(cell, value, pe); }

// OpenSHMEM has no call for this. Any call of Open MPI that looks for messages makes progress.
void progress() {
  int is_there = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &is_there, MPI_STATUS_IGNORE);
}

const ShmemApi kApi = {
    .size = sizeof(ShmemApi),
    .version = switchyard::kVersion,
    .library = SWITCHYARD_OPENSHMEM_NAME,
    .heap_variable = "SHMEM_SYMMETRIC_HEAP_SIZE",
    .target = kShmemHost,
    .make_id = nullptr,
    .init = init,
    .finalize = shmem_finalize,
    .abandon = switchyard::abandon,
    .my_pe = shmem_my_pe,
    .n_pes = shmem_n_pes,
    .gpu = nullptr,
    .allocate = allocate,
    .release = shmem_free,
    .pointer_at = shmem_ptr,
    .put = put,
    .fence = shmem_fence,
    .signal = signal,
    .quiet = shmem_quiet,
    .progress = progress,
    .barrier = shmem_barrier_all,
    .all_gather = nullptr,
    .kernels = nullptr,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const ShmemApi* switchyard_shmem_api() { return &kApi; }
