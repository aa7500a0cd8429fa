// Times whole layers by graph replay: a step, and in a second graph each of its parts between marks. A token
// of the first and of the last rank is verified.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "periodic_numbers.hpp"
#include "reference/gated_mlp.hpp"
#include "replay.hpp"
#include "switchyard/moe_layer.hpp"
#include "workload/layer_run.hpp"
#include "workload/workload.hpp"

namespace switchyard::tools {

struct LayerBenchResult {
  int num_tokens = 0;  // of each rank
  Timing step{};
  std::vector<std::pair<std::string, Timing>> parts;
  Protocol protocol = Protocol::kAutomatic;
  std::string gate_up_tuning, down_tuning;
  double flops = 0;           // of the matmuls
  uint64_t weight_bytes = 0;  // of experts that have rows
  double error = 0;           // the largest relative distance of a checked token
  double error_limit = 0;     // that rounding explains

  bool is_verified() const { return error <= error_limit; }  // false of a NaN, too
  double part_us(const std::string& name) const;
  double matmul_us() const { return part_us("gate_up") + part_us("down"); }
  double tflops() const { return flops / step.median_us * 1e-6; }
  double weight_terabytes_per_second() const {
    return static_cast<double>(weight_bytes) / step.median_us * 1e-6;
  }
};

// What a step did on each rank.
struct LayerTrace {
  std::vector<TimedPhase> phases;  // its parts, or the step as a whole
  std::vector<RankTrace> ranks;    // what the blocks of dispatch and combine did and waited for
  std::string missing;             // why their kernels cannot be traced; empty: they have been
};

class LayerBench {
 public:
  // The weights of all ranks, filled once. `workload.tokens_per_rank` does not matter.
  static Result<std::unique_ptr<LayerBench>> create(World& world, const Workload& workload,
                                                    const MoeLayerConfig& config);

  Result<LayerBenchResult> time(int num_tokens, int num_replays);
  // Traces one step that is no graph. Times are taken by launches behind each part; but only behind the whole
  // step where combine starts with the experts: one between the two would hold it up.
  Result<LayerTrace> trace(int num_tokens, uint32_t events_per_block);

 private:
  enum class Spans { kStep, kParts };
  // Called with the name of each span before it is enqueued.
  using BeginSpan = std::function<Status(const std::string& name)>;
  struct PreparedStep {
    reference::Step step;
    std::unique_ptr<MoeLayer> layer;
  };
  struct RankBuffers {
    PeriodicNumbers numbers;
    Buffer<bf16> gate_up, down;  // in pairs of bytes
    Buffer<float> gate_up_scales, down_scales;
    Buffer<uint8_t> gate_up_code_scales, down_code_scales;
    Buffer<float> gate_up_tensor_scales, down_tensor_scales;
    Buffer<bf16> tokens, output;
    Buffer<float> logits;
    Buffer<uint64_t> stamps;  // of a trace
  };

  LayerBench(World& world, const Workload& workload, const MoeLayerConfig& config)
      : world_(world), workload_(workload), config_(config) {}
  MatmulElement element() const {
    return matmul_rows_of(config_.ep.dispatch_format, config_.weights).element;
  }
  size_t num_local() const { return static_cast<size_t>(workload_.n_experts / workload_.n_ranks); }
  size_t num_groups() const {
    return num_local() + (config_.ep.shared_expert == SharedExpert::kFused ? 1 : 0);
  }
  // The weights of gate_up or of down, of a rank.
  struct Weights {
    size_t columns, inner;
    int shift;  // of its numbers
    Buffer<bf16>& codes;
    Buffer<float>& scales;
    Buffer<uint8_t>& code_scales;
    Buffer<float>& tensor_scales;
  };
  Status fill_weights(int rank);
  Status fill(int rank, const Weights& weights);
  ExpertWeights pointers(const RankBuffers& buffers) const;
  Status upload(const reference::Step& step, const std::vector<std::vector<float>>& logits);
  MoeLayerStep step_of(int rank, int num_tokens) const;
  // The step of so many tokens on each rank, uploaded, and its layer.
  Result<PreparedStep> prepare(int num_tokens);
  Status enqueue(MoeLayer& layer, int num_tokens, Spans spans, const BeginSpan& begin);
  Status enqueue_stamped(MoeLayer& layer, int num_tokens, std::vector<TimedPhase>& phases);
  Status take_times(std::vector<TimedPhase>& phases);
  Result<std::vector<SpanSamples>> replay(MoeLayer& layer, int num_tokens, Spans spans, int num_replays);
  reference::GatedMlp expert(size_t rank, size_t group) const;
  // The relative distance of a token's output from what it should be.
  Result<double> distance(const reference::Step& step, size_t rank, size_t token_idx) const;

  World& world_;
  Workload workload_;
  MoeLayerConfig config_;
  std::vector<RankBuffers> ranks_;
};

}  // namespace switchyard::tools
