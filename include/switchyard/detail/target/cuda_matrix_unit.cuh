// The matrix unit of Hopper as words: one warpgroup multiplies 64 rows by a tile of shared memory. PTX wants
// every register of the sums named, and so does asm, whose operands are numbered: the macros below list them
// for each number of sums. Included by cuda_matrix.cuh only.
#pragma once

#include "switchyard/detail/target/vocabulary.hpp"

// The names of the first so many operands.
#define SWITCHYARD_OPERANDS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SWITCHYARD_OPERANDS_16 SWITCHYARD_OPERANDS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SWITCHYARD_OPERANDS_32 \
  SWITCHYARD_OPERANDS_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SWITCHYARD_OPERANDS_40 \
  SWITCHYARD_OPERANDS_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SWITCHYARD_OPERANDS_64                                                            \
  SWITCHYARD_OPERANDS_32                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48" \
  ", %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SWITCHYARD_OPERANDS_80 \
  SWITCHYARD_OPERANDS_64       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SWITCHYARD_OPERANDS_88 \
  SWITCHYARD_OPERANDS_80       \
  ", %80, %81, %82, %83, %84, %85, %86, %87"
#define SWITCHYARD_OPERANDS_96                                                       \
  SWITCHYARD_OPERANDS_64                                                             \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SWITCHYARD_OPERANDS_128                                                                  \
  SWITCHYARD_OPERANDS_96                                                                         \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// The sums d[first] .. as operands that are read and written.
#define SWITCHYARD_SUMS_8(first)                                                                  \
  "+f"(d[first]), "+f"(d[first + 1]), "+f"(d[first + 2]), "+f"(d[first + 3]), "+f"(d[first + 4]), \
      "+f"(d[first + 5]), "+f"(d[first + 6]), "+f"(d[first + 7])
#define SWITCHYARD_SUMS_16(first) SWITCHYARD_SUMS_8(first), SWITCHYARD_SUMS_8(first + 8)
#define SWITCHYARD_SUMS_32(first) SWITCHYARD_SUMS_16(first), SWITCHYARD_SUMS_16(first + 16)
#define SWITCHYARD_SUMS_40(first) SWITCHYARD_SUMS_32(first), SWITCHYARD_SUMS_8(first + 32)
#define SWITCHYARD_SUMS_64(first) SWITCHYARD_SUMS_32(first), SWITCHYARD_SUMS_32(first + 32)
#define SWITCHYARD_SUMS_80(first) SWITCHYARD_SUMS_64(first), SWITCHYARD_SUMS_16(first + 64)
#define SWITCHYARD_SUMS_88(first) SWITCHYARD_SUMS_80(first), SWITCHYARD_SUMS_8(first + 80)
#define SWITCHYARD_SUMS_128(first) SWITCHYARD_SUMS_64(first), SWITCHYARD_SUMS_64(first + 64)

// Both operands in shared memory: a_at, b_at and p_at are the numbers of the three operands behind the sums.
#define SWITCHYARD_MULTIPLY(name, shape, transposes, sums, a_at, b_at, p_at)                           \
  SWITCHYARD_DEVICE static void name(float(&d)[sums], uint64_t a, uint64_t b, int accumulate) {        \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #p_at ", 0; wgmma.mma_async.sync.aligned." shape   \
                 " {" SWITCHYARD_OPERANDS_##sums "}, %" #a_at ", %" #b_at ", p, 1, 1" transposes "; }" \
                 : SWITCHYARD_SUMS_##sums(0)                                                           \
                 : "l"(a), "l"(b), "r"(accumulate));                                                   \
  }
