// Steps with a caller's own token format and own epilogue, for the target this file is compiled for: all
// ranks in one process, or those of a process among others.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "examples/int8_token_format.hpp"
#include "switchyard/own_kernels.hpp"
#include "target/target_fixture.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

using example::Int8TokenFormat;
using testing_support::kTargetUnderTest;
using testing_support::must;
using testing_support::StepMode;

// The same codes and scales, but nothing that the direct protocol could carry.
struct SlottedInt8Format {
  using Input = bf16;
  static constexpr char kName[] = "slotted-int8";
  Int8TokenFormat format;

  static SlottedInt8Format make(int hidden, const FormatTensors& tensors) {
    return {Int8TokenFormat::make(hidden, tensors)};
  }
  SWITCHYARD_HD uint32_t row_bytes() const { return format.row_bytes(); }
  SWITCHYARD_HD uint32_t scales_bytes() const { return format.scales_bytes(); }
  SWITCHYARD_HD uint32_t encoded_bytes() const { return format.encoded_bytes(); }
  SWITCHYARD_HD uint32_t row_alignment() const { return 4; }
  SWITCHYARD_DEVICE void encode(const bf16* token, std::byte* message, int worker_idx,
                                int num_workers) const {
    format.encode(token, message, worker_idx, num_workers);
  }
  SWITCHYARD_DEVICE void decode(const std::byte* message, int64_t row, int worker_idx,
                                int num_workers) const {
    format.decode(message, row, worker_idx, num_workers);
  }
};
static_assert(OwnTokenFormat<SlottedInt8Format> && !DirectFormat<SlottedInt8Format>);
static_assert(!OwnTokenFormat<BF16TokenFormat>, "the library's own have no name");

// Keeps fp32, and adds a residual of the same type.
struct AddResidual {
  const float* residual;  // [num_tokens][hidden]
  float* output;          // [num_tokens][hidden]
  int32_t hidden;

  SWITCHYARD_DEVICE void operator()(int token_idx, int column, const float (&sums)[kColumnsPerThread]) const {
    for (int i = 0; i < kColumnsPerThread; ++i) {
      const int64_t index = static_cast<int64_t>(token_idx) * hidden + column + i;
      target::st(output + index, sums[i] + target::ld(residual + index));
    }
  }
};

// Steps of four ranks with random routing and padding. What an expert makes of a row is a whole number that
// names the row's source, and weights are powers of two: sums are exact.
class OwnStep {
 public:
  static constexpr int kRanks = 4, kExperts = 8, kTopK = 3, kHidden = 128, kMaxTokens = 9;
  static constexpr int kNumTokens[kRanks] = {9, 0, 5, 7};

  OwnStep(const ExpertParallelConfig& config, const HostDeviceOptions& host)
      : OwnStep(must(World::create({.target = kTargetUnderTest, .n_ranks = kRanks, .host = host})), config) {}
  // The world may have some of its ranks in other processes, which make the same calls.
  OwnStep(std::unique_ptr<World> world, const ExpertParallelConfig& config)
      : world_(std::move(world)), ep_(must(ExpertParallel::create(*world_, config))) {
    for (const int rank : world_->local_ranks()) {
      const Rank& owner = world_->rank(rank);
      const auto zeros = [&]<typename T>(T, int size) {
        return must(owner.allocate<T>(static_cast<size_t>(size)));
      };
      ranks_[rank] = {must(ep_->row_buffers(rank)),         zeros(bf16{}, kMaxTokens * kHidden),
                      zeros(bf16{}, kMaxTokens * kHidden),  zeros(int32_t{}, kMaxTokens * kTopK),
                      zeros(int32_t{}, 4 * kExperts),       zeros(float{}, kMaxTokens * kTopK),
                      zeros(float{}, kMaxTokens * kHidden), zeros(float{}, kMaxTokens * kHidden),
                      zeros(uint32_t{}, 4 * kExperts)};
    }
  }

  static ExpertParallelConfig config(Protocol protocol) {
    return {.n_experts = kExperts,
            .top_k = kTopK,
            .hidden = kHidden,
            .max_tokens_per_rank = kMaxTokens,
            .n_sms = 2,
            .num_threads = 64,
            .protocol = protocol};
  }

