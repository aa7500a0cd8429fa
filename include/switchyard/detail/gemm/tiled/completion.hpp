// Who is told that the rows of a group are complete: a launch behind a matmul may start while it still runs.
#pragma once

#include <concepts>

#include "switchyard/detail/gemm/tiled/kernel_params.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// kTells: whether anybody is told before the launch ends. complete_part(), called by a whole warp behind a
// barrier with the threads that wrote a part of the group's rows, counts it; the group has num_parts parts.
template <typename T>
concept MatmulCompletion = requires(const T& completion, uint32_t number) {
  { T::kTells } -> std::convertible_to<bool>;
  { completion.complete_part(number, number) } -> std::same_as<void>;
};

// The end of the launch tells.
struct CompleteAtEnd {
  static constexpr bool kTells = false;
  SWITCHYARD_DEVICE void complete_part(uint32_t, uint32_t) const {}
};
static_assert(MatmulCompletion<CompleteAtEnd>);

template <MatmulCompletion Completion>
struct TellingMatmulParams {
  MatmulParams matmul;
  Completion completion;
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
