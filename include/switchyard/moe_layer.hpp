// MoeLayer: a mixture-of-experts layer for all ranks of a world, from router to output. A step is one call on
// every rank:
//
//   auto layer = MoeLayer::create(*world, config, weights_of_rank).value();
//   for (int rank = 0; rank < world->n_ranks(); ++rank) layer->run(rank, step_of_rank[rank]);
//   Status status = layer->ep().synchronize();
//
// The parts of a step are the router (unless ids and weights are given), dispatch, gate_up with the
// activation, down and combine; parts_of() names them. They run one after the other on the rank's stream;
// gate_up may start while rows of other ranks are on their way (gate_up_start), and combine while experts
// still work (ep.combine_start). Dispatch and combine may be two launches each (launches).
#pragma once

#include <memory>
#include <vector>

#include "switchyard/expert_parallel.hpp"
#include "switchyard/grouped_matmul.hpp"

namespace switchyard {

// When gate_up starts.
enum class GateUpStart {
  kBehindDispatch,  // when the rows of all experts are there
  // With an expert when its rows are there: in the direct protocol, which automatic then is, in bf16 or
  // fp8-by-row (scales in the layouts of the other fp8 formats may come with dispatch_wait). Its
  // blocks hold their multiprocessors while they wait, so on a device that ranks share they are few
  // (ExpertParallel::max_early_blocks()), and it takes longer (docs/journal/matmul.md). Where
  // ep says automatic, the protocol is direct and the sender lays out the rows. Rows must not be masked.
  kWithRows,
};

// How dispatch and combine are launched: in a kernel each, or in two, of which the first sends (`_async`) and
// the second waits for what others send (`_wait`).
enum class StepLaunches { kFused, kSplit };

struct MoeLayerConfig {
  // Dispatch and combine. The matmuls read rows as dispatch writes them. With dispatch_format fp8,
  // fp8-ue8m0 or fp8-by-row weights are in fp8, unless they are codes; rows in any other format are decoded
  // to bf16 on the way to the matrix unit, and then weights are in bf16 or codes (matmul_rows_of()).
  // combine_format is bf16 or fp8, which down writes in the direct protocol; but with coded weights the
  // protocol is then slotted, also where ep says automatic. Rows are ragged or masked. A fused shared expert
  // is group 0.
  ExpertParallelConfig ep;
  WeightFormat weights = WeightFormat::kAsRows;
  // A multiple of 8; of 64 in fp8; with coded weights of inner_multiple_of() them, as hidden must be then.
  int expert_width = 0;
  Activation activation = Activation::kSiLU;
  GateLayout gate_layout = GateLayout::kStacked;
  // How many tokens a rank has on average, by which the matmuls' tunings are chosen; 0: max_tokens_per_rank.
  int expected_tokens_per_rank = 0;
  // The most blocks of a matmul's launch; 0: one for each multiprocessor. Ranks that share a device then
  // multiply one after the other, which is faster than side by side (docs/performance.md).
  int num_matmul_blocks = 0;
  GateUpStart gate_up_start = GateUpStart::kBehindDispatch;
  StepLaunches launches = StepLaunches::kFused;
  // CUDA: so many bytes of the weights of each matmul, from the first expert on, are asked for while other
  // launches leave the GPU's memory idle: of gate_up by the router, of down while gate_up ends. 0: none.
  int64_t prefetch_bytes = 0;
};

// The weights of the groups of one rank: the shared expert's first where it is fused, then those of the local
// experts; on every rank ExpertParallel::num_groups() of them, also where it has fewer experts than another.
// If experts are moved (ep().set_placement()), the caller moves their weights to the new places. Each tensor
// is contiguous, in the rank's memory, and 16-byte aligned.
struct ExpertWeights {
  const void* gate_up = nullptr;  // [num_groups][2 * expert_width][hidden], gates as gate_layout says
  const void* down = nullptr;     // [num_groups][hidden][expert_width]
  // fp8: a float for each 128 x 128, [num_groups][ceil(columns / 128)][ceil(inner / 128)]. Coded weights: a
  // byte for each scale group, [num_groups][columns][inner / scale group], as GroupedMatmulTensors has them.
  const void* gate_up_scales = nullptr;
  const void* down_scales = nullptr;
  const float* gate_up_bias = nullptr;  // [num_groups][2 * expert_width]; null: none
  const float* down_bias = nullptr;     // [num_groups][hidden]; null: none
  // Coded weights: [num_groups], what all weights of a group are multiplied by; null: 1.
  const float* gate_up_tensor_scales = nullptr;
  const float* down_tensor_scales = nullptr;
};

// One step of one rank. Pointers are into the rank's memory, 16-byte aligned.
struct MoeLayerStep {
  // [num_tokens][hidden] of bf16; encoded: [num_tokens], the codes of a row of dispatch_format each.
  const void* tokens = nullptr;
  int num_tokens = 0;
  // Either logits, [num_tokens][n_experts], of which the top_k largest count, with softmax weights over those
  // chosen; or ids and weights, [num_tokens][top_k], as ExpertParallel takes them.
  const float* logits = nullptr;
  const int32_t* topk_ids = nullptr;
  const float* topk_weights = nullptr;
  bf16* output = nullptr;  // [num_tokens][hidden]
  // The rest is as in DispatchInput and CombineDestination: ids of 64 bits, instead of topk_ids; tokens that
  // are encoded, with their scales; and bytes from a row to the next, if these are not contiguous.
  const int64_t* topk_ids_64 = nullptr;
  InputFormat format = InputFormat::kBF16;
  const void* scales = nullptr;
  uint64_t token_stride_bytes = 0, scales_stride_bytes = 0, output_stride_bytes = 0;
  // NVFP4: the tensor scale of all ranks' tokens, instead of ep.input_scale. A rank without tokens needs it,
  // too, for the rows that it receives.
  const float* input_scale = nullptr;
};

// A part of a step: what one call of run_part() enqueues. A step has dispatch and combine, or their halves.
enum class MoePart {
  kRoute,
  kDispatch,
  kDispatchAsync,
  kDispatchWait,
  kGateUp,
  kDown,
  kCombine,
  kCombineAsync,
  kCombineWait,
  kAllReduce,  // where the all-to-all is skipped
};
const char* to_string(MoePart part);

// Returns the parts of a step in their order, as `launches`, `gate_up_start` and `routing` set it.
std::vector<MoePart> parts_of(const MoeLayerConfig& config);

// What the parts of a step write on a rank, in the layer's memory: for callers that change it or look at it
// between two parts.
struct MoeLayerRows {
  // [max_tokens_per_rank][top_k], what the router chose. A caller that changes the ids, or has others, gives
  // the parts behind kRoute a step without logits, with its own ids and these weights.
  int32_t* routed_ids = nullptr;
  float* routed_weights = nullptr;
  DispatchOutput dispatched;       // what dispatch writes, row_counts included
  bf16* expert_outputs = nullptr;  // [max_rows][hidden], what down writes and combine reads
  // The same in the direct protocol with combine_format fp8, where expert_outputs is null:
  // [max_rows][ep().combine_message_bytes()].
  std::byte* encoded_outputs = nullptr;
};

// Ownership: the caller owns the World, which must outlive the layer, the weights, which must stay valid as
//   long as it, and what a step points to. The layer owns its ExpertParallel and all rows in between.
// Streams: run() enqueues on the rank's stream, or on the one that it is given, and returns; it allocates,
//   waits and copies nothing, so it can be captured, by World::capture() or by the caller. Every rank must
//   run every step.
// Threads: as with ExpertParallel, calls for different ranks may come from different threads.
// Errors: a call that is wrong in itself names the argument, its value and its limit; nothing has then been
//   enqueued, of none of its parts. What kernels find is returned by ep().synchronize().
// Lifetimes: what a step points to must stay valid until the step has ended on that rank, or as long as a
//   graph that captured it is launched. The layer may be destroyed while its kernels run, but must outlive
//   the launches of such a graph. The destructor waits for what is on the streams of this process's ranks; if
//   a call was ever given a stream of the caller's, it waits for their devices.
class MoeLayer {
 public:
  // Allocates memory for the rows of every rank of this process and loads the kernels. `weights`: one for
  // each rank of the world; those of ranks in other processes are not looked at. If ranks are processes, the
  // call is collective: each of them makes it, and what goes wrong in one is an error in all.
  static Result<std::unique_ptr<MoeLayer>> create(World& world, const MoeLayerConfig& config,
                                                  const std::vector<ExpertWeights>& weights);
  ~MoeLayer();

