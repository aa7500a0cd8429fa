// An ExpertParallel as api_fuzz.cpp calls it, beside a model of its contract: which call may come after
// which, and what the plain-loop reference says it leaves.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "api_draw.hpp"
#include "reference/placement.hpp"
#include "reference/reference.hpp"
#include "switchyard/expert_parallel.hpp"

namespace switchyard::api_fuzz {

enum class Call { kDispatchAsync, kDispatchWait, kDispatch, kCombineAsync, kCombineWait, kCombine };
inline constexpr const char* kCallNames[] = {"dispatch_async", "dispatch_wait", "dispatch",
                                             "combine_async",  "combine_wait",  "combine"};
enum class Stage { kIdle, kDispatchSent, kDispatched, kCombineSent };

// The contract in four lines: which call may come after which, and where it leads.
inline bool is_legal(Call call, Stage stage) {
  constexpr Stage kBefore[] = {Stage::kIdle,       Stage::kDispatchSent, Stage::kIdle,
                               Stage::kDispatched, Stage::kCombineSent,  Stage::kDispatched};
  return kBefore[static_cast<int>(call)] == stage;
}
inline Stage stage_after(Call call) {
  constexpr Stage kAfter[] = {Stage::kDispatchSent, Stage::kDispatched, Stage::kDispatched,
                              Stage::kCombineSent,  Stage::kIdle,       Stage::kIdle};
  return kAfter[static_cast<int>(call)];
}

// An ExpertParallel, the stage each rank's step is in, and the buffers of that step.
class Object {
 public:
  Object(World& world, Draw& draw, bool is_simulated, Log& log) : world_(world), draw_(draw), log_(log) {
    const bool is_host = world.target() == Target::kHost;
    config_.n_experts = world.n_ranks() * (1 + draw.below(3)) + (draw.one_in(3) ? 1 : 0);
    config_.top_k = 1 + draw.below(4);
    config_.hidden = 8 * (1 + draw.below(12));
    config_.max_tokens_per_rank = 1 + draw.below(7);
    config_.n_sms = 1 + draw.below(3);
    config_.num_threads = is_host ? 32 * (1 + draw.below(2)) : 0;
    config_.timeout_ns = is_simulated ? 1'000'000'000 : is_host ? 60'000'000'000 : 10'000'000'000;
    config_.protocol = draw.one_in(2) ? Protocol::kSlotted : Protocol::kDirect;
    ep_ = must(ExpertParallel::create(world, config_), "create");
    ranks_.resize(static_cast<size_t>(world.n_ranks()));
    log.add("create " + std::string(to_string(config_.protocol)) + ", " + std::to_string(config_.n_experts) +
            " experts, top_k " + std::to_string(config_.top_k) + ", hidden " +
            std::to_string(config_.hidden) + ", n_sms " + std::to_string(config_.n_sms));
  }

  int n_ranks() const { return ep_->n_ranks(); }
  ExpertParallel& ep() { return *ep_; }
  bool is_failed() const { return is_failed_; }

  // New inputs for all ranks, some of them without tokens.
  void draw_step() {
    step_ = {n_ranks(), config_.n_experts, config_.top_k, config_.hidden, {}, {}, {}};
    reference::place_experts(step_, *ep_);
    for (int rank = 0; rank < n_ranks(); ++rank) {
      const int num_tokens = draw_.one_in(4) ? 0 : draw_.below(config_.max_tokens_per_rank + 1);
      std::vector<bf16> tokens(static_cast<size_t>(num_tokens * config_.hidden));
      for (bf16& value : tokens) value = to_bf16(static_cast<float>(draw_.below(2001)) / 500.0f - 2.0f);
      std::vector<int32_t> ids(static_cast<size_t>(num_tokens * config_.top_k));
      for (int32_t& id : ids) id = draw_.one_in(8) ? -1 : draw_.below(config_.n_experts);
      std::vector<float> weights(ids.size());
      for (float& weight : weights) weight = static_cast<float>(1 + draw_.below(1000)) / 1000.0f;
      step_.tokens.push_back(std::move(tokens));
      step_.topk_ids.push_back(std::move(ids));
      step_.topk_weights.push_back(std::move(weights));
    }
  }
  // One id that no expert has. False if no rank has a token.
  bool spoil_an_id() {
    for (const int rank : draw_.order_of(n_ranks())) {
      std::vector<int32_t>& ids = step_.topk_ids[static_cast<size_t>(rank)];
      if (ids.empty()) continue;
      ids[static_cast<size_t>(draw_.below(static_cast<int>(ids.size())))] =
          draw_.of<int32_t>({config_.n_experts, -2, INT32_MIN, INT32_MAX});
      return true;
    }
    return false;
  }

