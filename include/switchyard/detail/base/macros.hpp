// The decorations that let one source compile for the CPU and the GPU.
#pragma once

// SWITCHYARD_HD marks a function for both. SWITCHYARD_NO_EXEC_CHECK stands before such a template that calls
// what its arguments bring: it runs where they do, and nvcc need not warn that it could not run elsewhere.
// SWITCHYARD_FORCE_INLINE keeps a function of both out of a kernel's call graph.
#if defined(__CUDACC__)
#define SWITCHYARD_HD __host__ __device__
#define SWITCHYARD_NO_EXEC_CHECK _Pragma("nv_exec_check_disable")
#define SWITCHYARD_FORCE_INLINE __forceinline__
#else
#define SWITCHYARD_HD
#define SWITCHYARD_NO_EXEC_CHECK
#define SWITCHYARD_FORCE_INLINE inline
#endif

// SWITCHYARD_WIDE marks a host function that loops over floats. On x86 the library's own build compiles it
// twice, for any processor and for those with AVX2, and the one that this processor can run is chosen when
// the program is loaded. Both give the same bits: vectors are wider, but each sum and each product is rounded
// as before. Whoever includes a header with such a function compiles it once: compilers name the choice
// differently, and a link of both would take one's choice and the other's functions. Only glibc's loader
// chooses. Not under ThreadSanitizer, whose runtime is not there yet when it does.
#if defined(__has_include)
#if __has_include(<features.h>)
#include <features.h>
#endif
#endif
#if defined(SWITCHYARD_OWN_BUILD) && defined(__x86_64__) && defined(__GLIBC__) && !defined(__CUDACC__) && \
    !defined(__SANITIZE_THREAD__)
#define SWITCHYARD_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define SWITCHYARD_WIDE
#endif
