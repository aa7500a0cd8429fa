// Dispatch with a token format of one's own, between eight ranks: tokens travel, and arrive, as int8.
#include "int8_token_format.hpp"
#include "sample_step.hpp"

using namespace switchyard;
using example::SampleStep;

int main() {
  auto world = need(World::create({.target = TargetChoice::kHost, .n_ranks = SampleStep::kRanks}));
  ExpertParallelConfig config = SampleStep::config();
  config.own_format = own_format<example::Int8TokenFormat>();
  auto ep = need(ExpertParallel::create(*world, config));
  const SampleStep step(*world, *ep);
  for (int rank = 0; rank < ep->n_ranks(); ++rank)
    need(ep->dispatch(rank, step.input(rank), step.output(rank)));
  need(ep->synchronize());

  for (int rank = 0; rank < ep->n_ranks(); ++rank) {
    const auto& [rows, tokens, output, ids, expert_ids, weights, row_offsets] = step.ranks[rank];
    const int num_rows = static_cast<int>(need(row_offsets.download()).back());
    const auto* codes = reinterpret_cast<const int8_t*>(rows.encoded_rows);  // the emulator's memory
    const auto* scales = reinterpret_cast<const float*>(rows.scales);        // is the host's
    for (int i = 0; i < num_rows * config.hidden; ++i) {
      const int row = i / config.hidden, column = i % config.hidden;
      const float sent = to_float(step.tokens[rows.src_info[2 * row] * config.hidden + column]);
      if (std::fabs(static_cast<float>(codes[i]) * scales[row] - sent) <= 0.501f * scales[row]) continue;
      return std::fprintf(stderr, "rank %d, row %d, column %d: wrong\n", rank, row, column), 1;
    }
    std::printf("rank %d: %d rows of int8, every element within half a step\n", rank, num_rows);
  }
}