  void upload() {
    for (int r = 0; r < n_ranks(); ++r) {
      Rank& rank = world_.rank(world_rank(r));
      const size_t at = static_cast<size_t>(r);
      const size_t num_values = step_.tokens[at].size(), num_groups = static_cast<size_t>(ep_->num_groups());
      RankState& state = ranks_[at];
      state.rows = must(ep_->row_buffers(r), "row_buffers");
      state.tokens = must(rank.upload(step_.tokens[at]), "upload");
      state.topk_ids = must(rank.upload(step_.topk_ids[at]), "upload");
      state.weights = must(rank.upload(step_.topk_weights[at]), "upload");
      state.output = must(rank.allocate<bf16>(num_values), "allocate");
      state.row_offsets = must(rank.allocate<uint32_t>(num_groups + 1), "allocate");
      state.expert_ids = must(rank.allocate<int32_t>(num_groups), "allocate");
      expect_ok(state.output.fill_bytes(0xee), "fill_bytes");
    }
  }
  // As an early return does: what kernels still use goes when they have done with it.
  void drop_inputs() {
    for (RankState& state : ranks_) state.tokens = {};
  }

  Status call(int r, Call call) {
    RankState& state = ranks_[static_cast<size_t>(r)];
    const int num_tokens = step_.num_tokens(r);
    const DispatchInput input{state.tokens.data(), state.topk_ids.data(), num_tokens};
    const DispatchOutput rows{state.rows.rows, state.rows.src_info, state.rows.max_rows,
                              state.row_offsets.data(), state.expert_ids.data()};
    const CombineInput experts{state.rows.rows, state.rows.src_info};
    const CombineOutput output{
        state.topk_ids.data(), state.weights.data(), num_tokens, {.output = state.output.data()}};
    switch (call) {
      case Call::kDispatchAsync:
        return ep_->dispatch_async(r, input);
      case Call::kDispatchWait:
        return ep_->dispatch_wait(r, rows);
      case Call::kDispatch:
        return ep_->dispatch(r, input, rows);
      case Call::kCombineAsync:
        return ep_->combine_async(r, experts);
      case Call::kCombineWait:
        return ep_->combine_wait(r, output);
      case Call::kCombine:
        return ep_->combine(r, experts, output);
    }
    return Status();
  }
  void must_call(int r, Call which) {
    expect_ok(call(r, which), name_of(r, which));
    ranks_[static_cast<size_t>(r)].stage = stage_after(which);
  }
  // A call that must be refused, now and then; it must change nothing.
  void misuse() {
    const int r = draw_.below(n_ranks());
    const Call which = static_cast<Call>(draw_.below(6));
    if (!is_failed_ && is_legal(which, ranks_[static_cast<size_t>(r)].stage)) return;
    log_.add("misuse: " + name_of(r, which));
    expect_code(call(r, which), StatusCode::kFailedPrecondition, name_of(r, which));
    for (const int rank : {-1, n_ranks(), 1 << 20})
      expect_code(ep_->dispatch(rank, {}, {}), StatusCode::kInvalidArgument,
                  "dispatch of a rank out of range");
  }
  // The calls of one phase on the given ranks, in any order of ranks.
  void enqueue(Call which, const std::vector<int>& ranks) {
    for (const int r : ranks) {
      if (draw_.one_in(4)) misuse();
      must_call(r, which);
    }
  }
  std::vector<int> all_ranks() { return draw_.order_of(n_ranks()); }
  // The two halves of a step, each in one call or in two.
  std::vector<Call> draw_calls(bool is_dispatch) {
    if (draw_.one_in(2)) return {is_dispatch ? Call::kDispatch : Call::kCombine};
    if (is_dispatch) return {Call::kDispatchAsync, Call::kDispatchWait};
    return {Call::kCombineAsync, Call::kCombineWait};
  }

