// Whole layers through the C functions: they write the bits that a layer of the C++ interface writes.
#include <gtest/gtest.h>

#include <vector>

#include "c_api/c_api_harness.hpp"
#include "runtime/layer_harness.hpp"

namespace switchyard::c_api_test {
namespace {

using testing_support::LayerCase;
using testing_support::LayerHarness;
using testing_support::must;

// What the configuration of a C++ layer is in C.
struct LayerOptions {
  switchyard_ep_config ep{};
  switchyard_moe_layer_config layer{};

  explicit LayerOptions(const MoeLayerConfig& config) {
    ep.size = sizeof(ep);
    ep.n_experts = config.ep.n_experts;
    ep.top_k = config.ep.top_k;
    ep.hidden = config.ep.hidden;
    ep.max_tokens_per_rank = config.ep.max_tokens_per_rank;
    ep.n_sms = config.ep.n_sms;
    ep.timeout_ns = config.ep.timeout_ns;
    ep.protocol = static_cast<int32_t>(config.ep.protocol);
    ep.dispatch_format = to_string(config.ep.dispatch_format);
    ep.input_scale = config.ep.input_scale;
    ep.combine_format = static_cast<int32_t>(config.ep.combine_format);
    ep.has_shared_expert = config.ep.shared_expert == SharedExpert::kFused;
    ep.steps_in_flight = config.ep.steps_in_flight;
    layer.size = sizeof(layer);
    layer.ep = &ep;
    layer.weights = static_cast<int32_t>(config.weights);
    layer.expert_width = config.expert_width;
    layer.activation = static_cast<int32_t>(config.activation);
    layer.gate_layout = static_cast<int32_t>(config.gate_layout);
    layer.num_matmul_blocks = config.num_matmul_blocks;
    layer.gate_up_start = static_cast<int32_t>(config.gate_up_start);
    layer.combine_start = static_cast<int32_t>(config.ep.combine_start);
    layer.launches = static_cast<int32_t>(config.launches);
    layer.prefetch_bytes = config.prefetch_bytes;
  }
};

switchyard_expert_weights c_weights(const ExpertWeights& weights) {
  return {.size = sizeof(switchyard_expert_weights),
          .gate_up = weights.gate_up,
          .down = weights.down,
          .gate_up_scales = weights.gate_up_scales,
          .down_scales = weights.down_scales,
          .gate_up_bias = weights.gate_up_bias,
          .down_bias = weights.down_bias,
          .gate_up_tensor_scales = weights.gate_up_tensor_scales,
          .down_tensor_scales = weights.down_tensor_scales};
}

// A layer in C over the weights, tokens and choices of a C++ layer on the host.
class CApiLayer : public testing::Test {
 protected:
  // Makes both layers, and runs a step of the C++ one.
  void make(const LayerCase& layer_case) {
    destroy();
    harness_.reset();
    n_ranks_ = layer_case.n_ranks;
    cpp_world_ = must(World::create({.target = TargetChoice::kHost, .n_ranks = n_ranks_}));
    harness_ = std::make_unique<LayerHarness>(*cpp_world_, layer_case);
    ASSERT_EQ(harness_->outcome(), "") << layer_case.name();
    world_ = make_world(n_ranks_);
    weights_.clear();
    for (const ExpertWeights& weights : harness_->weights()) weights_.push_back(c_weights(weights));
    ASSERT_EQ(create(LayerOptions(harness_->config())), SWITCHYARD_OK) << switchyard_last_error();
  }
  switchyard_status create(const LayerOptions& options) {
    std::vector<const switchyard_expert_weights*> of_ranks;
    for (const switchyard_expert_weights& weights : weights_) of_ranks.push_back(&weights);
    return switchyard_moe_layer_create(world_, &options.layer, of_ranks.data(), &layer_);
  }
  // The step of the C++ layer, with 64-bit ids if they are wanted.
  switchyard_moe_layer_step step_of(int rank, bool wants_ids_64 = false) {
    const MoeLayerStep from = harness_->step(rank);
    outputs_[rank].assign(harness_->output(rank).size(), 0xffff);
    ids_64_[rank].assign(harness_->ids(rank).begin(), harness_->ids(rank).end());
    return {.size = sizeof(switchyard_moe_layer_step),
            .tokens = from.tokens,
            .logits = from.logits,
            .topk_ids = wants_ids_64 ? nullptr : from.topk_ids,
            .topk_weights = from.topk_weights,
            .output = outputs_[rank].data(),
            .num_tokens = from.num_tokens,
            .topk_ids_64 = wants_ids_64 ? ids_64_[rank].data() : nullptr};
  }
  // Runs a step of the C layer, or of a flight of it, and compares.
  void expect_same_bits(switchyard_moe_layer* layer, bool wants_ids_64 = false) {
    for (int rank = 0; rank < n_ranks_; ++rank) {
      const switchyard_moe_layer_step step = step_of(rank, wants_ids_64);
      ASSERT_EQ(switchyard_moe_layer_run(layer, rank, &step, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
          << switchyard_last_error();
    }
    switchyard_ep* ep = nullptr;
    ASSERT_EQ(switchyard_moe_layer_ep(layer, &ep), SWITCHYARD_OK) << switchyard_last_error();
    for (int rank = 0; rank < n_ranks_; ++rank) {
      ASSERT_EQ(switchyard_ep_synchronize(ep, rank, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
          << switchyard_last_error();
      std::vector<uint16_t> expected;
      for (const bf16 value : harness_->output(rank)) expected.push_back(value.bits);
      EXPECT_EQ(outputs_[rank], expected) << "rank " << rank;
    }
    switchyard_ep_destroy(ep);
  }
  void destroy() {
    switchyard_world_destroy(world_);  // handles may go in any order
    switchyard_moe_layer_destroy(layer_);
    world_ = nullptr;
    layer_ = nullptr;
  }
  void TearDown() override { destroy(); }

  int n_ranks_ = 0;
  std::unique_ptr<World> cpp_world_;
  std::unique_ptr<LayerHarness> harness_;
  switchyard_world* world_ = nullptr;
  switchyard_moe_layer* layer_ = nullptr;
  std::vector<switchyard_expert_weights> weights_;
  std::vector<uint16_t> outputs_[2];
  std::vector<int64_t> ids_64_[2];
};

TEST_F(CApiLayer, RouterAndSharedExpert) {
  make({.n_ranks = 2, .shared_expert = SharedExpert::kFused, .has_router = true});
  expect_same_bits(layer_);
}

TEST_F(CApiLayer, RowsOfFp8AndIdsOf64Bits) {
  make({.n_ranks = 2,
        .protocol = Protocol::kDirect,
        .format = TokenFormatKind::kFP8,
        .activation = Activation::kClampedSwiGLU,
        .gate_layout = GateLayout::kInterleaved,
        .has_bias = true,
        .prefetch_bytes = 4096,
        .width = 128});
  expect_same_bits(layer_, true);
}

TEST_F(CApiLayer, WeightsThatAreCodes) {
  make({.n_ranks = 2,
        .format = TokenFormatKind::kNVFP4,
        .weights = WeightFormat::kNVFP4,
        .combine_format = CombineFormat::kFP8,
        .activation = Activation::kGELU});
  expect_same_bits(layer_);
}

TEST_F(CApiLayer, LaunchesThatStartEarly) {
  make({.n_ranks = 2,
        .protocol = Protocol::kDirect,
        .gate_up_start = GateUpStart::kWithRows,
        .launches = StepLaunches::kSplit});
  expect_same_bits(layer_);
  make({.n_ranks = 2, .protocol = Protocol::kDirect, .combine_start = CombineStart::kWithExperts});
  expect_same_bits(layer_);
}

TEST_F(CApiLayer, FlightsOutliveTheirLayer) {
  make({.n_ranks = 2, .protocol = Protocol::kDirect, .steps_in_flight = 2});
  switchyard_moe_layer* second = nullptr;
  expect_error(switchyard_moe_layer_flight(layer_, 2, &second), SWITCHYARD_INVALID_ARGUMENT,
               "flight_idx is 2");
  ASSERT_EQ(switchyard_moe_layer_flight(layer_, 1, &second), SWITCHYARD_OK) << switchyard_last_error();
  destroy();
  expect_same_bits(second);
  switchyard_moe_layer_destroy(second);
}

TEST_F(CApiLayer, WhatIsWrongIsNamed) {
  make({.n_ranks = 2, .has_router = true});
  const switchyard_moe_layer_step good = step_of(0);
  const auto expect_refused = [&](switchyard_moe_layer_step step, const char* text) {
    expect_error(switchyard_moe_layer_run(layer_, 0, &step, SWITCHYARD_RANK_STREAM),
                 SWITCHYARD_INVALID_ARGUMENT, text);
  };
  switchyard_moe_layer_step bad = good;
  bad.size = 4;
  expect_refused(bad, "step->size");
  bad = good;
  bad.topk_weights = good.logits;
  expect_refused(bad, "logits");
  bad = good;
  bad.num_tokens = 1 << 20;
  expect_refused(bad, "num_tokens");
  bad = good;
  bad.input_format = 7;
  expect_refused(bad, "input_format is 7");
  expect_error(switchyard_moe_layer_run(layer_, 2, &good, SWITCHYARD_RANK_STREAM),
               SWITCHYARD_INVALID_ARGUMENT, "rank");
  expect_error(switchyard_moe_layer_run(nullptr, 0, &good, SWITCHYARD_RANK_STREAM),
               SWITCHYARD_INVALID_ARGUMENT, "layer is NULL");
  expect_error(switchyard_moe_layer_run(layer_, 0, nullptr, SWITCHYARD_RANK_STREAM),
               SWITCHYARD_INVALID_ARGUMENT, "step is NULL");
  expect_same_bits(layer_);  // none of these has begun a step

  switchyard_moe_layer* const made = layer_;
  LayerOptions options(harness_->config());
  options.layer.activation = 9;
  expect_error(create(options), SWITCHYARD_INVALID_ARGUMENT, "activation is 9");
  options.layer.activation = 0;
  options.layer.reserved = 1;
  expect_error(create(options), SWITCHYARD_INVALID_ARGUMENT, "config->reserved is 1");
  options.layer.reserved = 0;
  options.layer.expert_width = 2147483640;
  expect_error(create(options), SWITCHYARD_INVALID_ARGUMENT,
               "expert_width: 2147483640 must be a positive multiple of 8, at most 1048576");
  options.layer.expert_width = 64;
  options.ep.size = 4;
  expect_error(create(options), SWITCHYARD_INVALID_ARGUMENT, "config->ep->size is 4");
  options.ep.size = sizeof(options.ep);
  options.layer.ep = nullptr;
  expect_error(create(options), SWITCHYARD_INVALID_ARGUMENT, "config->ep is NULL");
  options.layer.ep = &options.ep;
  weights_[1].down = nullptr;
  expect_error(create(options), SWITCHYARD_INVALID_ARGUMENT, "down of rank 1");
  weights_[1].size = 0;
  expect_error(create(options), SWITCHYARD_INVALID_ARGUMENT, "weights[1]->size is 0");
  const switchyard_expert_weights* of_ranks[] = {&weights_[0], nullptr};
  expect_error(switchyard_moe_layer_create(world_, &options.layer, of_ranks, &layer_),
               SWITCHYARD_INVALID_ARGUMENT, "weights[1] is NULL");
  expect_error(switchyard_moe_layer_create(world_, &options.layer, nullptr, &layer_),
               SWITCHYARD_INVALID_ARGUMENT, "weights is NULL");
  EXPECT_EQ(layer_, made) << "a call that fails writes no handle";
}

}  // namespace
}  // namespace switchyard::c_api_test
