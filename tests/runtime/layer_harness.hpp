// For tests of MoeLayer: the layer of a case on a world, its inputs, and what should become of them, by plain
// loops.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ep/ep_harness.hpp"
#include "gemm/matmul_operand.hpp"
#include "reference/gated_mlp.hpp"
#include "reference/reference.hpp"
#include "reference/token_format.hpp"
#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/moe_layer.hpp"
#include "switchyard/world.hpp"

namespace switchyard::testing_support {

struct LayerCase {
  int n_ranks = 1;
  Protocol protocol = Protocol::kSlotted;
  TokenFormatKind format = TokenFormatKind::kBF16;
  WeightFormat weights = WeightFormat::kAsRows;
  CombineFormat combine_format = CombineFormat::kBF16;
  SharedExpert shared_expert = SharedExpert::kNone;
  Routing routing = Routing::kAllToAll;
  Activation activation = Activation::kSiLU;
  GateLayout gate_layout = GateLayout::kStacked;
  bool has_bias = false;
  bool has_router = false;
  GateUpStart gate_up_start = GateUpStart::kBehindDispatch;
  CombineStart combine_start = CombineStart::kBehindExperts;
  StepLaunches launches = StepLaunches::kFused;
  RowLayout row_layout = RowLayout::kRagged;
  int row_alignment = 1;
  bool reduce_at_owner = false;
  int p2p_world_size = 0;
  int steps_in_flight = 1;
  int64_t prefetch_bytes = 0;
  uint64_t timeout_ns = 60'000'000'000;
  int hidden = 256;
  int width = 64;

  bool is_fp8() const { return matmul_rows_of(format, weights).element == MatmulElement::kFP8; }
  // NVFP4: the tensor scale of what goes to an expert, or to the shared one (-1).
  float input_scale_of(int expert) const {
    if (!info_of(format).has_tensor_scale()) return 1;
    return info_of(format).encodes_by_expert ? 0.01f * static_cast<float>(expert + 2) : 0.01f;
  }
  std::string name() const {
    return std::to_string(n_ranks) + " ranks, " + to_string(protocol) + ", " + to_string(format) + ", " +
           to_string(activation) + (is_coded(weights) ? std::string(", ") + to_string(weights) : "") +
           (combine_format == CombineFormat::kBF16 ? "" : ", combine in fp8") +
           (gate_layout == GateLayout::kStacked ? "" : ", interleaved") +
           (shared_expert == SharedExpert::kNone ? "" : ", shared expert") + (has_router ? ", router" : "") +
           (has_bias ? ", bias" : "") +
           (gate_up_start == GateUpStart::kWithRows ? ", gate_up with the rows" : "") +
           (combine_start == CombineStart::kWithExperts ? ", combine with the experts" : "") +
           (launches == StepLaunches::kSplit ? ", split" : "") + ", " + to_string(row_layout) +
           " rows aligned to " + std::to_string(row_alignment) +
           (reduce_at_owner ? ", reduced at the owner" : "") +
           (p2p_world_size == 0 ? "" : ", groups of " + std::to_string(p2p_world_size));
  }
};

inline constexpr int kLayerExperts = 8, kLayerTopK = 3, kLayerMaxTokens = 21;

// A matrix as it lies in memory, and its values. A row of `inner` values is an output's weights.
struct LayerMatrix {
  std::vector<uint8_t> bytes;
  std::vector<float> scales;
  std::vector<float> values;
  std::vector<uint8_t> code_scales;  // of coded weights
  std::vector<float> tensor_scales;

