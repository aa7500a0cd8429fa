// ExpertParallel and Attention on the streams of the same ranks, in every order an engine may enqueue them:
// what one of them holds of the device is never what a peer of the other needs to go on. So do experts that
// start early. Compiled for the host and, through cuda_tests.cu, for CUDA.
#include "ep/early_experts.hpp"
#include "ep/step_runner.hpp"
#include "sweep.hpp"
#include "switchyard/attention.hpp"
#include "switchyard/world.hpp"
#include "target/target_fixture.hpp"

#define Interleaved SWITCHYARD_SUITE(Interleaved)
#define EarlyInterleaved SWITCHYARD_SUITE(EarlyInterleaved)

namespace switchyard {
namespace {

using namespace testing_support;

using Variant = std::tuple<TargetChoice, Protocol, StepMode, int /*n_ranks*/, bool /*dependent_launch*/>;

std::string variant_name(const testing::TestParamInfo<Variant>& info) {
  const auto [target, protocol, mode, n_ranks, dependent] = info.param;
  return testing_support::target_name(target) + testing_support::protocol_name(protocol) +
         (mode == StepMode::kFused ? "Fused" : "Split") + std::to_string(n_ranks) + "Ranks" +
         (dependent ? "Dependent" : "");
}

// One layer's attention of each rank. On a GPU it has a tile for every multiprocessor and more, so that a
// launch takes all the room there is.
class RankAttention {
 public:
  RankAttention(Rank& rank, bool is_host) {
    AttentionShape shape{.head_dim = is_host ? 64 : 128,
                         .num_heads = is_host ? 1 : 16,
                         .num_kv_heads = is_host ? 1 : 16,
                         .batch_size = is_host ? 1 : 4,
                         .max_query_len = is_host ? 40 : 512,
                         .max_key_len = is_host ? 40 : 512,
                         .causal = true};
    shape.num_query_rows = shape.num_key_rows = int64_t{shape.batch_size} * shape.max_query_len;
    attention_ = must(Attention::create(rank, shape));
    const size_t size = static_cast<size_t>(shape.num_query_rows) * static_cast<size_t>(shape.num_heads) *
                        static_cast<size_t>(shape.head_dim);
    std::vector<bf16> values(size);
    for (size_t i = 0; i < size; ++i)
      values[i] = to_bf16(static_cast<float>((i * 2654435761u) % 1024) / 512.0f - 1.0f);
    input_ = must(rank.upload(values));
    output_ = must(rank.allocate<bf16>(size));
  }

  Status enqueue() {
    return attention_->run(
        {.queries = input_.data(), .keys = input_.data(), .values = input_.data(), .output = output_.data()});
  }
  std::vector<bf16> output() const { return must(output_.download()); }

 private:
  std::unique_ptr<Attention> attention_;
  Buffer<bf16> input_, output_;
};

class Interleaved : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    SWITCHYARD_SKIP_IF_ABSENT(std::get<0>(GetParam()));
    const auto [target, protocol, mode, n_ranks, dependent] = GetParam();
    mode_ = mode;
    is_host_ = target == TargetChoice::kHost;
    shape_ = {.n_ranks = n_ranks,
              .n_experts = 16,
              .top_k = 4,
              .hidden = is_host_ ? 64 : 1024,
              .tokens_per_rank = std::vector<int>(static_cast<size_t>(n_ranks), is_host_ ? 3 : 64)};
    // On a GPU what the library chooses: all multiprocessors, shared by the ranks. A dependent launch is
    // resident beside its predecessor: half of them.
    const StepRunner::Launch launch{.n_sms = is_host_ ? 2 : (dependent ? 64 / n_ranks : 0),
                                    .num_threads = is_host_ ? 64 : 0,
                                    .dependent = dependent};
    runner_ = std::make_unique<StepRunner>(shape_, std::make_tuple(target, protocol), launch);
    for (int rank = 0; rank < n_ranks; ++rank) attentions_.emplace_back(runner_->world->rank(rank), is_host_);
    step_ = make_step(shape_, 17);
    runner_->upload(step_);
    for (RankAttention& attention : attentions_) ASSERT_TRUE(attention.enqueue().ok());
    ASSERT_TRUE(runner_->world->synchronize().ok());
    attention_alone_ = attentions_.front().output();
  }

  int num_repeats() const { return is_host_ ? 2 : 200; }

  enum class Call { kDispatch, kDispatchAsync, kEarlyExperts, kDispatchWait, kCombine, kAttend };
  using enum Call;