  void run(uint64_t seed, StepMode mode, bool has_int8_rows) {
    draw(seed);
    dispatch(mode);
    if (!::testing::Test::HasFatalFailure()) check_rows_and_run_experts(has_int8_rows);
    if (!::testing::Test::HasFatalFailure()) combine(mode, /*is_own=*/true);
    if (!::testing::Test::HasFatalFailure()) check_output();
  }
  // A step with an epilogue that adds nothing, and the same with the library's: the same sums, rounded.
  void compare_with_the_library(uint64_t seed, StepMode mode) {
    draw(seed);
    for (auto& [rank, data] : ranks_) ASSERT_TRUE(data.residual.fill_bytes(0).ok());
    for (const bool is_own : {true, false}) {
      if (!::testing::Test::HasFatalFailure()) dispatch(mode);
      if (!::testing::Test::HasFatalFailure()) check_rows_and_run_experts(/*has_int8_rows=*/false);
      if (!::testing::Test::HasFatalFailure()) combine(mode, is_own);
    }
    for (const auto& [rank, data] : ranks_) {
      const std::vector<float> sums = must(data.output.download());
      const std::vector<bf16> rounded = must(data.rounded.download());
      for (size_t i = 0; i < static_cast<size_t>(kNumTokens[rank] * kHidden); ++i)
        ASSERT_EQ(rounded[i].bits, to_bf16(sums[i]).bits) << "rank " << rank << ", value " << i;
    }
  }
  ExpertParallel& ep() { return *ep_; }

 private:
  struct RankData {
    RowBuffers rows;
    Buffer<bf16> tokens, rounded;
    Buffer<int32_t> topk_ids, expert_ids;
    Buffer<float> topk_weights, residual, output;
    Buffer<uint32_t> row_offsets;
  };

  static float expert_value(int rank, int token_idx, int k, int column) {
    return static_cast<float>(rank * 40 + token_idx * 4 + k - (column % 5));
  }

