// A MoE layer on a world: router, dispatch, the experts' gated MLP, combine; each phase over all ranks,
// timed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "switchyard/runtime/expert_parallel.hpp"
#include "workload.hpp"

namespace switchyard::tools {

// When a phase began and ended, by std::chrono::steady_clock.
struct TimedPhase {
  std::string name;
  uint64_t begin_ns;
  uint64_t end_ns;

  double microseconds() const { return static_cast<double>(end_ns - begin_ns) * 1e-3; }
};

class MoeLayer {
 public:
  // Called when a phase begins.
  using OnPhase = std::function<void(const std::string& phase)>;

  // `config` says everything that the workload does not.
  static Result<std::unique_ptr<MoeLayer>> create(World& world, const Workload& workload,
                                                  const reference::MlpExperts& experts,
                                                  ExpertParallelConfig config, const FaultPlan& faults);

  // Runs one step. With a router the step's ids and weights are filled in by it, before padding is applied.
  Status run(const Workload& workload, int step_idx, StepMode mode, reference::Step& step,
             const OnPhase& on_phase);

  struct Results {
    reference::DispatchResult dispatch;
    std::vector<bf16> expert_outputs;  // [rows][hidden]
    std::vector<bf16> output;          // [tokens][hidden]
  };
  Result<Results> download(int rank) const;

  // False for the rank that FaultPlan::kill has taken: it has no results.
  bool is_alive(int rank) const { return !killed_ || rank != faults_.kill.rank; }

  // The phases of the last step, in order; of one that failed, up to the phase in which it did.
  const std::vector<TimedPhase>& phases() const { return phases_; }
  const ExpertParallel& ep() const { return *ep_; }
  ExpertParallel& ep() { return *ep_; }

 private:
  struct RankBuffers {
    Buffer<bf16> gate_up_weights, down_weights;
    Buffer<float> logits, topk_weights;
    Buffer<bf16> tokens, output;
    Buffer<int32_t> topk_ids, expert_ids, src_info;
    Buffer<uint32_t> row_offsets, scale_row_offsets;
    Buffer<float> group_input_scales;
    Buffer<uint8_t> rows, scales;    // of ExpertParallel, as they were dispatched
    Buffer<uint8_t> expert_outputs;  // of ExpertParallel, as combine takes them
    // [rows][..], grown as a step needs
    Buffer<bf16> decoded, gate_up, activated, down;
  };

  MoeLayer(World& world, const Workload& workload, const FaultPlan& faults)
      : world_(world), workload_(workload), faults_(faults) {}
  Status allocate(const reference::MlpExperts& experts);
  Status reserve_rows(int rank, uint64_t num_rows);
  Status timed(const std::string& phase, const OnPhase& on_phase,
               const std::function<Status(int rank)>& launch);
  Status launch_and_wait(const std::string& phase, const std::function<Status(int rank)>& launch);
  Status route(const Workload& workload, int step_idx, reference::Step& step, const OnPhase& on_phase);
  Status dispatch(const reference::Step& step, StepMode mode, const OnPhase& on_phase);
  Status run_experts(const OnPhase& on_phase);
  Status combine(const reference::Step& step, StepMode mode, const OnPhase& on_phase);
  Status decode_rows(const OnPhase& on_phase);
  Status encode_outputs(const OnPhase& on_phase);
  // What the configuration makes of a step, for the reference.
  void describe(reference::Step& step) const;
  bool is_encoded() const { return ep_->config().dispatch_format != TokenFormatKind::kBF16; }
  // Where peers read the expert outputs themselves, experts encode them.
  bool encodes_outputs() const {
    return ep_->config().protocol == Protocol::kDirect &&
           ep_->config().combine_format != CombineFormat::kBF16;
  }
  bf16* expert_output(int rank) const;
  // What the experts work on.
  const bf16* expert_input(int rank) const;
  LaunchShape layer_launch(int rank) const;

  World& world_;
  Workload workload_;
  FaultPlan faults_;
  bool killed_ = false;  // faults_.kill has come
  std::unique_ptr<ExpertParallel> ep_;
  std::vector<RankBuffers> ranks_;
  std::vector<TimedPhase> phases_;
};

}  // namespace switchyard::tools
