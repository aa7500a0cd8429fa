#include "published_steps.hpp"

#include "plan_routing.hpp"

namespace switchyard::tools {
namespace {

using Unit = PublishedStep::Unit;

// 8 ranks x 16 blocks on one H200: docs/performance.md, the tables of dispatch and combine, of token formats
// and of other shapes.
PublishedStep measured(int tokens, Protocol protocol, double dispatch, double combine,
                       TokenFormatKind format = TokenFormatKind::kBF16,
                       CombineFormat combine_format = CombineFormat::kBF16, const char* reason = "") {
  const PlanShape shape{.max_tokens_per_rank = tokens,
                        .protocol = protocol,
                        .format = format,
                        .combine_format = combine_format};
  return {"Switchyard",
          "8 ranks on one H200, " + std::to_string(tokens) + (tokens == 1 ? " token, " : " tokens, ") +
              to_string(protocol) + ", " + to_string(format) + "/" + to_string(combine_format),
          /*is_measured_here=*/true,
          shape,
          {.n_ranks = 8, .ranks_per_device = 8},
          dispatch,
          combine,
          Unit::kMicroseconds,
          reason};
}

// fp8 or bf16 to the experts, bf16 back. The rows lie per rank, or in slots per expert.
PlanShape shape_of(int tokens, PlanMessage message, TokenFormatKind format = TokenFormatKind::kFP8) {
  const bool is_per_expert = message == PlanMessage::kExpert;
  return {.max_tokens_per_rank = tokens,
          .protocol = is_per_expert ? Protocol::kSlotted : Protocol::kDirect,
          .format = format,
          .layout = is_per_expert ? PlanLayout::kMasked : PlanLayout::kPerRank,
          .message = message,
          .combine_message = message};
}

Cluster cluster_of(int n_ranks, int ranks_per_node, double link_gb_s) {
  return {.n_ranks = n_ranks, .ranks_per_node = ranks_per_node, .link_gb_s = link_gb_s};
}

constexpr const char* kCached =
    "the 46 MB of rows and messages stay in the L2 of 60 MB; the model takes them to memory and back";
constexpr const char* kFullLink =
    "the model lets a link carry its full 450 GB/s; kernels on 24 SMs of each GPU were measured at 0.7 of it";
constexpr const char* kFewSms =
    "8 SMs do not fill the NIC: the same kernels carry 77 GB/s in bf16, which is within a third of the model";
constexpr const char* kAboveNic =
    "896 rows of 7.4 KB in 77 us are 86 GB/s, more than a NIC of 50 GB/s carries, so part of them took "
    "NVLink; "
    "with 8 ranks in a node and links of 160 GB/s the model says 65 and 101 us";
constexpr const char* kSmall =
    "at full bandwidth a link takes 15 us for rows of fp8 and 29 us for bf16; the rest is latency, for which "
    "the model has that of fused kernels launched from a graph on one GPU";
constexpr const char* kSums =
    "links take 9 us; the rest is latency, and the figure has the sum at the owner, which the model takes to "
    "cost its bytes alone";

}  // namespace

std::vector<PublishedStep> published_steps() {
  std::vector<PublishedStep> steps = {
      measured(1, Protocol::kDirect, 16.9, 13.7),
      measured(16, Protocol::kDirect, 19.3, 14.6),
      measured(128, Protocol::kDirect, 44.9, 49.6),
      measured(1024, Protocol::kDirect, 305, 279),
      measured(4096, Protocol::kDirect, 1196, 1061),
      measured(4096, Protocol::kDirect, 735, 608, TokenFormatKind::kFP8, CombineFormat::kFP8),
      measured(4096, Protocol::kDirect, 507, 0, TokenFormatKind::kNVFP4),
      measured(1, Protocol::kSlotted, 24.9, 20.7),
      measured(16, Protocol::kSlotted, 31.6, 22.3, TokenFormatKind::kBF16, CombineFormat::kBF16, kCached),
      measured(128, Protocol::kSlotted, 123, 114),
      measured(1024, Protocol::kSlotted, 824, 764),
      measured(4096, Protocol::kSlotted, 3235, 2993),
  };
  const PlanShape per_rank = shape_of(4096, PlanMessage::kRank),
                  per_expert = shape_of(128, PlanMessage::kExpert);
  const PlanShape bf16_rows = shape_of(128, PlanMessage::kExpert, TokenFormatKind::kBF16);
  const auto bf16_per_rank = [](int tokens) {
    return shape_of(tokens, PlanMessage::kRank, TokenFormatKind::kBF16);
  };
  const auto add = [&](const char* who, const char* setting, const PlanShape& shape, const Cluster& cluster,
                       double dispatch, double combine, Unit unit, const char* reason = "") {
    steps.push_back({who, setting, false, shape, cluster, dispatch, combine, unit, reason});
  };
  add("DeepEP V1", "8 x H800, link 160 GB/s, 4096 tokens", per_rank, cluster_of(8, 8, 160), 153, 158,
      Unit::kGbPerRank);
  add("DeepEP V1", "8 x H20, link 450 GB/s, 4096 tokens", per_rank, cluster_of(8, 8, 450), 327, 333,
      Unit::kGbPerRank, kFullLink);
  add("UCCL-EP", "8 x H200, 4096 tokens", per_rank, cluster_of(8, 8, 450), 500, 973, Unit::kMicroseconds,
      kFullLink);
  for (const auto& [n_ranks, dispatch, combine] : {std::tuple(16, 90, 81), std::tuple(32, 61, 61)})
    add("DeepEP V2", n_ranks == 16 ? "16 x SM90, CX7, 8192 tokens" : "32 x SM90, CX7, 8192 tokens",
        shape_of(8192, PlanMessage::kNode), cluster_of(n_ranks, 8, 450), dispatch, combine, Unit::kGbPerNode);
  add("HybridEP", "16 x H100, 4096 tokens", shape_of(4096, PlanMessage::kNode), cluster_of(16, 8, 450), 62,
      68, Unit::kGbPerNode, kFewSms);
  add("DeepEP V1 LL", "8 x H800, said to be RDMA only, 128 tokens", per_expert, cluster_of(8, 1, 160), 77,
      114, Unit::kMicroseconds, kAboveNic);
  add("DeepEP V1 LL", "64 x H800, RDMA only, 128 tokens", per_expert, cluster_of(64, 1, 160), 173, 314,
      Unit::kMicroseconds);
  add("DeepEP V1 LL", "8, NVLink, 128 tokens (43-57 us)", per_expert, cluster_of(8, 8, 450), 50, 72,
      Unit::kMicroseconds, kSmall);
  add("pplx-garden", "8, CX7, 128 tokens", per_expert, cluster_of(8, 8, 450), 50.5, 65.3, Unit::kMicroseconds,
      kSmall);
  add("pplx-garden", "64, CX7, 128 tokens", per_expert, cluster_of(64, 8, 450), 187.5, 309,
      Unit::kMicroseconds);
  add("NCCL EP LL, bf16", "8 x H100, 128 tokens", bf16_rows, cluster_of(8, 8, 450), 224, 185,
      Unit::kGbPerChoice, kSmall);
  add("NCCL EP LL, bf16", "64 x H100, 128 tokens", bf16_rows, cluster_of(64, 8, 450), 48.8, 43.8,
      Unit::kGbPerChoice);
  add("TensorRT-LLM, bf16", "8 x GB200, 128 tokens", bf16_per_rank(128), cluster_of(8, 8, 900), 31.7, 38.1,
      Unit::kMicroseconds, kSums);
  add("TensorRT-LLM, bf16", "8 x GB200, 2048 tokens", bf16_per_rank(2048), cluster_of(8, 8, 900), 753, 728,
      Unit::kGbPerRank);
  return steps;
}

Result<StepPlan> plan_published(const PublishedStep& step) {
  const PlanShape& shape = step.shape;
  const PlanRouting routing = draw_routing({.n_ranks = step.cluster.n_ranks,
                                            .tokens_per_rank = shape.max_tokens_per_rank,
                                            .top_k = shape.top_k,
                                            .popularity = uniform_popularity(shape.n_experts),
                                            .max_ids = 200'000});
  const Result<ExpertPlacement> placement = ExpertPlacement::even(shape.n_experts, step.cluster.n_ranks);
  if (!placement.ok()) return placement.status();
  return plan_step(shape, step.cluster, routing, placement.value());
}

PublishedTimes published_times(const PublishedStep& step, const StepPlan& plan) {
  if (step.unit == Unit::kMicroseconds) return {step.dispatch, step.combine};
  const double copies = step.unit == Unit::kGbPerChoice ? step.shape.top_k
                        : step.unit == Unit::kGbPerRank ? plan.ranks_per_token
                                                        : plan.nodes_per_token;
  const double num_copies = copies * step.shape.max_tokens_per_rank;
  const double token_bytes = info_of(step.shape.format).encoded_bytes(step.shape.hidden);
  const double back_bytes = combine_row_bytes(step.shape.combine_format, step.shape.hidden);
  return {num_copies * token_bytes / (step.dispatch * 1e3), num_copies * back_bytes / (step.combine * 1e3)};
}

}  // namespace switchyard::tools