  // Enqueues all parts of a step on one stream.
  Status run(int rank, const MoeLayerStep& step, Stream stream = {});
  // Enqueues one part. A caller that enqueues the parts itself, to time them or to let all ranks begin a part
  // before any of them begins the next, calls it for each of parts_of(config()), in their order, with the
  // same step (but see MoeLayerRows). If gate_up starts with the rows and launches are fused, the wait for
  // those of other ranks is part of gate_up, not of dispatch.
  Status run_part(MoePart part, int rank, const MoeLayerStep& step, Stream stream = {});

  // A layer with the same weights on a flight of ep(), 0..steps_in_flight - 1, which this object owns; 0 is
  // the object itself. As many steps may be under way at once: each has rows and matmuls of its own.
  Result<MoeLayer*> flight(int flight_idx);

  // As given, with what create() has chosen filled in.
  const MoeLayerConfig& config() const;
  // For synchronize(), reset(), traces and everything that dispatch has written. If it is reset with other
  // ranks, a layer must be created anew: run() says so.
  ExpertParallel& ep();
  // The matmuls of a rank of this process, and what its parts write; for any other rank they throw
  // std::out_of_range.
  const GroupedMatmul& gate_up(int rank) const;
  const GroupedMatmul& down(int rank) const;
  MoeLayerRows rows(int rank) const;

 private:
  struct Impl;

  explicit MoeLayer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
