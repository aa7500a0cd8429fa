// A MoE layer that runs a workload: router, dispatch, the experts' gated MLP, combine. With fast matmuls it
// is the library's MoeLayer; with plain ones its kernels are put together here, so that every bit is that of
// the reference. All phases of a step are enqueued on all ranks, as an application would, and waited for
// once, at its end.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "expert_weights.hpp"
#include "reference/token_tensors.hpp"
#include "switchyard/detail/ep/expand_rows_params.hpp"
#include "switchyard/moe_layer.hpp"
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

// What a run is given besides its workload.
struct LayerOptions {
  ExpertParallelConfig ep;  // but for what the workload says
  StepMode mode = StepMode::kSplit;
  GateUpStart gate_up_start = GateUpStart::kBehindDispatch;  // of fast matmuls
  WeightFormat weights = WeightFormat::kAsRows;              // the same
  FaultPlan faults;
  reference::TensorStyle style;
};
// What a MoeLayer of these options is, without the sizes of the workload.
MoeLayerConfig layer_config(const LayerOptions& options);

class LayerRun {
 public:
  // Memory is mapped here, and mostly untouched until allocate().
  static Result<std::unique_ptr<LayerRun>> create(World& world, const Workload& workload,
                                                  const LayerOptions& options);
  // The same layer on another flight of the first one's ExpertParallel. The first one must outlive it.
  static Result<std::unique_ptr<LayerRun>> create_on_flight(LayerRun& first, int flight_idx);
  // Estimates, before allocate(), the host memory that steps and their verification use, the reference's
  // experts included, with so many flights. On the emulator the ranks' memory is part of it.
  double host_bytes(int num_flights) const;
  // Allocates the buffers of all ranks, and copies the experts to their memory.
  Status allocate(const reference::MlpExperts& experts);

  // Runs as many steps at once as there are layers, each on a flight of its own: phase by phase of all. With
  // a router, a step's ids and weights become those of the reference's router; padding is then applied.
  static Status run_at_once(const std::vector<LayerRun*>& layers, int first_step,
                            const std::vector<reference::Step*>& steps);

  struct Results {
    reference::Routing routing;  // of the layer's router, where it has one
    reference::DispatchResult dispatch;
    std::vector<int32_t> src_rank;     // [rows], as the kernels counted; -1 for rows that only align a group
    std::vector<bf16> expert_outputs;  // [rows][hidden]; of fast matmuls that write them encoded, empty
    std::vector<uint8_t> encoded_outputs;  // [rows][bytes], if combine takes them encoded
    std::vector<bf16> output;              // [tokens][hidden]
  };
  Result<Results> download(int rank) const;
  // How many rows the rank's tensors hold.
  uint32_t max_rows(int rank) const {
    return static_cast<uint32_t>(ranks_[static_cast<size_t>(rank)].src_info.size() / 2);
  }

  // False for the rank that FaultPlan::kill has killed: it has no results.
  bool is_alive(int rank) const { return !killed_ || rank != options_.faults.kill.rank; }
  // The ranks of this process.
  std::vector<int> local_ranks() const { return world_.local_ranks(); }

  // The phases of the last step, in order; if it failed, up to the phase in which it did.
  const std::vector<TimedPhase>& phases() const { return phases_; }
  // What a step's outputs should be, of all ranks.
  std::vector<std::vector<bf16>> expected_outputs(const reference::Step& step,
                                                  const reference::MlpExperts& experts) const;
  // By how much of its length a token's output may be off: fast matmuls sum up in an order of their own,
  // after which the nearest number may be a neighbour. 0: not a bit may differ.
  double tolerance() const;
  const ExpertParallel& ep() const { return *ep_; }
  ExpertParallel& ep() { return *ep_; }
  std::string protocol_reason() const;

  // The step as dispatch and combine see it.
  reference::Step exchanged(const reference::Step& step) const;
  bool is_per_rank() const { return ep_->config().row_layout == RowLayout::kPerRank; }

 private:
  struct RankBuffers {
    Buffer<float> logits;
    Buffer<float> topk_weights;  // the router's, or those of the step
    reference::TokenTensors tokens;
    Buffer<uint64_t> stamps;  // [phase + 1]: when the rank began the first phase, and ended each
    // What the router and dispatch write.
    Buffer<int32_t> routed_ids;  // those of the tokens may have padding
    Buffer<int32_t> expert_ids, src_info;
    Buffer<uint32_t> row_offsets, row_counts, scale_row_offsets;
    Buffer<uint8_t> rows, scales;    // of ExpertParallel, as they were dispatched
    Buffer<uint8_t> expert_outputs;  // of ExpertParallel, as combine takes them
    // The rest is of plain layers.
    Buffer<bf16> gate_up_weights, down_weights;
    Buffer<float> group_input_scales;
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
  struct Phase {
    std::string name;
    std::function<Status(int rank)> launch;
  };