  void draw(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int rank = 0; rank < kRanks; ++rank) {
      tokens_[rank].resize(kMaxTokens * kHidden);
      ids_[rank].resize(kMaxTokens * kTopK);
      std::vector<float> weights(ids_[rank].size()), residual(tokens_[rank].size());
      for (bf16& value : tokens_[rank]) value = to_bf16(static_cast<float>(random() % 2001) / 16 - 60);
      for (int32_t& id : ids_[rank]) id = static_cast<int32_t>(random() % (kExperts + 1)) - 1;
      for (float& weight : weights) weight = std::ldexp(1.0f, -static_cast<int>(random() % 4));
      for (float& value : residual) value = static_cast<float>(random() % 1024) / 64;
      weights_[rank] = weights;
      residual_[rank] = residual;
      if (!ranks_.contains(rank)) continue;
      RankData& data = ranks_.at(rank);
      ASSERT_TRUE(data.tokens.upload(tokens_[rank]).ok());
      ASSERT_TRUE(data.topk_ids.upload(ids_[rank]).ok());
      ASSERT_TRUE(data.topk_weights.upload(weights).ok());
      ASSERT_TRUE(data.residual.upload(residual).ok());
    }
  }

  void enqueue_on_all(const std::function<Status(int rank)>& call) {
    for (const int rank : world_->local_ranks()) {
      const Status status = call(rank);
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }
  void synchronize() {
    const Status status = ep_->synchronize();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  void dispatch(StepMode mode) {
    const auto input = [&](int rank) {
      const RankData& data = ranks_.at(rank);
      return DispatchInput{data.tokens.data(), data.topk_ids.data(), kNumTokens[rank],
                           data.topk_weights.data()};
    };
    const auto output = [&](int rank) {
      const RankData& data = ranks_.at(rank);
      return DispatchOutput{data.rows.encoded_rows,  data.rows.src_info,     data.rows.max_rows,
                            data.row_offsets.data(), data.expert_ids.data(), data.rows.scales};
    };
    if (mode == StepMode::kFused) {
      enqueue_on_all([&](int rank) { return ep_->dispatch(rank, input(rank), output(rank)); });
    } else {
      enqueue_on_all([&](int rank) { return ep_->dispatch_async(rank, input(rank)); });
      enqueue_on_all([&](int rank) { return ep_->dispatch_wait(rank, output(rank)); });
    }
    synchronize();
  }

  template <typename T>
  std::vector<T> download(int rank, const void* from, size_t size) const {
    return must(world_->rank(rank)
                    .view(static_cast<T*>(const_cast<void*>(from)), std::max<size_t>(size, 1))
                    .download(size));
  }

  void check_rows_and_run_experts(bool has_int8_rows) {
    size_t num_rows_of_all = 0, num_choices = 0;
    for (int rank = 0; rank < kRanks; ++rank)
      for (int i = 0; i < kNumTokens[rank] * kTopK; ++i) num_choices += ids_[rank][i] >= 0 ? 1 : 0;
    for (const auto& [rank, data] : ranks_) {
      const size_t num_rows = must(data.row_offsets.download())[kExperts / kRanks];
      const std::vector<int32_t> src_info = download<int32_t>(rank, data.rows.src_info, 2 * num_rows);
      std::vector<bf16> made(num_rows * kHidden);
      for (const auto& [row, src_rank] : sources_of(rank, src_info)) {
        ++num_rows_of_all;
        const int token_idx = src_info[2 * row], k = src_info[2 * row + 1];
        ASSERT_EQ(ids_[src_rank][token_idx * kTopK + k] / (kExperts / kRanks), rank);
        if (has_int8_rows) check_row(rank, row, tokens_[src_rank].data() + token_idx * kHidden);
        for (int column = 0; column < kHidden; ++column)
          made[row * kHidden + column] = to_bf16(expert_value(src_rank, token_idx, k, column));
      }
      if (data.rows.expert_outputs == nullptr || num_rows == 0) continue;
      ASSERT_TRUE(world_->rank(rank).view(data.rows.expert_outputs, made.size()).upload(made).ok());
    }
    if (ranks_.size() == kRanks) {
      ASSERT_EQ(num_rows_of_all, num_choices);
    }
  }

  // The row and the source rank of all rows that are not there to fill up an expert's.
  std::vector<std::pair<size_t, int>> sources_of(int rank, const std::vector<int32_t>& src_info) const {
    const std::vector<uint32_t> begins = must(ep_->source_row_offsets(rank));
    std::vector<std::pair<size_t, int>> sources;
    for (size_t pair = 0; pair < begins.size(); ++pair) {
      const int src_rank = static_cast<int>(pair) % kRanks;
      const int expert = rank * (kExperts / kRanks) + static_cast<int>(pair) / kRanks;
      size_t count = 0;
      for (int i = 0; i < kNumTokens[src_rank] * kTopK; ++i) count += ids_[src_rank][i] == expert ? 1 : 0;
      for (size_t row = begins[pair]; row < begins[pair] + count; ++row)
        if (2 * row < src_info.size()) sources.emplace_back(row, src_rank);
    }
    return sources;
  }

  void check_row(int rank, size_t row, const bf16* token) const {
    const RowBuffers& rows = ranks_.at(rank).rows;
    const std::vector<int8_t> codes = download<int8_t>(rank, rows.encoded_rows + row * kHidden, kHidden);
    const float scale = download<float>(rank, rows.scales + row * sizeof(float), 1)[0];
    float amax = 0;
    for (int i = 0; i < kHidden; ++i) amax = std::fmax(amax, std::fabs(to_float(token[i])));
    ASSERT_EQ(scale, amax / 127.0f);
    for (int i = 0; i < kHidden; ++i)
      ASSERT_EQ(codes[i], static_cast<int8_t>(std::rint(to_float(token[i]) * (127.0f / amax)))) << i;
  }

  AddResidual epilogue_of(int rank) const {
    return {ranks_.at(rank).residual.data(), ranks_.at(rank).output.data(), kHidden};
  }
  CombineOutput output_of(int rank, bool is_own, const AddResidual& epilogue) const {
    const RankData& data = ranks_.at(rank);
    CombineDestination destination{.output = data.rounded.data()};
    if (is_own) destination = own_destination(epilogue);
    return {data.topk_ids.data(), data.topk_weights.data(), kNumTokens[rank], destination};
  }
  void combine(StepMode mode, bool is_own) {
    const auto input = [&](int rank) {
      const RowBuffers& rows = ranks_.at(rank).rows;
      return CombineInput{rows.expert_outputs != nullptr ? static_cast<const void*>(rows.expert_outputs)
                                                         : rows.encoded_outputs,
                          rows.src_info};
    };
    // An epilogue is copied by the call: this one is gone when the kernel runs.
    if (mode == StepMode::kFused) {
      enqueue_on_all([&](int rank) {
        const AddResidual epilogue = epilogue_of(rank);
        return ep_->combine(rank, input(rank), output_of(rank, is_own, epilogue));
      });
    } else {
      enqueue_on_all([&](int rank) { return ep_->combine_async(rank, input(rank)); });
      enqueue_on_all([&](int rank) {
        const AddResidual epilogue = epilogue_of(rank);
        return ep_->combine_wait(rank, output_of(rank, is_own, epilogue));
      });
    }
    synchronize();
  }

  void check_output() const {
    for (const auto& [rank, data] : ranks_) {
      const std::vector<float> seen = must(data.output.download());
      for (int i = 0; i < kNumTokens[rank] * kHidden; ++i) {
        const int token_idx = i / kHidden, column = i % kHidden;
        float expected = 0;
        for (int k = 0; k < kTopK; ++k)
          if (ids_[rank][token_idx * kTopK + k] >= 0)
            expected += weights_[rank][token_idx * kTopK + k] * expert_value(rank, token_idx, k, column);
        ASSERT_EQ(seen[i], expected + residual_[rank][i]) << "rank " << rank << ", value " << i;
      }
    }
  }

  std::unique_ptr<World> world_;
  std::unique_ptr<ExpertParallel> ep_;
  std::map<int, RankData> ranks_;  // those of this process
  std::vector<bf16> tokens_[kRanks];
  std::vector<int32_t> ids_[kRanks];
  std::vector<float> weights_[kRanks], residual_[kRanks];
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