  LayerMatrix(WeightFormat format, size_t groups, size_t columns, size_t inner, uint64_t seed) {
    CodedWeights weights(format, groups, columns * inner, seed);
    bytes = std::move(weights.bytes);
    values = std::move(weights.values);
    code_scales = std::move(weights.scales);
    tensor_scales = std::move(weights.tensor_scales);
  }
  // `groups` matrices of [columns][inner], with values of about 1 / sqrt(inner).
  LayerMatrix(bool is_fp8, size_t groups, size_t columns, size_t inner, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    const size_t size = groups * columns * inner, num_steps = ceil_div<size_t>(inner, 128),
                 num_column_groups = ceil_div<size_t>(columns, 128);
    const float deviation = 1.0f / std::sqrt(static_cast<float>(inner));
    if (is_fp8)
      for (size_t i = 0; i < groups * num_column_groups * num_steps; ++i)
        scales.push_back(deviation * (0.5f + static_cast<float>(random() % 100) / 100.0f));
    for (size_t i = 0; i < size; ++i) {
      if (is_fp8) {
        const size_t group = i / inner / columns, column = i / inner % columns;
        const e4m3 code = to_minifloat<e4m3>(normal(random));
        const float scale = scales[(group * num_column_groups + column / 128) * num_steps + i % inner / 128];
        bytes.push_back(code.bits);
        values.push_back(to_float(code) * scale);
      } else {
        const bf16 value = to_bf16(normal(random) * deviation);
        bytes.push_back(static_cast<uint8_t>(value.bits));
        bytes.push_back(static_cast<uint8_t>(value.bits >> 8));
        values.push_back(to_float(value));
      }
    }
  }
  std::vector<float> row(size_t i, size_t inner) const {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(i * inner);
    return {begin, begin + static_cast<ptrdiff_t>(inner)};
  }
};

// The layer of a case on a world, its inputs, and what should become of them.
class LayerHarness {
 public:
  LayerHarness(World& world, const LayerCase& layer_case) : case_(layer_case), world_(world) {
    const size_t hidden = static_cast<size_t>(case_.hidden), width = static_cast<size_t>(case_.width);
    const size_t num_groups = static_cast<size_t>(kLayerExperts / case_.n_ranks +
                                                  (case_.shared_expert == SharedExpert::kFused ? 1 : 0));
    ranks_.resize(static_cast<size_t>(case_.n_ranks));
    for (size_t r = 0; r < ranks_.size(); ++r) {
      RankData& data = ranks_[r];
      data.gate_up = make_matrix(num_groups, 2 * width, hidden, 10 + r);
      data.down = make_matrix(num_groups, hidden, width, 30 + r);
      data.gate_up_bias = case_.has_bias ? noise(num_groups * 2 * width, 50 + r) : std::vector<float>();
      data.down_bias = case_.has_bias ? noise(num_groups * hidden, 60 + r) : std::vector<float>();
      weights_.emplace_back();
      if (!is_local(r)) continue;
      const Rank& rank = world.rank(static_cast<int>(r));
      data.buffers.gate_up = must(rank.upload(data.gate_up->bytes));
      data.buffers.down = must(rank.upload(data.down->bytes));
      data.buffers.gate_up_scales = must(rank.upload(data.gate_up->scales));
      data.buffers.down_scales = must(rank.upload(data.down->scales));
      data.buffers.gate_up_bias = must(rank.upload(data.gate_up_bias));
      data.buffers.down_bias = must(rank.upload(data.down_bias));
      weights_.back() = {data.buffers.gate_up.data(),
                         data.buffers.down.data(),
                         data.buffers.gate_up_scales.data(),
                         data.buffers.down_scales.data(),
                         case_.has_bias ? data.buffers.gate_up_bias.data() : nullptr,
                         case_.has_bias ? data.buffers.down_bias.data() : nullptr};
      if (is_coded(case_.weights)) add_code_scales(rank, data, weights_.back());
    }
    layer_ = must(MoeLayer::create(world, config(), weights_));
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (!is_local(r)) continue;
      const Rank& rank = world.rank(static_cast<int>(r));
      ranks_[r].buffers.tokens = must(rank.allocate<bf16>(kLayerMaxTokens * hidden));
      ranks_[r].buffers.output = must(rank.allocate<bf16>(kLayerMaxTokens * hidden));
      ranks_[r].buffers.logits = must(rank.allocate<float>(kLayerMaxTokens * kLayerExperts));
      ranks_[r].buffers.ids = must(rank.allocate<int32_t>(kLayerMaxTokens * kLayerTopK));
      ranks_[r].buffers.weights = must(rank.allocate<float>(kLayerMaxTokens * kLayerTopK));
    }
    fill(1);
  }

