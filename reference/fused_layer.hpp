// A MoE layer whose matmuls have their activation fused in, in plain loops: what lies between the two
// products is rounded once, and fp8 is never decoded to bf16.
#pragma once

#include "reference.hpp"
#include "switchyard/types/matmul_tuning.hpp"

namespace switchyard::reference {

// What `experts` of an ExpertFunction is for fused_expert().
struct FusedExperts {
  const MlpExperts& mlp;
  MatmulElement element = MatmulElement::kBF16;  // that the matmuls read
};
// down(silu(gate(x)) * up(x)): sums in fp32 over k in order, rounded to `element` between the products, and
// to bf16 behind them.
std::vector<bf16> fused_expert(const void* experts, const Step& step, int rank, int token_idx,
                               int expert_idx);

// moe_layer() of such experts. Kernels sum up in another order, so that a number that lies between two others
// may be rounded to either.
std::vector<std::vector<bf16>> fused_moe_layer(const Step& step, const FusedExperts& experts);

}  // namespace switchyard::reference
