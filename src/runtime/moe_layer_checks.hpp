// What a MoeLayer checks before it enqueues anything, and what follows from its configuration alone.
#pragma once

#include <vector>

#include "switchyard/moe_layer.hpp"

namespace switchyard {

// What the matmuls of a layer read.
MatmulRows rows_of(const MoeLayerConfig& config);
MatmulElement element_of(const MoeLayerConfig& config);

Status check_config(const MoeLayerConfig& config);
Status check_weights(const MoeLayerConfig& config, const std::vector<ExpertWeights>& weights,
                     const World& world);
Status check_step(const MoeLayerConfig& config, const MoeLayerStep& step);

}  // namespace switchyard