  void check_step() {
    if (draw_.one_in(2)) {
      expect_ok(ep_->synchronize(), "synchronize");
    } else {
      for (const int r : all_ranks()) expect_ok(ep_->synchronize(r), "synchronize(rank)");
    }
    for (int r = 0; r < n_ranks(); ++r) check_rank(r);
  }
  void check_rank(int r) {
    RankState& state = ranks_[static_cast<size_t>(r)];
    Rank& rank = world_.rank(world_rank(r));
    reference::DispatchResult result;
    result.row_offsets = must(state.row_offsets.download(), "download");
    result.expert_ids = must(state.expert_ids.download(), "download");
    const size_t num_rows = result.row_offsets.back();
    if (num_rows > state.rows.max_rows) fail("row_offsets say " + std::to_string(num_rows) + " rows");
    result.src_info = must(rank.view(state.rows.src_info, 2 * num_rows).download(), "download");
    result.rows = must(rank.view(state.rows.rows, num_rows * static_cast<size_t>(config_.hidden)).download(),
                       "download");
    if (const std::string wrong = reference::check_dispatch(step_, r, result); !wrong.empty())
      fail("dispatch of rank " + std::to_string(r) + ": " + wrong);
    const std::vector<bf16> expected =
        reference::combine_weighted(step_, r, &reference::identity_expert, nullptr);
    if (must(state.output.download(), "download") != expected)
      fail("combine of rank " + std::to_string(r) + " is not what the reference says");
  }

  void expect_failure(StatusCode code, const std::string& part) {
    const Status status = ep_->synchronize();
    expect_code(status, code, "synchronize");
    if (status.message().find(part) == std::string::npos)
      fail("the error does not say \"" + part + "\": " + status.to_string());
    is_failed_ = true;
    for (int i = draw_.below(3); i > 0; --i) misuse();
  }

  void reset() {
    if (n_ranks() > 1 && draw_.one_in(2)) {
      std::vector<int> survivors = all_ranks();
      survivors.resize(static_cast<size_t>(1 + draw_.below(n_ranks() - 1)));
      std::sort(survivors.begin(), survivors.end());
      log_.add("reset with " + std::to_string(survivors.size()) + " ranks");
      expect_ok(ep_->reset(survivors), "reset(survivors)");
      std::vector<int> members;
      for (const int survivor : survivors) members.push_back(world_rank(survivor));
      members_ = std::move(members);
      ranks_.clear();
      ranks_.resize(survivors.size());
    } else {
      log_.add("reset");
      expect_ok(ep_->reset(), "reset");
    }
    for (RankState& state : ranks_) state.stage = Stage::kIdle;
    is_failed_ = false;
  }

 private:
  struct RankState {
    Stage stage = Stage::kIdle;
    RowBuffers rows{};
    Buffer<bf16> tokens, output;
    Buffer<int32_t> topk_ids, expert_ids;
    Buffer<float> weights;
    Buffer<uint32_t> row_offsets;
  };
  int world_rank(int r) const { return members_.empty() ? r : members_[static_cast<size_t>(r)]; }
  static std::string name_of(int r, Call which) {
    return std::string(kCallNames[static_cast<int>(which)]) + "(rank " + std::to_string(r) + ")";
  }

  World& world_;
  Draw& draw_;
  Log& log_;
  ExpertParallelConfig config_;
  std::unique_ptr<ExpertParallel> ep_;
  std::vector<int> members_;  // after a reset with fewer ranks; empty: all of the world's
  std::vector<RankState> ranks_;
  reference::Step step_;
  bool is_failed_ = false;
};

}  // namespace switchyard::api_fuzz
