// A run with fast matmuls: the library's MoeLayer, which is asked for one part of a step after the other.
#include "layer_run.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard::tools {
namespace {

int experts_per_rank(const ExpertParallelConfig& config, int n_ranks) {
  return config.placement ? config.placement->num_seats_per_rank() : ceil_div(config.n_experts, n_ranks);
}

}  // namespace

MoeLayerConfig layer_config(const LayerOptions& options) {
  return {
      .ep = options.ep,
      .weights = options.weights,
      .gate_up_start = options.gate_up_start,
      .launches = options.mode == StepMode::kFused ? StepLaunches::kFused : StepLaunches::kSplit,
  };
}

Status LayerRun::create_fast(const MoeLayerConfig& config) {
  const bool has_shared = config.ep.shared_expert == SharedExpert::kFused;
  const int num_experts = experts_per_rank(config.ep, world_.n_ranks()) + (has_shared ? 1 : 0);
  const MatmulElement element = matmul_rows_of(config.ep.dispatch_format, config.weights).element;
  std::vector<ExpertWeights> pointers(static_cast<size_t>(world_.n_ranks()));
  Status allocated;
  for (const int rank : world_.local_ranks()) {
    Result<WeightTensors> weights = WeightTensors::create(world_.rank(rank), element, config.weights,
                                                          num_experts, config.ep.hidden, config.expert_width);
    allocated = weights.status();
    if (!allocated.ok()) break;
    weights_.push_back(std::move(weights).value());
    pointers[static_cast<size_t>(rank)] = weights_.back().pointers();
  }
  // Called without weights, too: it tells the processes of the other ranks, which would wait for this one.
  Result<std::unique_ptr<MoeLayer>> layer = MoeLayer::create(world_, config, pointers);
  SWITCHYARD_RETURN_IF_ERROR(allocated);
  if (!layer.ok()) return layer.status();
  own_layer_ = std::move(layer).value();
  layer_ = own_layer_.get();
  ep_ = &layer_->ep();
  return Status();
}

// What the layer's parts write, where the run looks at it.
void LayerRun::view_fast(int r) {
  const Rank& rank = world_.rank(r);
  const MoeLayerRows rows = layer_->rows(r);
  const uint64_t num_groups = static_cast<uint64_t>(ep_->num_groups());
  const uint64_t num_ids =
      static_cast<uint64_t>(workload_.tokens_per_rank[r]) * static_cast<uint64_t>(workload_.top_k);
  of(r).row_offsets = rank.view(rows.dispatched.row_offsets, num_groups + 1);
  of(r).row_counts = rank.view(rows.dispatched.row_counts, num_groups);
  of(r).expert_ids = rank.view(rows.dispatched.expert_ids, num_groups);
  of(r).routed_ids = rank.view(rows.routed_ids, num_ids);
  if (has_router(workload_)) of(r).topk_weights = rank.view(rows.routed_weights, num_ids);
}

std::vector<LayerRun::Phase> LayerRun::fast_phases(const reference::Step& step) {
  std::vector<Phase> phases;
  for (const MoePart part : parts_of(layer_->config()))
    if (part != MoePart::kRoute || has_router(workload_))
      phases.push_back({to_string(part), [this, part, &step](int rank) {
                          return layer_->run_part(part, rank, fast_step(part, rank, step));
                        }});
  return phases;
}

MoeLayerStep LayerRun::fast_step(MoePart part, int rank, const reference::Step& step) const {
  const RankBuffers& buffers = of(rank);
  const DispatchInput input = buffers.tokens.input(step.num_tokens(rank));
  const CombineDestination destination = buffers.tokens.destination();
  MoeLayerStep layer_step{.tokens = input.tokens,
                          .num_tokens = input.num_tokens,
                          .output = destination.output,
                          .format = input.format,
                          .scales = input.scales,
                          .token_stride_bytes = input.token_stride_bytes,
                          .scales_stride_bytes = input.scales_stride_bytes,
                          .output_stride_bytes = destination.output_stride_bytes,
                          .input_scale = input.input_scale};
  if (takes_routed_ids() || part == MoePart::kRoute) {
    layer_step.logits = buffers.logits.data();
    return layer_step;
  }
  layer_step.topk_ids = input.topk_ids;
  layer_step.topk_ids_64 = input.topk_ids_64;
  layer_step.topk_weights = buffers.topk_weights.data();
  return layer_step;
}

}  // namespace switchyard::tools
