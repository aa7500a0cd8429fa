// A caller's own token format and own epilogue through ExpertParallel: in both protocols, split and fused,
// and in the emulator's simulated weak memory. Compiled for the host and, through own_kernels_test.cu, for
// CUDA.
#include "switchyard/own_kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "examples/int8_token_format.hpp"
#include "target/target_fixture.hpp"

#define OwnKernels SWITCHYARD_SUITE(OwnKernels)
#define OwnKernelsMisuse SWITCHYARD_SUITE(OwnKernelsMisuse)

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
struct OtherEpilogue {
  SWITCHYARD_DEVICE void operator()(int, int, const float (&)[kColumnsPerThread]) const {}
};

// Steps of three ranks with random routing and padding. What an expert makes of a row is a whole number that
// names the row's source, and weights are powers of two: sums are exact.
class OwnStep {
 public:
  static constexpr int kRanks = 3, kExperts = 6, kTopK = 3, kHidden = 128, kMaxTokens = 9;
  static constexpr int kNumTokens[kRanks] = {9, 0, 5};

  OwnStep(const ExpertParallelConfig& config, const HostDeviceOptions& host)
      : world_(must(World::create({.target = kTargetUnderTest, .n_ranks = kRanks, .host = host}))),
        ep_(must(ExpertParallel::create(*world_, config))) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const Rank& owner = world_->rank(rank);
      const auto zeros = [&]<typename T>(T, int size) {
        return must(owner.allocate<T>(static_cast<size_t>(size)));
      };
      ranks_.push_back({must(ep_->row_buffers(rank)), zeros(bf16{}, kMaxTokens * kHidden),
                        zeros(bf16{}, kMaxTokens * kHidden), zeros(int32_t{}, kMaxTokens * kTopK),
                        zeros(int32_t{}, 4 * kExperts), zeros(float{}, kMaxTokens * kTopK),
                        zeros(float{}, kMaxTokens * kHidden), zeros(float{}, kMaxTokens * kHidden),
                        zeros(uint32_t{}, 4 * kExperts)});
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
    for (RankData& data : ranks_) ASSERT_TRUE(data.residual.fill_bytes(0).ok());
    for (const bool is_own : {true, false}) {
      if (!::testing::Test::HasFatalFailure()) dispatch(mode);
      if (!::testing::Test::HasFatalFailure()) check_rows_and_run_experts(/*has_int8_rows=*/false);
      if (!::testing::Test::HasFatalFailure()) combine(mode, is_own);
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<float> sums = must(ranks_[rank].output.download());
      const std::vector<bf16> rounded = must(ranks_[rank].rounded.download());
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
      RankData& data = ranks_[rank];
      ASSERT_TRUE(data.tokens.upload(tokens_[rank]).ok());
      ASSERT_TRUE(data.topk_ids.upload(ids_[rank]).ok());
      ASSERT_TRUE(data.topk_weights.upload(weights).ok());
      ASSERT_TRUE(data.residual.upload(residual).ok());
    }
  }

  void enqueue_on_all(const std::function<Status(int rank)>& call) {
    for (int rank = 0; rank < kRanks; ++rank) {
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
      return DispatchInput{ranks_[rank].tokens.data(), ranks_[rank].topk_ids.data(), kNumTokens[rank]};
    };
    const auto output = [&](int rank) {
      const RankData& data = ranks_[rank];
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
    for (int rank = 0; rank < kRanks; ++rank) {
      const RankData& data = ranks_[rank];
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
    ASSERT_EQ(num_rows_of_all, num_choices);
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
    const RowBuffers& rows = ranks_[rank].rows;
    const std::vector<int8_t> codes = download<int8_t>(rank, rows.encoded_rows + row * kHidden, kHidden);
    const float scale = download<float>(rank, rows.scales + row * sizeof(float), 1)[0];
    float amax = 0;
    for (int i = 0; i < kHidden; ++i) amax = std::fmax(amax, std::fabs(to_float(token[i])));
    ASSERT_EQ(scale, amax / 127.0f);
    for (int i = 0; i < kHidden; ++i)
      ASSERT_EQ(codes[i], static_cast<int8_t>(std::rint(to_float(token[i]) * (127.0f / amax)))) << i;
  }

  AddResidual epilogue_of(int rank) const {
    return {ranks_[rank].residual.data(), ranks_[rank].output.data(), kHidden};
  }
  CombineOutput output_of(int rank, bool is_own, const AddResidual& epilogue) const {
    const RankData& data = ranks_[rank];
    CombineDestination destination{.output = data.rounded.data()};
    if (is_own) destination = own_destination(epilogue);
    return {data.topk_ids.data(), data.topk_weights.data(), kNumTokens[rank], destination};
  }
  void combine(StepMode mode, bool is_own) {
    const auto input = [&](int rank) {
      const RowBuffers& rows = ranks_[rank].rows;
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
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<float> seen = must(ranks_[rank].output.download());
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
  std::vector<RankData> ranks_;
  std::vector<bf16> tokens_[kRanks];
  std::vector<int32_t> ids_[kRanks];
  std::vector<float> weights_[kRanks], residual_[kRanks];
};

class OwnKernels : public ::testing::TestWithParam<std::tuple<Protocol, StepMode>> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(kTargetUnderTest); }
  static Protocol protocol() { return std::get<0>(GetParam()); }
  static StepMode mode() { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Steps, OwnKernels,
                         ::testing::Combine(testing_support::both_protocols(),
                                            ::testing::Values(StepMode::kSplit, StepMode::kFused)),
                         [](const auto& info) {
                           return testing_support::protocol_name(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) == StepMode::kSplit ? "Split" : "Fused");
                         });

TEST_P(OwnKernels, AFormatAndAnEpilogueOfOnesOwnMakeAStep) {
  ExpertParallelConfig config = OwnStep::config(protocol());
  config.own_format = own_format<Int8TokenFormat>();
  config.own_epilogue = own_epilogue<AddResidual>();
  OwnStep step(config, {});
  EXPECT_EQ(step.ep().config().protocol, protocol());
  for (uint64_t seed = 0; seed < 3 && !HasFatalFailure(); ++seed) step.run(seed, mode(), true);
}

TEST_P(OwnKernels, AnEpilogueTakesTheSumsThatTheLibraryRounds) {
  for (const CombineFormat format : {CombineFormat::kBF16, CombineFormat::kFP8}) {
    ExpertParallelConfig config = OwnStep::config(protocol());
    config.combine_format =
        format;  // direct, experts would hand over fp8: here they hand over nothing, zeros
    config.own_epilogue = own_epilogue<AddResidual>();
    OwnStep step(config, {});
    if (!HasFatalFailure()) step.compare_with_the_library(7, mode());
  }
}

TEST_P(OwnKernels, AFormatThatOnlySlottedCarriesIsSentSlotted) {
  ExpertParallelConfig config = OwnStep::config(Protocol::kAutomatic);
  config.own_format = own_format<SlottedInt8Format>();
  config.own_epilogue = own_epilogue<AddResidual>();
  OwnStep step(config, {});
  EXPECT_EQ(step.ep().config().protocol, Protocol::kSlotted);
  EXPECT_EQ(step.ep().protocol_reason(), "format slotted-int8 is the caller's own and no DirectFormat");
  step.run(11, mode(), true);
}

#if !defined(__CUDACC__)
TEST_P(OwnKernels, RandomInterleavingsInWeakMemoryGiveTheSameResult) {
  ExpertParallelConfig config = OwnStep::config(protocol());
  config.own_format = own_format<Int8TokenFormat>();
  config.own_epilogue = own_epilogue<AddResidual>();
  config.num_threads = 32;
  for (uint64_t seed = 0; seed < 6 && !HasFatalFailure(); ++seed) {
    OwnStep step(config, {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = true});
    for (uint64_t i = 0; i < 2 && !HasFatalFailure(); ++i) step.run(seed * 2 + i, mode(), true);
  }
}
#endif

// The target that this file is not compiled for, and what an error says if a world is on the other one.
constexpr Target kOtherTarget = kThisTarget == Target::kHost ? Target::kCuda : Target::kHost;
const std::string kTargets =
    std::string(to_string(kOtherTarget)) + "; the world is on " + to_string(kThisTarget);

class OwnKernelsMisuse : public ::testing::Test {
 protected:
  void SetUp() override {
    SWITCHYARD_SKIP_IF_ABSENT(kTargetUnderTest);
    world_ = must(World::create({.target = kTargetUnderTest, .n_ranks = 2}));
    config_ = OwnStep::config(Protocol::kAutomatic);
  }
  std::string message_of_create() { return ExpertParallel::create(*world_, config_).status().message(); }

  std::unique_ptr<World> world_;
  ExpertParallelConfig config_;
};

TEST_F(OwnKernelsMisuse, OfFormatsIsNamed) {
  config_.own_format = own_format<SlottedInt8Format>();
  config_.protocol = Protocol::kDirect;
  EXPECT_EQ(message_of_create(),
            "protocol is direct; own_format slotted-int8 is no DirectFormat: only slotted carries it");
  config_.protocol = Protocol::kAutomatic;
  config_.dispatch_format = TokenFormatKind::kMXFP8;
  EXPECT_EQ(message_of_create(), "dispatch_format is mxfp8; it must be left bf16 where own_format is given");
  config_.dispatch_format = TokenFormatKind::kBF16;
  config_.hidden = 40;
  EXPECT_EQ(message_of_create(),
            "own_format slotted-int8: encoded_bytes() is 56 with hidden 40; it must be a multiple of 16");
  config_.own_format = own_format<Int8TokenFormat>();
  EXPECT_EQ(message_of_create(), "hidden is 40; format int8 needs a multiple of 32");
  config_.hidden = OwnStep::kHidden;
  OwnFormat broken = *own_format<Int8TokenFormat>();
  broken.target = kOtherTarget;
  config_.own_format = &broken;
  EXPECT_EQ(message_of_create(), "own_format is compiled for " + kTargets);
  broken = {};
  EXPECT_EQ(message_of_create(), "own_format has no kernels; own_format<Format>() makes one that has");
  ExpertParallelConfig other = config_;
  config_.own_format = own_format<Int8TokenFormat>();
  EXPECT_EQ(ExpertParallel::create(*world_, {config_, other}).status().message(),
            "rank 1 has another configuration than rank 0: own_format differs");
}

TEST_F(OwnKernelsMisuse, OfEpiloguesIsNamed) {
  config_.own_epilogue = own_epilogue<AddResidual>();
  config_.routing = Routing::kSkipAllToAll;
  EXPECT_EQ(message_of_create(),
            "own_epilogue must be null where the all-to-all is skipped: combine leaves partial sums there");
  config_.routing = Routing::kAllToAll;
  OwnEpilogue elsewhere = *own_epilogue<AddResidual>();
  elsewhere.target = kOtherTarget;
  config_.own_epilogue = &elsewhere;
  EXPECT_EQ(message_of_create(), "own_epilogue is compiled for " + kTargets);
  const OtherEpilogue other;
  const AddResidual epilogue{};
  const auto message_of_combine = [&](const CombineDestination& destination) {
    const auto ep = must(ExpertParallel::create(*world_, config_));
    const auto words = must(world_->rank(0).allocate<uint32_t>(64));
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(ep->dispatch(rank, {},
                               {.row_offsets = words.data() + 16 * rank,
                                .expert_ids = reinterpret_cast<int32_t*>(words.data() + 32 + 16 * rank)})
                      .ok());
    const std::string message = ep->combine(0, {}, {.destination = destination}).message();
    EXPECT_TRUE(ep->synchronize().ok());
    return message;
  };
  config_.own_epilogue = nullptr;
  EXPECT_EQ(message_of_combine(own_destination(epilogue)),
            "combine: the destination has an epilogue, but the configuration has no own_epilogue");
  config_.own_epilogue = own_epilogue<AddResidual>();
  EXPECT_EQ(message_of_combine(own_destination(other)),
            "combine: the epilogue is of another type than the own_epilogue of the configuration");
  CombineDestination null_epilogue = own_destination(epilogue);
  null_epilogue.epilogue = nullptr;
  EXPECT_EQ(message_of_combine(null_epilogue),
            "combine: epilogue is null; own_destination(epilogue) fills it in");
}

}  // namespace switchyard::inline SWITCHYARD_TARGET

#undef OwnKernels
#undef OwnKernelsMisuse
