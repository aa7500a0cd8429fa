// Runs whole steps of dispatch and combine on a world and checks everything they leave against the reference.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>

#include "reference/reference.hpp"
#include "reference/token_tensors.hpp"
#include "sweep.hpp"
#include "switchyard/detail/ep/tuning.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/expert_parallel.hpp"

namespace switchyard::testing_support {

// The value; without one the test has failed, and ends.
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) ADD_FAILURE() << result.status().to_string();
  return std::move(result).value();
}

enum class StepMode { kSplit, kFused };

struct Shape {
  int n_ranks = 2;
  int n_experts = 4;
  int top_k = 2;
  int hidden = 64;
  std::vector<int> tokens_per_rank = {5, 3};
  int max_tokens_per_rank = 0;  // 0: the largest of tokens_per_rank
};
// With so many, owners fetch the scales that lie in between those of other rows; with fewer, senders store
// them.
inline constexpr int kMaxTokensOfFetchedScales = kEpLimits.max_tokens_sending_scales + 1;

// Token values that name their origin, so that a stale or misplaced row cannot look right.
reference::Step make_step(const Shape& shape, uint64_t seed);

struct RunOptions {
  TargetChoice target = TargetChoice::kHost;
  StepMode mode = StepMode::kSplit;
  Protocol protocol = Protocol::kSlotted;
  CombineReduction reduction = CombineReduction::kWeighted;
  // Two blocks have all that races take, and ThreadSanitizer makes every thread slow.
  int n_sms = kFewCases ? 2 : 3;
  int num_threads = 64;
  bool dependent_launch = false;
  HostDeviceOptions host = {};
  bool experts_in_place = false;  // of steps back to back: rows are taken for the expert outputs
  double capacity_factor = 0;
  RowLayout row_layout = RowLayout::kRagged;
  int row_alignment = 1;
  RowDelivery row_delivery = RowDelivery::kAutomatic;
  bool reduce_at_owner = false;
  UnwrittenRows unwritten = UnwrittenRows::kLeft;
  // Others than the first of each: only run_and_compare() and run_back_to_back().
  TokenFormatKind format = TokenFormatKind::kBF16;
  CombineFormat combine_format = CombineFormat::kBF16;
  SharedExpert shared_expert = SharedExpert::kNone;
  Routing routing = Routing::kAllToAll;
  int allreduce_world_size = 0;  // 1: outputs are not added up
  int p2p_world_size = 0;
  std::optional<ExpertPlacement> placement = {};
  int max_experts_per_rank = 0;
  bool counts_experts = false;
  bool times_ranks = false;  // asks how long each rank waits for each: rank_waits()
  reference::TensorStyle style = {};
  uint64_t timeout_ns = 120'000'000'000;  // sanitizers make the emulator slow
};

// The emulator in weak memory, interleaved by the seed.
inline HostDeviceOptions weak_memory(uint64_t seed, const TestHooks* hooks = nullptr) {
  return {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = true, .hooks = hooks};
}
// What a seed runs there: split kernels if it is even, fused ones if it is odd.
inline RunOptions weak_run(uint64_t seed, Protocol protocol, const TestHooks* hooks = nullptr) {
  return {.mode = seed % 2 == 0 ? StepMode::kSplit : StepMode::kFused,
          .protocol = protocol,
          .n_sms = 2,
          .num_threads = 32,
          .host = weak_memory(seed, hooks)};
}

// Tells the reference what the options say; where the all-to-all is skipped, every rank gets rank 0's tokens.
reference::Step as_run(reference::Step step, const RunOptions& options);

// Ranks whose launches are held up; -1: none.
struct LateRanks {
  int of_dispatch = -1;
  int of_combine = -1;
  uint64_t late_ns = 0;
};

// What a rank has been told of its waits for each rank, in nanoseconds.
struct RankWaits {
  std::vector<uint64_t> of_dispatch, of_combine;
};

// One rank's view of a step: device buffers, and what came back.
class EpHarness {
 public:
  EpHarness(const Shape& shape, const RunOptions& options);
  // Drives the ranks that this process has of a world.
  EpHarness(std::unique_ptr<World> world, const Shape& shape, const RunOptions& options);

  // Runs one step on all ranks and checks row_offsets, expert_ids, src_info, rows and output bit for bit.
  void run_and_check(const reference::Step& step);
  // The same; what is wrong, in words, or nothing.
  std::string run_and_compare(const reference::Step& step);
  // Only dispatch, and what it left.
  std::string dispatch_and_compare(const reference::Step& step);
  // Puts all steps on the streams before it waits for any, with experts that return what they get, and
  // compares the outputs: nothing but the kernels keeps a step from the next.
  std::string run_back_to_back(const std::vector<reference::Step>& steps);
  // The steps back to back, or one after the other; what is wrong, or nothing.
  std::string run_steps(const std::vector<reference::Step>& steps, bool back_to_back);
  // Only launches dispatch of every rank in `ranks`; for tests of faults and misuse.
  Status dispatch_some(const reference::Step& step, const std::vector<int>& ranks);

