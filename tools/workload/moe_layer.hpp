// A MoE layer on a world: router, dispatch, the experts' gated MLP, combine. All phases of a step are
// enqueued on all ranks, as an application would, and waited for once, at its end.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fast_experts.hpp"
#include "reference/token_tensors.hpp"
#include "switchyard/detail/ep/expand_rows_params.hpp"
#include "switchyard/expert_parallel.hpp"
#include "workload.hpp"

namespace switchyard::tools {

// When each rank began and ended a phase, on the clock of the target (target::now_ns()), which on the host is
// std::chrono::steady_clock. Both are 0 for a rank that did not reach the phase.
struct TimedPhase {
  struct Interval {
    uint64_t begin_ns = 0;
    uint64_t end_ns = 0;
  };

  std::string name;
  std::vector<Interval> of_rank;

  // The time of the slowest rank, its waits for others included.
  double microseconds() const;
};

class MoeLayer {
 public:
  // `config` says everything that the workload does not. The layer takes little memory until allocate().
  static Result<std::unique_ptr<MoeLayer>> create(World& world, const Workload& workload,
                                                  ExpertParallelConfig config, const FaultPlan& faults,
                                                  const reference::TensorStyle& style = {});
  // A layer on another flight of the same ExpertParallel, which must outlive it.
  static Result<std::unique_ptr<MoeLayer>> create_on_flight(MoeLayer& first, int flight_idx);
  // Estimates, before allocate(), the host memory that steps and their verification use, the reference's
  // experts included. On the emulator the ranks' memory is part of it.
  double host_bytes() const;
  // Allocates the buffers of all ranks, and copies the experts into them.
  Status allocate(const reference::MlpExperts& experts);

  // Runs one step. With a router, the step's ids and weights are those of the reference's router; padding is
  // then applied.
  Status run(int step_idx, StepMode mode, reference::Step& step) {
    return run_at_once({this}, step_idx, mode, {&step});
  }
  // The same of as many steps at once as there are layers, each on a flight of its own: part by part of all.
  static Status run_at_once(const std::vector<MoeLayer*>& layers, int first_step, StepMode mode,
                            const std::vector<reference::Step*>& steps);

  struct Results {
    reference::Routing routing;  // of the layer's router, where it has one
    reference::DispatchResult dispatch;
    std::vector<int32_t> src_rank;     // [rows], as the kernels counted; -1 for rows that only align a group
    std::vector<bf16> expert_outputs;  // [rows][hidden]
    std::vector<uint8_t> encoded_outputs;  // [rows][bytes], if combine takes them encoded
    std::vector<bf16> output;              // [tokens][hidden]
  };
  Result<Results> download(int rank) const;
  // How many rows the rank's tensors hold.
  uint32_t max_rows(int rank) const {
    return static_cast<uint32_t>(ranks_[static_cast<size_t>(rank)].src_info.size() / 2);
  }

  // False for the rank that FaultPlan::kill has killed: it has no results.
  bool is_alive(int rank) const { return !killed_ || rank != faults_.kill.rank; }
  // The ranks of this process.
  std::vector<int> local_ranks() const { return world_.local_ranks(); }

  // The phases of the last step, in order; if it failed, up to the phase in which it did.
  const std::vector<TimedPhase>& phases() const { return phases_; }
  const ExpertParallel& ep() const { return *ep_; }
  // By how much of its length a token's output may be off: fast matmuls do not round what the reference does,
  // or round it to fp8. 0: not a bit may differ.
  double tolerance() const;
  ExpertParallel& ep() { return *ep_; }

  // The step as dispatch and combine see it.
  reference::Step exchanged(const reference::Step& step) const;
  bool is_per_rank() const { return ep_->config().row_layout == RowLayout::kPerRank; }

