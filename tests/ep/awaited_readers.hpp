// A combine of rows in the caller's memory, which are overwritten behind it on the stream of their rank,
// whatever the other ranks still do.
#pragma once

#include <functional>
#include <string>

#include "many_steps.hpp"
#include "switchyard/detail/target/host.hpp"

namespace switchyard::testing_support {

// `overwrite` enqueues on the rank's stream. Returns what is wrong.
using Overwrite = std::function<Status(int rank, Buffer<bf16>& rows)>;
inline std::string run_awaited_readers(ManySteps& many, const Overwrite& overwrite) {
  constexpr int kNumCombines = 2;
  const int n_ranks = many.ep->n_ranks();
  // Rank 0 has none: its combine has read everything while others still read from it.
  const auto num_tokens_of = [&](int rank) { return rank == 0 ? 0 : many.num_tokens; };
  Status status;
  for (int rank = 0; rank < n_ranks && status.ok(); ++rank) {
    DispatchInput input = many.input(0, rank);
    input.num_tokens = num_tokens_of(rank);
    status = many.ep->dispatch(rank, input, many.output(0, rank));
  }
  if (status.ok()) status = many.ep->synchronize();
  if (!status.ok()) return status.to_string();
  std::vector<Buffer<bf16>> outputs;
  std::vector<Buffer<bf16>> lent[kNumCombines];
  for (int rank = 0; rank < n_ranks; ++rank)
    for (int i = 0; i < kNumCombines; ++i) {
      lent[i].push_back(many.scaled_rows(rank, static_cast<float>(2 << i)));
      outputs.push_back(must(
          many.world->rank(rank).allocate<bf16>(static_cast<size_t>(many.num_tokens) * ManySteps::kHidden)));
    }
  for (int i = 0; i < kNumCombines; ++i) {
    for (int rank = 0; rank < n_ranks && status.ok(); ++rank) {
      const Buffer<bf16>& rows = lent[i][static_cast<size_t>(rank)];
      if (i > 0) status = many.ep->reopen_step(rank);
      if (status.ok() && !must(many.ep->offer_expert_rows(rank, rows.data()))) return "an offer is not taken";
      const ManySteps::Memory& own = many.at(0, rank);
      bf16* output = outputs[static_cast<size_t>(rank * kNumCombines + i)].data();
      if (status.ok())
        status = many.ep->combine(
            rank, {.expert_rows = rows.data(), .awaits_readers = true},
            {own.ids.data(), own.weights.data(), num_tokens_of(rank), {CombineReduction::kWeighted, output}});
    }
    for (int rank = 0; rank < n_ranks && status.ok(); ++rank)
      status = overwrite(rank, lent[i][static_cast<size_t>(rank)]);
  }
  if (status.ok()) status = many.ep->synchronize();
  if (!status.ok()) return status.to_string();
  for (int rank = 1; rank < n_ranks; ++rank)
    for (int i = 0; i < kNumCombines; ++i)
      if (must(outputs[static_cast<size_t>(rank * kNumCombines + i)].download()) !=
          many.expected(0, rank, static_cast<float>(2 << i)))
        return "combine " + std::to_string(i) + " of rank " + std::to_string(rank) + " has other rows";
  return "";
}

// Overwrites them by a kernel, on the host target, where other ranks' kernels run meanwhile.
struct OverwriteParams {
  bf16* rows;
  size_t num_values;
};
inline void overwrite_rows(OverwriteParams params) {
  for (size_t i = static_cast<size_t>(target::thread_idx()); i < params.num_values;
       i += static_cast<size_t>(target::num_threads()))
    target::st(params.rows + i, bf16{});
}
inline Overwrite overwriting_kernel(ManySteps& many) {
  return [&many](int rank, Buffer<bf16>& rows) {
    return target::launch("overwrite", overwrite_rows, {.num_blocks = 1, .num_threads = 64},
                          many.world->rank(rank).stream(), OverwriteParams{rows.data(), rows.size()});
  };
}

}  // namespace switchyard::testing_support
