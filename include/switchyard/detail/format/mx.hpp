// MXTokenFormat: MXFP8, MXFP6 and MXFP4 of the OCP Microscaling specification, one e8m0 scale per 32
// elements, the scales of a row side by side. docs/formats.md has the layouts.
#pragma once

#include "switchyard/detail/format/row_scaled.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename ElementOf>
struct MXQuantizer {
  using Element = ElementOf;
  using Scale = e8m0;
  static constexpr int kGroupSize = 32;

  struct GroupScale {
    e8m0 stored;
    float factor;
  };
  SWITCHYARD_DEVICE GroupScale scale_of(float amax) const {
    const e8m0 scale = mx_scale<Element>(amax);
    return {scale, reciprocal(scale)};
  }
};

// Element: e4m3, e5m2, e2m3, e3m2 or e2m1.
template <typename Element>
using MXTokenFormat = RowScaledTokenFormat<MXQuantizer<Element>>;
static_assert(TokenFormat<MXTokenFormat<e4m3>> && TokenFormat<MXTokenFormat<e5m2>>);
static_assert(TokenFormat<MXTokenFormat<e2m3>> && TokenFormat<MXTokenFormat<e3m2>>);
static_assert(TokenFormat<MXTokenFormat<e2m1>> && InPlaceTokenFormat<MXTokenFormat<e2m1>>);

}  // namespace switchyard::inline SWITCHYARD_TARGET
