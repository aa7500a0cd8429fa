// A tile scheduler of an application in the attention kernel. Compiled for the host and, through
// cuda_tests.cu, for CUDA.
#include <gtest/gtest.h>

#include "reference/attention_case.hpp"
#include "sweep.hpp"
#include "switchyard/own_attention_kernels.hpp"
#include "target/target_fixture.hpp"

#define OwnScheduler SWITCHYARD_SUITE(OwnScheduler)

namespace switchyard::inline SWITCHYARD_TARGET {

using reference::AttentionCase;
using reference::AttentionHarness;
using testing_support::kFewRepeats;
using testing_support::kTargetUnderTest;
using testing_support::must;

// Blocks walk from the last place to the first. What a state counts is how far a block has come, which grows;
// the place is counted from the end, so a search for its sequence begins anew each time.
template <TileEnvironment Environment>
class BackwardScheduler : public TileSchedulerBase<MHASchedule::DEFAULT, Environment> {
  using Base = TileSchedulerBase<MHASchedule::DEFAULT, Environment>;

 public:
  using Base::Base;
  using device_type = BackwardScheduler;
  static constexpr bool may_advance = true;

  template <ValidLength Lengths>
  SWITCHYARD_HD WorkInfo get_current_work_info(const MHATileSummary<Lengths>& summary,
                                               const MHATileState& state) const {
    return state.is_valid() ? Base::get_current_work_info(summary, from_end(state)) : WorkInfo{};
  }
  template <ValidLength Lengths>
  SWITCHYARD_HD SeqInfo unsafe_seq_info(const MHATileSummary<Lengths>& summary,
                                        const MHATileState& state) const {
    return Base::unsafe_seq_info(summary, from_end(state));
  }
  SWITCHYARD_NO_EXEC_CHECK
  template <ValidLength Lengths>
  SWITCHYARD_HD MHATileState initial_state(uint32_t* mailboxes,
                                           const MHATileSummary<Lengths>& summary) const {
    return {this->environment_.block_idx(), summary.max_idx(this->shape().num_heads), mailboxes};
  }
  template <bool producer, MHASchedulerSynchronization sync = MHASchedulerSynchronization::DEFAULT,
            ValidLength Lengths>
  SWITCHYARD_HD OptionalReg<SeqInfo> advance(const MHATileSummary<Lengths>& summary, MHATileState& state,
                                             uint32_t) const {
    while (state.is_valid()) {
      state.idx += this->shape().num_ctas;
      if (get_current_work_info(summary, state).is_valid_tile) return unsafe_seq_info(summary, state);
    }
    return {};
  }
  static constexpr const char* get_type_name() { return "BackwardScheduler"; }

 private:
  SWITCHYARD_HD static MHATileState from_end(MHATileState state) {
    state.idx = state.max_idx - 1 - state.idx;
    state.first_position = 0;
    return state;
  }
};

inline const OwnAttentionKernels& backward_kernels() {
  return own_attention_kernels<BackwardScheduler, 64>();
}

inline std::vector<AttentionCase> own_cases() {
  std::vector<AttentionCase> cases = {
      {.query_lens = {210, 0, 70}, .causal = true, .num_blocks = 2},  // short masked, ragged: with a plan
      {.query_lens = {130, 130}, .causal = true, .is_dense = true, .num_blocks = 3},
      {.query_lens = {70, 300}, .key_lens = {80, 31}, .num_blocks = 2},                   // full
      {.query_lens = {2, 1}, .key_lens = {600, 40}, .num_heads = 4, .num_blocks = 2},     // decode
      {.query_lens = {40, 40}, .key_lens = {31, 90}, .page_size = 16, .num_blocks = 2}};  // pages
  for (AttentionCase& attention_case : cases) attention_case.own_kernels = &backward_kernels();
  return cases;
}

inline std::string compare(Rank& rank, const AttentionCase& attention_case) {
  const auto harness = must(AttentionHarness::create(rank, attention_case));
  EXPECT_STREQ(harness->choice().own_scheduler, "BackwardScheduler");
  if (const Status status = harness->launch(); !status.ok()) return status.to_string();
  return must(harness->compare()).first_bad;
}

TEST(OwnScheduler, RunsInTheAttentionKernel) {
  SWITCHYARD_SKIP_IF_ABSENT(kTargetUnderTest);
  const auto world = must(World::create({.target = kTargetUnderTest}));
  for (const AttentionCase& attention_case : own_cases())
    EXPECT_EQ(compare(world->rank(0), attention_case), "") << attention_case.query_lens[0];
}

inline std::string refusal(void (*spoil)(AttentionShape&)) {
  const auto world = must(World::create({.target = kTargetUnderTest}));
  AttentionShape shape = own_cases()[0].shape();
  spoil(shape);
  return Attention::create(world->rank(0), shape).status().message();
}

TEST(OwnScheduler, WhatDoesNotSuitItIsRefused) {
  SWITCHYARD_SKIP_IF_ABSENT(kTargetUnderTest);
  EXPECT_EQ(refusal([](AttentionShape& shape) { shape.head_dim = 128; }),
            "head_dim is 128; own_kernels are of head_dim 64");
  EXPECT_EQ(refusal([](AttentionShape& shape) { shape.scheduler = TileSchedulerKind::kTile; }),
            "scheduler is tile; it must be automatic with own_kernels, which have BackwardScheduler");
  EXPECT_EQ(refusal([](AttentionShape& shape) { shape.order = MHASchedule::LPT; }),
            "order is LPT; it must be automatic or DEFAULT with own_kernels of that order");
}

#if defined(__CUDACC__)

// The host is always there.
TEST(OwnScheduler, KernelsOfAnotherTargetAreRefused) {
  const auto world = must(World::create({.target = TargetChoice::kHost}));
  EXPECT_EQ(Attention::create(world->rank(0), own_cases()[0].shape()).status().message(),
            "own_kernels are compiled for cuda; the rank's target is host");
}

#else

TEST(OwnScheduler, RunsOnAWeakMemory) {
  const std::vector<AttentionCase> cases = own_cases();
  for (size_t i = kFewRepeats ? cases.size() - 1 : 0; i < cases.size(); ++i) {
    const auto world =
        must(World::create({.target = TargetChoice::kHost,
                            .host = {.mode = EmulatorMode::kSimulated, .seed = i + 1, .weak = true}}));
    EXPECT_EQ(compare(world->rank(0), cases[i]), "") << "seed " << i + 1;
  }
}

// The blocks of a twin see the tiles of the order from its end.
TEST(OwnScheduler, WalksBackwards) {
  const TileOrderParams params{.shape = {.tile_shape = 2, .num_heads = 1, .num_ctas = 1},
                               .batch_size = 1,
                               .max_num_prompt_tiles = 3,
                               .max_seq_len = 5};
  uint32_t mailboxes[2] = {};
  using Schedulers = OnlyScheduler<BackwardScheduler<OneThread>, OneThread>;
  TileWalk<Schedulers> walk(params, mailboxes);
  std::vector<uint32_t> offsets;
  for (walk.find_next(); walk.is_valid(); walk.find_next()) offsets.push_back(walk.seq_info().prompt_offset);
  EXPECT_EQ(offsets, (std::vector<uint32_t>{4, 2, 0}));
}

#endif

}  // namespace switchyard::inline SWITCHYARD_TARGET

#undef OwnScheduler
