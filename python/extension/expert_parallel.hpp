// ExpertParallel as Python objects share it.
#pragma once

#include <optional>

#include "call_gate.hpp"
#include "session.hpp"
#include "switchyard/expert_parallel.hpp"
#include "switchyard/moe_layer.hpp"
#include "tensor.hpp"

namespace switchyard::python {

// Row buffers are memory of the ExpertParallel, so their Tensors own this.
struct EpCore {
  std::shared_ptr<WorldCore> world;
  std::vector<nb::object>
      weights;  // of the layer's experts; its destructor waits for the kernels that read them
  Owned<ExpertParallel> own_ep;  // null: that of the layer
  Owned<MoeLayer> layer;         // null: there is none
  ExpertParallel* ep;
  CallGate gate;
  // Written while the gate is held to change them.
  std::vector<int> members;  // the world's rank of each rank
  uint64_t num_changes = 0;  // of the ranks

  EpCore(std::shared_ptr<WorldCore> owner, std::unique_ptr<ExpertParallel> made);
  EpCore(std::shared_ptr<WorldCore> owner, std::unique_ptr<MoeLayer> made);
  ~EpCore();

 private:
  EpCore(std::shared_ptr<WorldCore> owner, ExpertParallel& made);
};

// What dispatch has written, or will have when the stream has got there.
struct DispatchedRows {
  Tensor rows, src_info, row_offsets, row_counts, expert_ids;
  std::optional<Tensor> scales, scale_row_offsets, src_ranks, expert_outputs, expert_tensor_scales;
};

// What a dispatch writes beside the rows, where the caller wants it.
struct WantedOutputs {
  bool src_ranks = false;
  std::string unwritten = "left";
  nb::object row_experts = nb::none(), row_weights = nb::none();
  nb::object source_ranges = nb::none(), row_totals = nb::none(), expert_totals = nb::none();
  nb::object rank_wait_ns = nb::none();
};

// What a dispatch reads.
struct GivenTokens {
  nb::object tokens, topk_ids, topk_weights, scales, input_scale;
  int row_set = 0;
  nb::object rank_wait_ns = nb::none();  // of dispatch_async
  bool needs_ids = true;                 // false: a router chooses
};

// What a combine reads beside the expert rows, and writes.
struct WantedSums {
  nb::object topk_ids, topk_weights, out;
  std::string reduction;
  nb::object rank_wait_ns;
};

// An ExpertParallel, or one of its flights.
class EpHandle {
 public:
  EpHandle(std::shared_ptr<Session> session, std::shared_ptr<EpCore> core, int flight_idx = 0);

  ExpertParallel& use(const char* call) const;
  const std::shared_ptr<Session>& session() const { return session_; }
  const std::shared_ptr<EpCore>& core() const { return core_; }
  // The world's rank, for a rank that exists here; otherwise raises.
  int world_rank(const char* call, int rank) const;

  // What the arrays of a step are to the library.
  DispatchInput input_of(Arguments& arguments, const GivenTokens& given) const;
  // What was enqueued uses the arguments, and memory of this object.
  void enqueued(Arguments& arguments);

  // The memory of a rank's rows, of the ExpertParallel and beside it: DispatchedRows, made once.
  nb::object rows_of(const char* call, int rank, bool src_ranks);

  void dispatch_async(int rank, const GivenTokens& given, nb::handle stream);
  nb::object dispatch_wait(int rank, const WantedOutputs& wanted, nb::handle stream);
  nb::object dispatch(int rank, const GivenTokens& given, const WantedOutputs& wanted, nb::handle stream);
  void combine_async(int rank, nb::handle expert_rows, nb::handle stream);
  nb::any combine_wait(int rank, WantedSums wanted, nb::handle stream);
  nb::any combine(int rank, nb::handle expert_rows, WantedSums wanted, bool awaits_readers,
                  nb::handle stream);
  void all_reduce(int rank, nb::handle values, nb::handle stream);
  void abandon_step(int rank);
  void call_off_step(int rank, nb::handle stream);
  void reopen_step(int rank, nb::handle stream);
  void store_expert_rows(int rank, nb::handle rows, nb::handle stream);
  bool offer_expert_rows(int rank, nb::handle rows, bool is_whole, nb::handle stream);

  void warm_up();
  void poll(int rank);
  void synchronize(std::optional<int> rank, nb::handle stream);
  // After a fault, or with other ranks.
  void reset(std::optional<std::vector<int>> survivors, nb::object placement, bool by_world_rank);

 private:
  // Allocated once per rank, with what the kernels write beside the rows.
  struct RankMemory {
    Tensor row_offsets, row_counts, expert_ids;
    std::optional<Tensor> scale_row_offsets, src_ranks;
    int num_tokens = 0;                // of the step under way
    const void* offered = nullptr;     // expert rows that its combine may be given; there are enough of them
    nb::object rows, rows_with_ranks;  // DispatchedRows

    void begin_step(int num_tokens_in) {
      num_tokens = num_tokens_in;
      offered = nullptr;
    }
  };
  RankMemory& memory_of(const char* call, int rank);
  void add_tokens(Arguments& arguments, const GivenTokens& given, DispatchInput& input) const;
  DispatchOutput output_of(Arguments& arguments, int rank, const DispatchedRows& rows,
                           const WantedOutputs& wanted) const;
  CombineInput expert_rows_of(const char* call, Arguments& arguments, int rank, nb::handle expert_rows);
  // Makes `out` if it is None.
  CombineOutput destination_of(const char* call, Arguments& arguments, int rank, WantedSums& wanted);
  uint64_t* rank_waits_of(Arguments& arguments, nb::handle rank_wait_ns) const;
  void check_num_rows(const char* call, int rank, int64_t num_rows, Stream stream);
  [[noreturn]] void raise_fault(const Status& status, std::optional<int> rank) const;

  std::shared_ptr<Session> session_;
  std::shared_ptr<EpCore> core_;
  const int flight_idx_;
  std::vector<std::optional<RankMemory>> memory_;  // by rank
  uint64_t num_changes_ = 0;                       // of the ranks, when memory_ was made
};

void bind_expert_parallel(nb::module_& module);

}  // namespace switchyard::python
