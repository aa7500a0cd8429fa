// Estimates how much memory a layer will use, before it does.
#include <algorithm>
#include <numeric>

#include "layer_run.hpp"

namespace switchyard::tools {
namespace {

// Bytes of one thread of the emulator: what kernels use of its stack, and its bookkeeping.
constexpr double kThreadBytes = 12 << 10;
constexpr double kPageBytes = 4096;
// The process itself, with counters and cells of all ranks.
constexpr double kOtherBytes = 32 << 20;

double num_tokens(const Workload& workload) {
  return std::accumulate(workload.tokens_per_rank.begin(), workload.tokens_per_rank.end(), 0.0);
}

}  // namespace

double LayerRun::host_bytes(int num_flights) const {
  const bool is_host = world_.target() == Target::kHost;
  const double n_ranks = world_.n_ranks(), num_groups = num_matrices();
  const double token_bytes = workload_.hidden * sizeof(bf16);
  const double expert_bytes = 3.0 * workload_.expert_width * token_bytes;
  const TokenFormatInfo format = info_of(ep_->config().dispatch_format);
  const double tokens = num_tokens(workload_);
  // Even if every rank has the same tokens, each row belongs to one rank.
  const double copies_per_token = workload_.top_k + (workload_.has_shared_expert ? 1 : 0);
  const ExpertParallelConfig& config = ep_->config();
  const double num_padded = std::lcm(format.row_alignment, static_cast<uint32_t>(config.row_alignment)) -
                            1.0 + config.max_rows_per_expert;
  const double num_rows =
      tokens / (workload_.is_replicated ? n_ranks : 1) * copies_per_token + n_ranks * num_groups * num_padded;
  // Results are verified rank by rank; one rank may have all rows.
  const double largest_share =
      std::min(1.0, workload_.routing == RoutingKind::kUniform ? 1.5 / n_ranks : 1.0) * num_rows;
  // The reference's experts, those of a rank on their way to it, the step's tokens and what they should
  // become.
  const double id_bytes = workload_.top_k * (sizeof(int32_t) + sizeof(float));
  const double logit_bytes = workload_.n_experts * static_cast<double>(sizeof(float));
  double once = kOtherBytes + expert_bytes * (workload_.n_experts + (workload_.has_shared_expert ? 1 : 0)) +
                expert_bytes * num_groups;
  double by_flight = tokens * (4 * token_bytes + id_bytes + logit_bytes) +
                     largest_share * (2 * token_bytes + format.row_bytes(workload_.hidden));
  if (is_host) {
    // Flights of fast matmuls share their weights.
    (is_fast() ? once : by_flight) += n_ranks * num_groups * expert_bytes;
    by_flight += rank_bytes(num_rows);
  }
  return once + num_flights * by_flight;
}

// Bytes of all ranks together, which have so many rows, without the weights of their experts.
double LayerRun::rank_bytes(double num_rows) const {
  const double n_ranks = world_.n_ranks();
  const double token_bytes = workload_.hidden * sizeof(bf16),
               width_bytes = workload_.expert_width * sizeof(bf16);
  const ExpertParallelConfig& config = ep_->config();
  const TokenFormatInfo format = info_of(config.dispatch_format);
  const double tokens = num_tokens(workload_);
  double bytes = tokens * (2 * token_bytes + workload_.n_experts * sizeof(float) +
                           workload_.top_k * (2 * sizeof(int32_t) + sizeof(float)));
  const double output_bytes = encodes_outputs() ? ep_->combine_message_bytes() : token_bytes;
  bytes +=
      num_rows * (format.row_bytes(workload_.hidden) + output_bytes + 3 * width_bytes + 2 * sizeof(int32_t) +
                  (is_encoded() && !is_fast() ? token_bytes : 0) + (encodes_outputs() ? token_bytes : 0));
  // Scales are overwritten for all rows that the tensors hold.
  bytes += n_ranks * static_cast<double>(format.scale_tensor_bytes(max_rows_, workload_.hidden).value());
  if (is_per_rank()) bytes += num_rows * 2 * token_bytes;
  if (config.protocol == Protocol::kSlotted)
    // Slots of messages, each expert's of each rank on pages of their own, and of rows that come back.
    bytes += num_rows * ep_->dispatch_message_bytes() + n_ranks * workload_.n_experts * kPageBytes +
             tokens * (workload_.top_k * ep_->combine_message_bytes() +
                       (workload_.has_shared_expert ? ep_->dispatch_message_bytes() : 0));
  else if (is_encoded())
    bytes += tokens * (format.encodes_by_expert ? workload_.top_k + 1 : 1) *
             format.num_scales(workload_.hidden) * format.scale_bytes;
  if (workload_.is_replicated) bytes += 2 * tokens * token_bytes;
  const double num_threads = std::max<double>(config.num_threads, kHostThreads);
  return bytes + n_ranks * ep_->n_sms() * num_threads * kThreadBytes;
}

}  // namespace switchyard::tools
