// What a plugin gives the library: a SHMEM, behind a plain table of C functions. The library itself needs no
// SHMEM: it looks for `libswitchyard_openshmem.so` (host) or `libswitchyard_nvshmem.so` (CUDA) at run time,
// in the folders of the environment's SWITCHYARD_PLUGIN_PATH, beside the program, and in lib/switchyard
// beside the installed library. A plugin exports one function, kShmemApiSymbol.
//
// One thread, the *wire thread*, makes all calls, from init() to finalize(). Nothing is thrown across the
// table. Calls that can fail return 0 for success, and otherwise leave a text in their ShmemError. A call is
// *collective* if all PEs make it in the same order; such a call may wait for a PE that has died, for ever:
// what needs a deadline is made of puts and signals, or waited for by another thread.
#pragma once

#include <cstdint>

extern "C" {

// Why a call has failed: zero-terminated, cut off where it does not fit.
struct ShmemError {
  char text[1024];
};

enum ShmemTarget : int32_t { kShmemHost = 0, kShmemCuda = 1 };

// How processes meet that no launcher has started.
struct ShmemId {
  unsigned char bytes[128];
};

// What the library needs from init().
struct ShmemRequirements {
  uint64_t size;  // sizeof(ShmemRequirements)
  int32_t gpu;    // CUDA: which of the visible GPUs; -1: the number of the PE on its machine modulo theirs
  // If no launcher has started the processes: which of how many this one is, and what make_id() has given one
  // of them. 0 of them: a launcher has.
  int32_t rank, n_ranks;
  ShmemId id;
};

struct ShmemApi {
  uint64_t size;        // sizeof(ShmemApi): checked before anything else is read
  const char* version;  // of the Switchyard that the plugin was built with; another one is refused
  const char* library;  // what is behind the table, for people: "OpenSHMEM 1.4 (Open MPI 4.1.2)"
  // The environment variable that says how much symmetric memory there is.
  const char* heap_variable;
  ShmemTarget target;  // whose memory is symmetric, and who makes puts: the host, or kernels on CUDA

  // One of the processes that no launcher has started makes what all give to init(). Any thread may call it,
  // before init(). Null: this SHMEM needs its launcher.
  int (*make_id)(ShmemId* id, ShmemError* error);

  // Starts SHMEM. Collective. On CUDA the GPU is current from then on, for this thread.
  int (*init)(const ShmemRequirements* requirements, ShmemError* error);
  // Ends SHMEM, and frees all symmetric memory. Collective. It cannot be started again.
  void (*finalize)();
  // SHMEM will not be ended, since a PE may be gone: makes sure that exit() does not wait for it. Any thread
  // may call it.
  void (*abandon)();

  int (*my_pe)();
  int (*n_pes)();
  // CUDA: the GPU that this PE uses. Null on the host.
  int (*gpu)();

  // Symmetric memory of `bytes` at every PE, aligned to 256 bytes; null: there is too little. Collective.
  // What is in it is unspecified.
  void* (*allocate)(uint64_t bytes);
  // Collective, as a barrier over all PEs is.
  void (*release)(void* memory);
  // Where loads and stores of this process (CUDA: of its kernels) reach the symmetric `address` at `pe`;
  // null: they do not.
  void* (*pointer_at)(const void* address, int pe);

  // The host's wire; null on CUDA, where kernels have these words. `dst` and `cell` are symmetric addresses.
  // put() may read `src`, which is symmetric, too, until quiet() returns. fence(): puts and signals so far
  // arrive at each PE before those that follow. quiet(): they have arrived.
  void (*put)(void* dst, const void* src, uint64_t bytes, int pe);
  void (*fence)();
  void (*signal)(uint64_t* cell, uint64_t value, int pe);
  void (*quiet)();
  // Lets puts and signals of other PEs arrive here, where that needs this process. It does not block.
  void (*progress)();

  // Waits for all PEs, and for everything that they have put. Collective.
  void (*barrier)();
  // Gives `bytes` of each PE to all of them, in their order; both are memory of the host. Collective. Null on
  // the host, where the library makes it of puts and signals, which have a deadline.
  int (*all_gather)(const void* mine, uint64_t bytes, void* all, ShmemError* error);

  // CUDA: the `KernelTable` (detail/launch/kernel_table.hpp) whose `wired` kernels use this SHMEM. Null on
  // the host.
  const void* kernels;
};

}  // extern "C"

namespace switchyard {

inline constexpr char kShmemApiSymbol[] = "switchyard_shmem_api";
using ShmemApiFunction = const ShmemApi* (*)();

}  // namespace switchyard