  MoeLayerConfig config() const {
    MoeLayerConfig config;
    config.ep.n_experts = kLayerExperts;
    config.ep.top_k = kLayerTopK;
    config.ep.hidden = case_.hidden;
    config.ep.max_tokens_per_rank = kLayerMaxTokens;
    config.ep.protocol = case_.protocol;
    config.ep.dispatch_format = case_.format;
    config.ep.input_scale = case_.input_scale_of(-1);
    if (info_of(case_.format).encodes_by_expert)
      for (int expert = 0; expert < kLayerExperts; ++expert)
        config.ep.expert_input_scales.push_back(case_.input_scale_of(expert));
    config.ep.combine_format = case_.combine_format;
    config.ep.shared_expert = case_.shared_expert;
    config.ep.routing = case_.routing;
    config.ep.allreduce_world_size = 0;  // all ranks, if the all-to-all is skipped
    config.ep.row_layout = case_.row_layout;
    config.ep.row_alignment = case_.row_alignment;
    config.ep.reduce_at_owner = case_.reduce_at_owner;
    config.ep.p2p_world_size = case_.p2p_world_size;
    config.ep.combine_start = case_.combine_start;
    config.ep.steps_in_flight = case_.steps_in_flight;
    config.ep.timeout_ns = case_.timeout_ns;
    // Blocks that wait for rows need some room beside those of dispatch.
    if (case_.gate_up_start == GateUpStart::kWithRows) config.ep.n_sms = 4;
    config.gate_up_start = case_.gate_up_start;
    config.weights = case_.weights;
    config.launches = case_.launches;
    config.expert_width = case_.width;
    config.activation = case_.activation;
    config.gate_layout = case_.gate_layout;
    config.num_matmul_blocks = 2;
    config.prefetch_bytes = case_.prefetch_bytes;
    return config;
  }
  // Other tokens and ids, in the same memory.
  void fill(uint64_t seed) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      RankData& data = ranks_[r];
      const bool is_same = case_.routing == Routing::kSkipAllToAll;
      std::mt19937_64 random(seed * 100 + (is_same ? 0 : r));
      const size_t num_tokens = data.num_tokens = is_same ? 13 : static_cast<size_t>(5 + 8 * r % 17);
      data.tokens.clear();
      for (const float value : noise(num_tokens * static_cast<size_t>(case_.hidden), random()))
        data.tokens.push_back(to_bf16(value));
      const std::vector<float> logits = noise(num_tokens * kLayerExperts, random());
      reference::Routing routing =
          reference::topk_softmax(logits, static_cast<int>(num_tokens), kLayerExperts, kLayerTopK);
      data.ids = routing.topk_ids;
      data.weights = routing.topk_weights;
      if (!case_.has_router)
        for (int32_t& id : data.ids)
          if (random() % 7 == 0) id = -1;
      if (!is_local(r)) continue;
      EXPECT_TRUE(data.buffers.tokens.upload(data.tokens).ok());
      EXPECT_TRUE(data.buffers.logits.upload(logits).ok());
      EXPECT_TRUE(data.buffers.ids.upload(data.ids).ok());
      EXPECT_TRUE(data.buffers.weights.upload(data.weights).ok());
      EXPECT_TRUE(data.buffers.output.fill_bytes(0xff).ok());
    }
  }
  MoeLayerStep step(int rank) const {
    const RankData& data = ranks_[static_cast<size_t>(rank)];
    MoeLayerStep step{.tokens = data.buffers.tokens.data(),
                      .num_tokens = static_cast<int>(data.num_tokens),
                      .output = data.buffers.output.data()};
    if (case_.has_router) {
      step.logits = data.buffers.logits.data();
    } else {
      step.topk_ids = data.buffers.ids.data();
      step.topk_weights = data.buffers.weights.data();
    }
    return step;
  }
  // On the ranks' own streams, or on those of the caller's, one for each rank.
  Status enqueue(const std::vector<Stream>& streams = {}) {
    for (const int rank : world_.local_ranks())
      SWITCHYARD_RETURN_IF_ERROR(
          layer_->run(rank, step(rank), streams.empty() ? Stream() : streams[static_cast<size_t>(rank)]));
    return Status();
  }
  // Runs a step; what is wrong.
  std::string outcome() {
    if (const Status status = enqueue(); !status.ok()) return status.to_string();
    if (const Status status = layer_->ep().synchronize(); !status.ok()) return status.to_string();
    return compare();
  }
  MoeLayer& layer() { return *layer_; }
  const std::vector<ExpertWeights>& weights() const { return weights_; }  // of each rank
  // What steps have written can still be compared.
  void drop_layer() { layer_.reset(); }
  const std::vector<bf16>& tokens(int rank) const { return ranks_[static_cast<size_t>(rank)].tokens; }
  const std::vector<int32_t>& ids(int rank) const { return ranks_[static_cast<size_t>(rank)].ids; }
  // Of the rank's tokens.
  std::vector<bf16> output(int rank) const {
    const RankData& data = ranks_[static_cast<size_t>(rank)];
    std::vector<bf16> output = must(data.buffers.output.download());
    output.resize(data.num_tokens * static_cast<size_t>(case_.hidden));
    return output;
  }

  // What is wrong with the outputs: a token's may be off by a part of its length. bf16: three roundings of
  // 2^-9 each. fp8: codes of e4m3 that a rounding of the sums makes others.
  std::string compare() {
    for (const int rank : world_.local_ranks())
      if (const std::string bad = compare(rank); !bad.empty()) return bad;
    return "";
  }
  std::string compare(int rank) {
    // Sums that differ in their last bits become neighbouring codes of e4m3, an eighth apart: of 64
    // activations few need to for 4% of a token.
    const double limit = case_.is_fp8() || case_.combine_format == CombineFormat::kFP8 ? 0.06 : 0.008;
    const RankData& data = ranks_[static_cast<size_t>(rank)];
    const std::vector<bf16> output = must(data.buffers.output.download());
    for (size_t token = 0; token < data.num_tokens; ++token) {
      const std::vector<double> expected = expected_token(static_cast<size_t>(rank), token);
      std::vector<double> values;
      for (size_t i = 0; i < expected.size(); ++i)
        values.push_back(static_cast<double>(to_float(output[token * expected.size() + i])));
      const double distance = reference::relative_distance(values, expected);
      if (!(distance <= limit))
        return "rank " + std::to_string(rank) + ", token " + std::to_string(token) + " is off by " +
               std::to_string(distance) + " of its length";
    }
    return "";
  }

 private:
  bool is_local(size_t rank) const {
    const std::vector<int> local = world_.local_ranks();
    return std::find(local.begin(), local.end(), static_cast<int>(rank)) != local.end();
  }

  struct RankData {
    std::unique_ptr<LayerMatrix> gate_up, down;
    std::vector<float> gate_up_bias, down_bias;
    std::vector<bf16> tokens;
    std::vector<int32_t> ids;
    std::vector<float> weights;
    size_t num_tokens = 0;
    struct {
      Buffer<uint8_t> gate_up, down, gate_up_code_scales, down_code_scales;
      Buffer<float> gate_up_tensor_scales, down_tensor_scales;
      Buffer<float> gate_up_scales, down_scales, gate_up_bias, down_bias, logits, weights;
      Buffer<bf16> tokens, output;
      Buffer<int32_t> ids;
    } buffers;
  };

  std::unique_ptr<LayerMatrix> make_matrix(size_t groups, size_t columns, size_t inner, uint64_t seed) const {
    if (is_coded(case_.weights))
      return std::make_unique<LayerMatrix>(case_.weights, groups, columns, inner, seed);
    return std::make_unique<LayerMatrix>(case_.is_fp8(), groups, columns, inner, seed);
  }
  static void add_code_scales(const Rank& rank, RankData& data, ExpertWeights& weights) {
    data.buffers.gate_up_code_scales = must(rank.upload(data.gate_up->code_scales));
    data.buffers.down_code_scales = must(rank.upload(data.down->code_scales));
    weights.gate_up_scales = data.buffers.gate_up_code_scales.data();
    weights.down_scales = data.buffers.down_code_scales.data();
    if (data.gate_up->tensor_scales.empty()) return;
    data.buffers.gate_up_tensor_scales = must(rank.upload(data.gate_up->tensor_scales));
    data.buffers.down_tensor_scales = must(rank.upload(data.down->tensor_scales));
    weights.gate_up_tensor_scales = data.buffers.gate_up_tensor_scales.data();
    weights.down_tensor_scales = data.buffers.down_tensor_scales.data();
  }
  static std::vector<float> noise(size_t size, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    std::vector<float> values(size);
    for (float& value : values) value = normal(random);
    return values;
  }
  reference::GatedMlp expert(size_t rank, size_t group) const {
    const RankData& data = ranks_[rank];
    const size_t hidden = static_cast<size_t>(case_.hidden), width = static_cast<size_t>(case_.width);
    const auto part_of = [&](const std::vector<float>& bias, size_t columns) {
      if (bias.empty()) return bias;
      const auto begin = bias.begin() + static_cast<ptrdiff_t>(group * columns);
      return std::vector<float>(begin, begin + static_cast<ptrdiff_t>(columns));
    };
    return {.activation = case_.activation,
            .gate_layout = case_.gate_layout,
            .element = case_.is_fp8() ? MatmulElement::kFP8 : MatmulElement::kBF16,
            .hidden = hidden,
            .width = width,
            .gate_up =
                [=, &data](size_t column) { return data.gate_up->row(group * 2 * width + column, hidden); },
            .down = [=, &data](size_t column) { return data.down->row(group * hidden + column, width); },
            .gate_up_bias = part_of(data.gate_up_bias, 2 * width),
            .down_bias = part_of(data.down_bias, hidden)};
  }
  std::vector<double> expected_token(size_t rank, size_t token_idx) const {
    const RankData& data = ranks_[rank];
    const size_t hidden = static_cast<size_t>(case_.hidden);
    const size_t num_local = static_cast<size_t>(kLayerExperts / case_.n_ranks),
                 num_shared = case_.shared_expert == SharedExpert::kFused ? 1 : 0;
    const std::vector<bf16> token(data.tokens.begin() + static_cast<ptrdiff_t>(token_idx * hidden),
                                  data.tokens.begin() + static_cast<ptrdiff_t>((token_idx + 1) * hidden));
    const auto seen_by = [&](int expert_idx) {
      return reference::as_multiplied(case_.format, matmul_rows_of(case_.format, case_.weights).element,
                                      token, case_.input_scale_of(expert_idx));
    };
    std::vector<double> sum(hidden, 0.0);
    const auto add = [&](const std::vector<double>& values, double weight) {
      for (size_t i = 0; i < hidden; ++i) sum[i] += weight * values[i];
    };
    for (size_t k = 0; k < kLayerTopK; ++k) {
      const int32_t id = data.ids[token_idx * kLayerTopK + k];
      if (id < 0) continue;
      const size_t owner = static_cast<size_t>(id) / num_local;
      add(expert(owner, num_shared + static_cast<size_t>(id) % num_local).output(seen_by(id)),
          static_cast<double>(data.weights[token_idx * kLayerTopK + k]));
    }
    if (num_shared > 0) add(expert(rank, 0).output(seen_by(-1)), 1);
    return sum;
  }

  LayerCase case_;
  World& world_;
  std::vector<RankData> ranks_;
  std::vector<ExpertWeights> weights_;
  std::unique_ptr<MoeLayer> layer_;
};

// Tests of layers, on every target that is here.
class WholeLayerTest : public ::testing::TestWithParam<TargetChoice> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(GetParam()); }
  std::unique_ptr<World> make_world(int n_ranks) {
    return must(World::create({.target = GetParam(), .n_ranks = n_ranks}));
  }
};
inline std::string layer_target_name(const ::testing::TestParamInfo<TargetChoice>& info) {
  return info.param == TargetChoice::kHost ? "Host" : "Cuda";
}

}  // namespace switchyard::testing_support
