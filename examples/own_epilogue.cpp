// Combine with an epilogue of one's own, between eight ranks: the residual is added to the weighted sum of
// the experts' rows in fp32, before the one rounding to bf16.
#include "sample_step.hpp"
#include "switchyard/own_kernels.hpp"

using namespace switchyard;
using example::SampleStep;

struct AddResidual {
  const bf16* residual;  // [num_tokens][hidden]
  bf16* output;          // [num_tokens][hidden]
  int32_t hidden;

  SWITCHYARD_DEVICE void operator()(int token_idx, int column, const float (&sums)[kColumnsPerThread]) const {
    const int64_t first = int64_t{token_idx} * hidden + column;
    float values[kColumnsPerThread];
    for (int i = 0; i < kColumnsPerThread; ++i)
      values[i] = sums[i] + to_float(target::ld(residual + first + i));
    target::st_16(output + first, pack_bf16(values));
  }
};

int main() {
  auto world = need(World::create({.target = TargetChoice::kHost, .n_ranks = SampleStep::kRanks}));
  ExpertParallelConfig config = SampleStep::config();
  config.own_epilogue = own_epilogue<AddResidual>();
  auto ep = need(ExpertParallel::create(*world, config));
  const SampleStep step(*world, *ep);
  for (int rank = 0; rank < ep->n_ranks(); ++rank) {
    need(ep->dispatch(rank, step.input(rank), step.output(rank)));
    // The experts return what they get, and the tokens are the residual.
    const AddResidual epilogue{step.ranks[rank].tokens.data(), step.ranks[rank].output.data(), config.hidden};
    need(ep->combine(rank, step.expert_output(rank), step.combined(rank, own_destination(epilogue))));
  }
  need(ep->synchronize());
  for (const SampleStep::RankData& rank : step.ranks)
    if (!step.is_tokens_times(1.5f, need(rank.output.download()))) return std::puts("wrong"), 1;
  std::printf("%d ranks: the experts' sums and the residual, added in fp32: right\n", ep->n_ranks());
}
