// What combine asks of an epilogue that an application brings (own_kernels.hpp): a type that takes the
// weighted sum of a token instead of an output in bf16.
//
//   struct AddResidual {
//     const bf16* residual;
//     bf16* output;
//     int32_t hidden;
//     SWITCHYARD_DEVICE void operator()(int token_idx, int column,
//                                       const float (&sums)[kColumnsPerThread]) const;
//   };
//
// An epilogue is copied into the kernel's parameters, so it is trivially copyable, and its pointers are into
// memory of the rank's device. SWITCHYARD_DEVICE marks a function that runs inside a kernel.
//
// Threads. The call runs inside combine_wait, in many threads of many blocks at once, and exactly once for
//   each token and each kColumnsPerThread columns of it, in no order. Nothing orders two calls, and a call
//   must not wait, shuffle or meet at a barrier: it is made by single threads.
// Errors. There are none inside a kernel.
#pragma once

#include "switchyard/detail/target/target.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// The columns that one thread handles at a time: 16 bytes of bf16.
inline constexpr int kColumnsPerThread = 8;

// Takes the router-weighted sum of token `token_idx` of this rank, the shared expert's row included, in fp32
// before any rounding: columns `column` .. `column` + kColumnsPerThread - 1, where `column` is a multiple of
// kColumnsPerThread below hidden.
template <typename Epilogue>
concept CombineEpilogue = requires(const Epilogue epilogue, int token_idx, int column,
                                   const float (&values)[kColumnsPerThread]) {
  epilogue(token_idx, column, values);
};

// Rounds kColumnsPerThread sums to bf16, for one store of 16 bytes (target::st_16).
SWITCHYARD_DEVICE Vec16 pack_bf16(const float* values) {
  Vec16 packed;
  SWITCHYARD_UNROLL
  for (int i = 0; i < kColumnsPerThread / 2; ++i)
    packed.words[i] = target::to_bf16x2(values[2 * i], values[2 * i + 1]);
  return packed;
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