// The first operand in the registers a[0] .. a[3].
#define SWITCHYARD_MULTIPLY_REGISTERS(name, shape, transposes, sums, a0, a1, a2, a3, b_at)            \
  SWITCHYARD_DEVICE static void name(float(&d)[sums], const uint32_t* a, uint64_t b) {                \
    asm volatile("wgmma.mma_async.sync.aligned." shape " {" SWITCHYARD_OPERANDS_##sums                \
                 "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", 1, 1, 1, " #transposes ";" \
                 : SWITCHYARD_SUMS_##sums(0)                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                               \
  }

namespace switchyard::inline SWITCHYARD_TARGET::target {

// multiply(): sums (or, without `accumulate`, the product alone) of 64 x 16 by 16 x kWidth, both operands
// tiles of shared memory with 16 elements of the inner dimension in a row. multiply_fp8(): the same with 32
// elements of e4m3. multiply_registers(): the first operand in registers. multiply_transposed(): the same,
// and the second with the inner dimension across rows.
template <int kWidth>
struct MatrixUnit;

template <>
struct MatrixUnit<16> {
  SWITCHYARD_MULTIPLY_REGISTERS(multiply_registers, "m64n16k16.f32.bf16.bf16", 0, 8, 8, 9, 10, 11, 12)
};

template <>
struct MatrixUnit<32> {
  SWITCHYARD_MULTIPLY(multiply, "m64n32k16.f32.bf16.bf16", ", 0, 0", 16, 16, 17, 18)
};

template <>
struct MatrixUnit<64> {
  SWITCHYARD_MULTIPLY(multiply, "m64n64k16.f32.bf16.bf16", ", 0, 0", 32, 32, 33, 34)
  SWITCHYARD_MULTIPLY_REGISTERS(multiply_registers, "m64n64k16.f32.bf16.bf16", 0, 32, 32, 33, 34, 35, 36)
  SWITCHYARD_MULTIPLY_REGISTERS(multiply_transposed, "m64n64k16.f32.bf16.bf16", 1, 32, 32, 33, 34, 35, 36)
};

template <>
struct MatrixUnit<80> {
  SWITCHYARD_MULTIPLY(multiply, "m64n80k16.f32.bf16.bf16", ", 0, 0", 40, 40, 41, 42)
};

template <>
struct MatrixUnit<128> {
  SWITCHYARD_MULTIPLY(multiply, "m64n128k16.f32.bf16.bf16", ", 0, 0", 64, 64, 65, 66)
  SWITCHYARD_MULTIPLY(multiply_fp8, "m64n128k32.f32.e4m3.e4m3", "", 64, 64, 65, 66)
  SWITCHYARD_MULTIPLY_REGISTERS(multiply_registers, "m64n128k16.f32.bf16.bf16", 0, 64, 64, 65, 66, 67, 68)
  SWITCHYARD_MULTIPLY_REGISTERS(multiply_transposed, "m64n128k16.f32.bf16.bf16", 1, 64, 64, 65, 66, 67, 68)
};

template <>
struct MatrixUnit<176> {
  SWITCHYARD_MULTIPLY(multiply, "m64n176k16.f32.bf16.bf16", ", 0, 0", 88, 88, 89, 90)
};

template <>
struct MatrixUnit<256> {
  SWITCHYARD_MULTIPLY(multiply, "m64n256k16.f32.bf16.bf16", ", 0, 0", 128, 128, 129, 130)
  SWITCHYARD_MULTIPLY_REGISTERS(multiply_transposed, "m64n256k16.f32.bf16.bf16", 1, 128, 128, 129, 130, 131,
                                132)
};

}  // namespace switchyard::inline SWITCHYARD_TARGET::target

#undef SWITCHYARD_OPERANDS_8
#undef SWITCHYARD_OPERANDS_16
#undef SWITCHYARD_OPERANDS_32
#undef SWITCHYARD_OPERANDS_40
#undef SWITCHYARD_OPERANDS_64
#undef SWITCHYARD_OPERANDS_80
#undef SWITCHYARD_OPERANDS_88
#undef SWITCHYARD_OPERANDS_96
#undef SWITCHYARD_OPERANDS_128
#undef SWITCHYARD_SUMS_8
#undef SWITCHYARD_SUMS_16
#undef SWITCHYARD_SUMS_32
#undef SWITCHYARD_SUMS_40
#undef SWITCHYARD_SUMS_64
#undef SWITCHYARD_SUMS_80
#undef SWITCHYARD_SUMS_88
#undef SWITCHYARD_SUMS_128
#undef SWITCHYARD_MULTIPLY
#undef SWITCHYARD_MULTIPLY_REGISTERS
