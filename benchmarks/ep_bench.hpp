// Steps of dispatch and combine at one number of tokens per rank, captured as graphs and replayed: how long
// they take, how many bytes they move, and whether every output is right. The experts between the two are the
// identity; if rows are encoded, they are a kernel that decodes them, which is timed separately.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reference/traffic.hpp"
#include "replay.hpp"
#include "switchyard/detail/sync/output_hash.hpp"
#include "switchyard/expert_parallel.hpp"
#include "workload/workload.hpp"

namespace switchyard::tools {

inline constexpr const char* kWholeStep = "step";
inline constexpr const char* kExperts = "recode";
inline constexpr const char* kBackToBack = "back to back";  // a step, of many that follow each other at once

const char* to_string(StepMode mode);

// When the first local rank began, and when the last ended, in each replay: on the clock of the target, which
// processes on one GPU, or on the host of one machine, share.
struct Stamps {
  std::vector<uint64_t> begin_ns, end_ns;
};

// One phase on all ranks together, or the whole step.
struct PhaseTime : Timing {
  Protocol protocol;
  StepMode mode;
  std::string phase;
  std::vector<double> of_replay;  // the microseconds of each
  Stamps stamps = {};             // of the whole step, if the launch is stamped
};

struct RepeatCheck {
  Protocol protocol;
  StepMode mode;
  int64_t num_replays = 0;
  int64_t num_hashed = 0;     // outputs: one per rank and replay
  int64_t num_different = 0;  // how many of those differ from the reference
  uint64_t hash = 0;          // of all outputs of the reference
};

// How the kernels are launched.
struct EpLaunch {
  int n_sms = 0;
  int num_threads = 0;  // 0: as the target suggests
  bool dependent = false;
  uint64_t lead_us = 50;    // a pause in front of what is timed: enqueue_lead()
  bool is_stamped = false;  // kernels around what is timed record when it began and ended
  Protocol protocol = Protocol::kAutomatic;
  TokenFormatKind format = TokenFormatKind::kBF16;
  CombineFormat combine_format = CombineFormat::kBF16;
  int p2p_world_size = 0;  // 0: one group
  RowLayout row_layout = RowLayout::kRagged;
  int row_alignment = 1;
  int max_rows_per_expert = 0;  // masked: as in ExpertParallelConfig
  RowDelivery row_delivery = RowDelivery::kAutomatic;
  bool reduce_at_owner = false;
  bool counts_experts = false;  // on the device
};

class EpBench {
 public:
  // On a joined world every process makes the same calls, and each has the times of its own ranks.
  // Every `workload.tokens_per_rank` must be the same. Fails with kResourceExhausted if memory does not
  // suffice. `max_sets`: at most so many sets of inputs and outputs alternate, but at least 2.
  static Result<std::unique_ptr<EpBench>> create(World& world, const Workload& workload,
                                                 const EpLaunch& launch, int max_sets);

  // The whole step, then its phases, each the median of `num_replays` (at least num_sets()).
  Result<std::vector<PhaseTime>> time(StepMode mode, int num_replays);
  // Steps as a model runs them: `num_replays` are launched before any has ended.
  Result<PhaseTime> time_back_to_back(StepMode mode, int num_replays);
  // Empty while every output of every timed set equals the reference; else the first difference.
  const std::string& first_difference() const { return first_difference_; }

  // Replays the step; every output of every replay is hashed, on the device and as part of the graph.
  Result<RepeatCheck> repeat(StepMode mode, int64_t num_replays,
                             const std::function<void(int64_t num_done)>& on_progress);

  // What leaves the ranks in the step of the first set.
  const reference::StepTraffic& traffic() const { return traffic_; }
  // [rank]: the topk_ids of that step.
  const std::vector<std::vector<int32_t>>& ids() const { return ids_; }
  int num_sets() const { return static_cast<int>(sets_.size()); }
  const ExpertParallel& ep() const { return *ep_; }

 private:
  struct RankBuffers {
    Buffer<bf16> tokens, output;
    Buffer<uint8_t> rows, scales;    // in the dispatch format
    Buffer<uint8_t> expert_outputs;  // if they are not the rows themselves
    Buffer<int32_t> topk_ids, src_info, expert_ids;
    Buffer<float> topk_weights;
    Buffer<uint32_t> row_offsets;
    Buffer<int32_t> row_experts;  // of rows per rank, else empty
    Buffer<float> row_weights;
    Buffer<float> group_input_scales;
    Buffer<OutputTally> check;
    Buffer<uint64_t> stamps;  // when the step began and ended
    std::vector<uint32_t> expected_offsets;
    std::vector<bf16> expected_output;
  };
  using BufferSet = std::vector<RankBuffers>;                      // of the local ranks
  enum class Extra { kNothing, kStepTime, kPhaseTimes, kHashes };  // what a graph does besides the step

  EpBench(World& world, const Workload& workload, const EpLaunch& launch)
      : world_(world), workload_(workload), lead_us_(launch.lead_us), is_stamped_(launch.is_stamped) {}
  int num_tokens() const { return workload_.tokens_per_rank.front(); }
  // num_scales: how many input scales tokens are encoded with.
  double host_bytes(int num_sets, int num_scales) const;
  Status add_set(int set_idx);
  Status poison(BufferSet& set);
  Status enqueue(const BufferSet& set, StepMode mode, Extra extra);
  Status enqueue_step(const BufferSet& set, StepMode mode, Extra extra);
  Status enqueue_stamp(const BufferSet& set, size_t which);
  // Adds what a replay of the set has stamped.
  Status read_stamps(const BufferSet& set, Stamps& stamps) const;
  // The format of expert rows: in the direct protocol experts encode them.
  CombineFormat expert_format() const {
    return ep_->config().protocol == Protocol::kDirect ? ep_->config().combine_format : CombineFormat::kBF16;
  }
  bool is_per_rank() const { return ep_->config().row_layout == RowLayout::kPerRank; }
  // If false, the rows themselves are the expert outputs.
  bool has_experts() const {
    return ep_->config().dispatch_format != TokenFormatKind::kBF16 || expert_format() != CombineFormat::kBF16;
  }
  uint64_t expert_row_bytes() const { return combine_row_bytes(expert_format(), workload_.hidden); }
  Status allocate_rows(int rank, RankBuffers& buffers);
  Status enqueue_experts(int rank, const RankBuffers& buffers);
  Status enqueue_check(int rank, const RankBuffers& buffers);
  Result<Graphs> capture(StepMode mode, Extra extra);
  PhaseTime summarize(const SpanSamples& samples, StepMode mode) const;
  Status time_graphs(StepMode mode, Extra extra, int num_replays, std::vector<PhaseTime>& times);
  // Empty if the set's outputs are right.
  Result<std::string> check(const BufferSet& set, int set_idx) const;
  uint64_t bytes_of(const std::string& phase) const;

  World& world_;
  const Workload workload_;
  const uint64_t lead_us_;
  const bool is_stamped_;
  std::unique_ptr<ExpertParallel> ep_;
  std::vector<BufferSet> sets_;
  std::string first_difference_;
  std::vector<std::vector<int32_t>> ids_;
  reference::StepTraffic traffic_;
  uint64_t num_rows_ = 0;  // of a step; of the first set
};

struct CopyBandwidth {
  double bytes_per_second;  // read and written
  uint64_t bytes_copied;
};

// The copy bandwidth of all devices of the world together, each within its own memory.
Result<CopyBandwidth> measure_copy(const World& world);

}  // namespace switchyard::tools
