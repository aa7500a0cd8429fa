// Whole layers.
#include "handles.hpp"

namespace switchyard::c_api {
namespace {

Status read_layer_config(const switchyard_moe_layer_config* given, int n_ranks, MoeLayerConfig& config) {
  switchyard_moe_layer_config from;
  SWITCHYARD_RETURN_IF_ERROR(read("config", given, from));
  SWITCHYARD_RETURN_IF_ERROR(check_reserved("config->reserved", from.reserved));
  SWITCHYARD_RETURN_IF_ERROR(read_config("config->ep", from.ep, n_ranks, config.ep));
  config.expert_width = from.expert_width;
  config.expected_tokens_per_rank = from.expected_tokens_per_rank;
  config.num_matmul_blocks = from.num_matmul_blocks;
  config.prefetch_bytes = from.prefetch_bytes;
  SWITCHYARD_RETURN_IF_ERROR(read_enum("weights", from.weights, WeightFormat::kMXFP8, config.weights));
  SWITCHYARD_RETURN_IF_ERROR(read_enum("activation",
                                       or_default<int32_t>(from.activation, SWITCHYARD_ACTIVATION_SILU),
                                       Activation::kClampedSwiGLU, config.activation));
  SWITCHYARD_RETURN_IF_ERROR(
      read_enum("gate_layout", from.gate_layout, GateLayout::kInterleaved, config.gate_layout));
  SWITCHYARD_RETURN_IF_ERROR(
      read_enum("gate_up_start", from.gate_up_start, GateUpStart::kWithRows, config.gate_up_start));
  SWITCHYARD_RETURN_IF_ERROR(
      read_enum("combine_start", from.combine_start, CombineStart::kWithExperts, config.ep.combine_start));
  return read_enum("launches", from.launches, StepLaunches::kSplit, config.launches);
}

// Of each rank of the world; those of ranks elsewhere are not looked at.
Status read_weights(const World& world, const switchyard_expert_weights* const* given,
                    std::vector<ExpertWeights>& weights) {
  SWITCHYARD_RETURN_IF_ERROR(check_pointer("weights", given));
  weights.resize(static_cast<size_t>(world.n_ranks()));
  for (const int rank : world.local_ranks()) {
    const std::string name = "weights[" + std::to_string(rank) + "]";
    switchyard_expert_weights from;
    SWITCHYARD_RETURN_IF_ERROR(read(name.c_str(), given[rank], from));
    weights[static_cast<size_t>(rank)] = {.gate_up = from.gate_up,
                                          .down = from.down,
                                          .gate_up_scales = from.gate_up_scales,
                                          .down_scales = from.down_scales,
                                          .gate_up_bias = from.gate_up_bias,
                                          .down_bias = from.down_bias,
                                          .gate_up_tensor_scales = from.gate_up_tensor_scales,
                                          .down_tensor_scales = from.down_tensor_scales};
  }
  return Status();
}

Status read_step(const switchyard_moe_layer_step* given, MoeLayerStep& step) {
  switchyard_moe_layer_step from;
  SWITCHYARD_RETURN_IF_ERROR(read("step", given, from));
  step = {.tokens = from.tokens,
          .num_tokens = from.num_tokens,
          .logits = from.logits,
          .topk_ids = from.topk_ids,
          .topk_weights = from.topk_weights,
          .output = static_cast<bf16*>(from.output),
          .topk_ids_64 = from.topk_ids_64,
          .scales = from.scales,
          .token_stride_bytes = from.token_stride_bytes,
          .scales_stride_bytes = from.scales_stride_bytes,
          .output_stride_bytes = from.output_stride_bytes,
          .input_scale = from.input_scale};
  return read_enum("input_format", from.input_format, InputFormat::kEncoded, step.format);
}

}  // namespace
}  // namespace switchyard::c_api

using namespace switchyard;
using namespace switchyard::c_api;

switchyard_status switchyard_moe_layer_create(const switchyard_world* world,
                                              const switchyard_moe_layer_config* config,
                                              const switchyard_expert_weights* const* weights,
                                              switchyard_moe_layer** layer) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("layer", layer));
    MoeLayerConfig wanted;
    std::vector<ExpertWeights> weights_of_rank;
    SWITCHYARD_RETURN_IF_ERROR(read_layer_config(config, world->world->n_ranks(), wanted));
    SWITCHYARD_RETURN_IF_ERROR(read_weights(*world->world, weights, weights_of_rank));
    Result<std::unique_ptr<MoeLayer>> made = MoeLayer::create(*world->world, wanted, weights_of_rank);
    if (!made.ok()) return made.status();
    std::shared_ptr<MoeLayer> whole = std::move(made).value();
    *layer = new switchyard_moe_layer{{}, world->world, whole, whole.get()};
    return Status();
  });
}

void switchyard_moe_layer_destroy(switchyard_moe_layer* layer) { destroy(layer); }

switchyard_status switchyard_moe_layer_run(switchyard_moe_layer* layer, int32_t rank,
                                           const switchyard_moe_layer_step* step, switchyard_stream stream) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("layer", layer));
    MoeLayerStep wanted;
    SWITCHYARD_RETURN_IF_ERROR(read_step(step, wanted));
    return layer->layer->run(rank, wanted, stream_of(stream));
  });
}

switchyard_status switchyard_moe_layer_flight(switchyard_moe_layer* layer, int32_t flight_idx,
                                              switchyard_moe_layer** flight) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("layer", layer));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("flight", flight));
    const Result<MoeLayer*> found = layer->whole->flight(flight_idx);
    if (found.ok()) *flight = new switchyard_moe_layer{{}, layer->world, layer->whole, found.value()};
    return found.status();
  });
}

switchyard_status switchyard_moe_layer_ep(switchyard_moe_layer* layer, switchyard_ep** ep) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("layer", layer));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("ep", ep));
    // The handle owns the layer, with which its ExpertParallel goes.
    const std::shared_ptr<ExpertParallel> whole(layer->whole, &layer->whole->ep());
    *ep = new switchyard_ep{{}, layer->world, whole, &layer->layer->ep()};
    return Status();
  });
}