 private:
  struct RankBuffers {
    Buffer<bf16> gate_up_weights, down_weights;
    Buffer<float> logits, topk_weights;
    reference::TokenTensors tokens;
    Buffer<int32_t> expert_ids, src_info;
    Buffer<int32_t> routed_ids;  // of the router; those of the tokens have padding
    Buffer<uint64_t> stamps;     // [phase + 1]: when the rank began the first phase, and ended each
    Buffer<uint32_t> row_offsets, row_counts, scale_row_offsets;
    Buffer<float> group_input_scales;
    Buffer<uint8_t> rows, scales;    // of ExpertParallel, as they were dispatched
    Buffer<uint8_t> expert_outputs;  // of ExpertParallel, as combine takes them
    // [rows][..], grown as a step needs
    Buffer<bf16> decoded, gate_up, activated, down;
    // Rows per rank: their choices, and the rows of each expert, before and behind it.
    Buffer<int32_t> row_experts, group_ids;
    Buffer<float> row_weights;
    Buffer<uint32_t> row_of_choice, group_offsets, group_counts;
    Buffer<bf16> expert_rows, expert_results;
  };
  // The rows of each expert, as matmuls take them.
  struct ExpertGroups {
    const uint32_t* row_offsets;  // [num_matrices + 1]
    const uint32_t* row_counts;   // [num_matrices]
    const int32_t* expert_ids;    // [num_matrices]
  };

  MoeLayer(World& world, const Workload& workload, const FaultPlan& faults,
           const reference::TensorStyle& style)
      : world_(world), workload_(workload), faults_(faults), style_(style) {}
  double rank_bytes(double num_rows) const;
  Status allocate_choices(int rank);
  // num_expert_rows: one for each of the experts that a row goes to.
  Status reserve_rows(int rank, uint64_t num_rows, uint64_t num_expert_rows);
  Status prepare(int step_idx, reference::Step& step);
  Status begin_step(const reference::Step& step);
  Status enqueue(const std::string& phase, const std::function<Status(int rank)>& launch);
  Status stamp(int rank);
  Status take_times();
  Status enqueue_router(const reference::Step& step);
  Status enqueue_dispatch(const reference::Step& step, StepMode mode);
  Status enqueue_experts();
  Status enqueue_combine(const reference::Step& step, StepMode mode);
  Status enqueue_plain_experts();
  Status enqueue_fast_experts();
  Status decode_rows();
  Status encode_outputs();
  // Rows per rank: to their experts and back.
  Status expand_rows();
  Status sum_choices();
  ExpandedRows expanded_rows(int rank) const;
  ExpertGroups expert_groups(int rank) const;
  // Adds what the configuration says to a step, for the reference.
  void describe(reference::Step& step) const;
  // The source rank of each row of a rank, as its kernels counted.
  Result<std::vector<int32_t>> source_ranks(int rank, const reference::DispatchResult& dispatch) const;
  bool is_encoded() const { return ep_->config().dispatch_format != TokenFormatKind::kBF16; }
  bool is_fast() const { return workload_.matmuls == Matmuls::kFast; }
  // What the fast matmuls read; bf16, of decoded rows, where they do not read what dispatch writes.
  MatmulRows matmul_rows() const {
    if (is_per_rank()) return {};
    return matmul_rows_of(ep_->config().dispatch_format).value_or(MatmulRows{});
  }
  bool multiplies_fp8() const { return is_fast() && matmul_rows().element == MatmulElement::kFP8; }
  // Matmuls that read bf16 need rows that are.
  bool decodes_rows() const { return is_encoded() && !multiplies_fp8(); }
  // If peers read the expert outputs themselves, experts encode them.
  bool encodes_outputs() const {
    return ep_->config().protocol == Protocol::kDirect &&
           ep_->config().combine_format != CombineFormat::kBF16;
  }
  // The ids that dispatch and combine read: the router's, unless padding has been added since.
  const int32_t* topk_ids(int rank) const;
  // The rows that came, those that the experts read, what they write, and what combine takes; all in bf16.
  const bf16* received_rows(int rank) const;
  const bf16* expert_input(int rank) const;
  bf16* expert_output(int rank) const;
  bf16* returned_rows(int rank) const;
  LaunchShape layer_launch(int rank) const;

  static constexpr uint32_t kHostThreads = 64;  // of a block of the router and the experts

  World& world_;
  Workload workload_;
  FaultPlan faults_;
  reference::TensorStyle style_;
  bool killed_ = false;                     // the phase of faults_.kill has been reached
  std::unique_ptr<ExpertParallel> own_ep_;  // null: another layer owns it
  ExpertParallel* ep_ = nullptr;
  uint32_t max_rows_ = 0;  // the rows that each rank has memory for
  // The rows that the experts of a rank may have.
  uint32_t max_expert_rows() const {
    return is_per_rank() ? max_rows_ * static_cast<uint32_t>(workload_.top_k) : max_rows_;
  }
  std::vector<RankBuffers> ranks_;
  std::unique_ptr<FastExperts> fast_experts_;
  std::vector<TimedPhase> phases_;
};

}  // namespace switchyard::tools