  // dispatch_async of all ranks, synchronize(), dispatch_wait and combine of all ranks; the first error.
  Status dispatch_in_two(const reference::Step& step);
  // Half a step, with the identity as experts in place; waits for nothing.
  Status enqueue_dispatch(const reference::Step& step);
  Status enqueue_combine(const reference::Step& step);

  // Enqueues whole steps, with the identity as experts, and waits for none of it.
  Status enqueue_steps(const reference::Step& step, int num_steps);

  // A split step whose experts, the identity, are launched between dispatch_async and dispatch_wait, and
  // leave expert outputs; what is wrong, or nothing.
  std::string run_with_early_experts(const reference::Step& step,
                                     const std::function<Status(int rank)>& launch_experts);

  // Holds up these ranks from now on, in steps that are checked.
  void make_late(const LateRanks& late) { late_ = late; }
  RankWaits rank_waits(int rank) const;

  // Whether no rank has written its output, or where its rows came from, since the last upload of a step.
  bool outputs_are_untouched();

  World& world() { return *world_; }
  ExpertParallel& ep() { return *ep_; }
  // Rows and outputs of the last checked step, all ranks in one, for comparing targets.
  const std::vector<uint16_t>& last_output() const { return last_output_; }

 private:
  struct RankBuffers {
    reference::TokenTensors tokens;
    Buffer<bf16> rows, expert_rows;
    Buffer<uint8_t> encoded_rows, scales;  // of formats that encode
    Buffer<uint8_t> encoded_outputs;       // where experts hand over fp8; expert_rows is then empty
    Buffer<int32_t> src_info, expert_ids;
    Buffer<float> topk_weights;
    Buffer<uint32_t> row_offsets, row_counts;
    Buffer<int32_t> row_experts;                     // of rows per rank, else empty
    Buffer<float> row_weights;                       // the same
    Buffer<int32_t> src_ranks;                       // where unwritten rows are marked or zeroed, else empty
    Buffer<uint32_t> scale_row_offsets;              // of tiled scales, else empty
    Buffer<uint64_t> dispatch_waits, combine_waits;  // null unless they are asked for
    Buffer<float> group_input_scales;
  };

  void upload(const reference::Step& step);
  bool is_per_rank() const { return options_.row_layout == RowLayout::kPerRank; }
  // The step as the exchange sees it, and what comes back to a rank.
  reference::Step exchanged(const reference::Step& step) const;
  std::vector<bf16> expected_output(const reference::Step& step, int rank,
                                    reference::ExpertFunction expert) const;
  Status run_dispatch(const reference::Step& step);
  Status run_combine(const reference::Step& step);
  Status upload_expert_rows(int rank, const std::vector<bf16>& expert_rows);
  std::string compare_dispatch(const reference::Step& step);
  std::vector<bf16> expert_row(const reference::Step& step, int rank, int group,
                               const reference::RowOrigin& origin) const;
  std::string compare_output(int rank, const std::vector<bf16>& expected,
                             const reference::TokenTensors& tokens);
  CombineOutput combine_output(const reference::Step& step, int rank) const;
  Status hold_up(int rank, int late_rank);
  Status launch_dispatch(int rank, const DispatchInput& input);
  Status launch_combine(int rank, const CombineInput& input, const CombineOutput& output);
  bool recodes_rows() const;
  bool has_expert_kernel() const;
  Status launch_experts(int rank);
  void* expert_outputs(int rank) const;
  reference::DispatchResult download_dispatch(int rank);
  DispatchInput dispatch_input(const reference::Step& step, int rank);
  DispatchOutput dispatch_output(int rank);

  Shape shape_;
  RunOptions options_;
  LateRanks late_;
  std::unique_ptr<World> world_;
  std::unique_ptr<ExpertParallel> ep_;
  std::vector<RankBuffers> ranks_;
  std::vector<uint16_t> last_output_;
};

// The experts of these tests: expert e turns x into bf16(x * (1 + e / 8)).
std::vector<bf16> scaling_expert(const void*, const reference::Step& step, int rank, int token_idx,
                                 int expert_idx);

// Every target there is, for INSTANTIATE_TEST_SUITE_P; call skip_if_absent() first in each test.
inline auto all_targets() { return ::testing::Values(TargetChoice::kHost, TargetChoice::kCuda); }
inline auto both_protocols() { return ::testing::Values(Protocol::kSlotted, Protocol::kDirect); }
inline std::string protocol_name(Protocol protocol) {
  return protocol == Protocol::kSlotted ? "Slotted" : "Direct";
}
inline std::string target_name(TargetChoice target) {
  return target == TargetChoice::kHost ? "Host" : "Cuda";
}

}  // namespace switchyard::testing_support

#define SWITCHYARD_SKIP_IF_ABSENT(target)                                                     \
  if ((target) == ::switchyard::TargetChoice::kCuda && ::switchyard::num_cuda_devices() == 0) \
  GTEST_SKIP() << "no GPU: " << ::switchyard::why_no_cuda()

// For tests of what kernels find wrong.
#define SWITCHYARD_SKIP_IF_UNCHECKED() \
  if (!::switchyard::kChecked) GTEST_SKIP() << "kernels of an unchecked build find nothing wrong"