  LayerRun(World& world, const Workload& workload, const LayerOptions& options)
      : world_(world), workload_(workload), options_(options) {}
  double rank_bytes(double num_rows) const;
  Status allocate_inputs(int rank);
  Status view_exchange(int rank);
  Status prepare(int step_idx, reference::Step& step);
  Status prepare(int rank, const reference::Step& step, const reference::Step& sent);
  Status enqueue(const Phase& phase);
  Status stamp(int rank);
  Status take_times();
  std::vector<Phase> phases_of(const reference::Step& step) {
    return is_fast() ? fast_phases(step) : plain_phases(step);
  }
  // Adds what the configuration says to a step, for the reference.
  void describe(reference::Step& step) const;
  // The source rank of each row of a rank, as its kernels counted.
  Result<std::vector<int32_t>> source_ranks(int rank, const reference::DispatchResult& dispatch) const;
  Status download_rows(int rank, uint64_t num_rows, reference::DispatchResult& dispatch) const;
  MatmulElement matmul_element() const {
    return matmul_rows_of(ep_->config().dispatch_format, options_.weights).element;
  }
  bool is_encoded() const { return ep_->config().dispatch_format != TokenFormatKind::kBF16; }
  bool is_fast() const { return workload_.matmuls == Matmuls::kFast; }
  int num_matrices() const {
    return ep_->n_local_experts() + (ep_->config().shared_expert == SharedExpert::kFused ? 1 : 0);
  }
  // If peers read the expert outputs themselves, experts encode them.
  bool encodes_outputs() const {
    return ep_->config().protocol == Protocol::kDirect &&
           ep_->config().combine_format != CombineFormat::kBF16;
  }
  // Whether dispatch and combine take the ids that the router has left on the device: no padding has been
  // added since, and they are not of 64 bits.
  bool takes_routed_ids() const {
    return has_router(workload_) && workload_.padding == 0 && !options_.style.has_wide_ids;
  }
  const RankBuffers& of(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  RankBuffers& of(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  // Fast layers, in fast_layer.cpp.
  Status create_fast(const MoeLayerConfig& config);
  void view_fast(int rank);
  std::vector<Phase> fast_phases(const reference::Step& step);
  MoeLayerStep fast_step(MoePart part, int rank, const reference::Step& step) const;

  // Plain layers, in plain_layer.cpp.
  Status allocate_plain(int rank, const reference::MlpExperts& experts);
  Status allocate_choices(int rank);
  // num_expert_rows: one for each of the experts that a row goes to.
  Status reserve_rows(int rank, uint64_t num_rows, uint64_t num_expert_rows);
  std::vector<Phase> plain_phases(const reference::Step& step);
  void add_dispatch(const reference::Step& step, std::vector<Phase>& phases);
  void add_experts(std::vector<Phase>& phases);
  void add_combine(const reference::Step& step, std::vector<Phase>& phases);
  Status route(int rank, const reference::Step& step);
  Status decode_rows(int rank);
  Status encode_outputs(int rank);
  Status silu_mul(int rank);
  Status matmul(int rank, const bf16* rows, int inner, const bf16* weights, int columns, bf16* output);
  // Rows per rank: to their experts and back.
  Status expand_rows(int rank);
  Status sum_choices(int rank);
  ExpandedRows expanded_rows(int rank) const;
  ExpertGroups expert_groups(int rank) const;
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
  LayerOptions options_;
  bool killed_ = false;  // the phase of the kill has been reached
  // One of these owns `ep_`, unless another run does.
  std::vector<WeightTensors> weights_;  // of each local rank, for own_layer_
  std::unique_ptr<MoeLayer> own_layer_;
  std::unique_ptr<ExpertParallel> own_ep_;
  MoeLayer* layer_ = nullptr;  // of fast matmuls
  ExpertParallel* ep_ = nullptr;
  uint32_t max_rows_ = 0;  // the rows that each rank has memory for
  std::vector<RankBuffers> ranks_;
  std::vector<TimedPhase> phases_;
};

}  // namespace switchyard::tools