  Status enqueue(Call call, int rank) {
    switch (call) {
      case kDispatch:
        return runner_->enqueue_dispatch(rank, mode_);
      case kDispatchAsync:
        return runner_->enqueue_dispatch_async(rank);
      case kEarlyExperts:  // fewer blocks than experts, so that a block waits for several, one by one
        return launch_early_experts(*runner_->world, *runner_->ep, rank,
                                    {.num_blocks = 1, .num_threads = is_host_ ? 64u : 256u});
      case kDispatchWait:
        return runner_->enqueue_dispatch_wait(rank);
      case kCombine:
        return runner_->enqueue_combine(rank, mode_);
      case kAttend:
        return attentions_[static_cast<size_t>(rank)].enqueue();
    }
    return Status();
  }
  // All calls of a rank, then those of the next.
  Status on_every_rank(std::initializer_list<Call> calls) {
    for (int rank = 0; rank < shape_.n_ranks; ++rank)
      for (const Call call : calls) SWITCHYARD_RETURN_IF_ERROR(enqueue(call, rank));
    return Status();
  }
  // Each call of all ranks, then the next.
  Status phase_by_phase(std::initializer_list<Call> calls) {
    for (const Call call : calls) SWITCHYARD_RETURN_IF_ERROR(on_every_rank({call}));
    return Status();
  }

  void check(const Status& enqueued) {
    ASSERT_TRUE(enqueued.ok()) << enqueued.to_string();
    const Status status = runner_->ep->synchronize();
    ASSERT_TRUE(status.ok()) << status.to_string();
    runner_->check(step_);
    for (const RankAttention& attention : attentions_) ASSERT_EQ(attention.output(), attention_alone_);
  }
  // Twenty in flight at once.
  void repeat(const std::function<Status()>& enqueue_all) {
    for (int i = 1; i <= num_repeats(); ++i) {
      const Status enqueued = enqueue_all();
      if (enqueued.ok() && i % 20 != 0 && i != num_repeats()) continue;
      check(enqueued);
      if (HasFatalFailure()) return;
      runner_->upload(step_);  // poisons what the next ones must write
    }
  }
  void replay(const std::function<Status()>& enqueue_all) {
    const std::unique_ptr<Graph> graph = must(runner_->world->capture(enqueue_all));
    repeat([&] { return graph->launch(); });
  }

  StepMode mode_ = StepMode::kFused;
  bool is_host_ = true;
  Shape shape_;
  reference::Step step_;
  std::unique_ptr<StepRunner> runner_;
  std::vector<RankAttention> attentions_;
  std::vector<bf16> attention_alone_;
};

INSTANTIATE_TEST_SUITE_P(Targets, Interleaved,
                         testing::Combine(testing::Values(kTargetUnderTest), both_protocols(),
                                          testing::Values(StepMode::kFused, StepMode::kSplit),
                                          testing::ValuesIn(sweep({2, 8, 4})), testing::Bool()),
                         variant_name);

TEST_P(Interleaved, AttentionBehindEachRanksStep) {
  // Ranks that share a GPU enqueue split kernels phase by phase (docs/architecture.md).
  if (mode_ == StepMode::kSplit && !is_host_) GTEST_SKIP() << "rank by rank is for fused kernels";
  repeat([&] { return on_every_rank({kDispatch, kCombine, kAttend}); });
}

TEST_P(Interleaved, AttentionBehindEachHalfOfAStep) {
  repeat([&] {
    SWITCHYARD_RETURN_IF_ERROR(on_every_rank({kDispatch, kAttend}));
    return on_every_rank({kCombine, kAttend});
  });
}

TEST_P(Interleaved, AGraphPhaseByPhase) {
  replay([&] { return phase_by_phase({kDispatch, kAttend, kCombine, kAttend}); });
}

TEST_P(Interleaved, AGraphRankByRank) {
  replay([&] { return on_every_rank({kDispatch, kAttend, kCombine, kAttend}); });
}

// Only the direct protocol has rows before dispatch_wait, and only split kernels have something in between.
class EarlyInterleaved : public Interleaved {
 protected:
  void SetUp() override {
    Interleaved::SetUp();
    if (runner_ != nullptr) runner_->has_expert_outputs = true;
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, EarlyInterleaved,
                         testing::Combine(testing::Values(kTargetUnderTest),
                                          testing::Values(Protocol::kDirect),
                                          testing::Values(StepMode::kSplit),
                                          testing::ValuesIn(sweep({1, 2, 8, 4})), testing::Bool()),
                         variant_name);

TEST_P(EarlyInterleaved, AttentionAroundEarlyExperts) {
  repeat([&] {
    return phase_by_phase({kAttend, kDispatchAsync, kEarlyExperts, kDispatchWait, kAttend, kCombine});
  });
}

TEST_P(EarlyInterleaved, AGraphPhaseByPhase) {
  replay([&] {
    return phase_by_phase({kDispatchAsync, kEarlyExperts, kDispatchWait, kAttend, kCombine, kAttend});
  });
}

TEST_P(EarlyInterleaved, AGraphRankByRank) {
  replay([&] {
    return on_every_rank({kDispatchAsync, kEarlyExperts, kDispatchWait, kAttend, kCombine, kAttend});
  });
}

}  // namespace
}  // namespace switchyard
