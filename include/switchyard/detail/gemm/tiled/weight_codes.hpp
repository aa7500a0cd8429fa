// What the codes and the scales of coded weights are.
#pragma once

#include <type_traits>

#include "switchyard/detail/base/e8m0.hpp"
#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/types/matmul_tuning.hpp"

namespace switchyard {

template <WeightFormat kFormat>
struct WeightCodes {
  using Element = std::conditional_t<kFormat == WeightFormat::kMXFP8, e4m3, e2m1>;
  using Scale = std::conditional_t<kFormat == WeightFormat::kNVFP4, e4m3, e8m0>;

  static constexpr int kGroupSize = scale_group_size(kFormat);
};

}  // namespace switchyard
