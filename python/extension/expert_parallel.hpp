// ExpertParallel as Python objects share it.
#pragma once

#include <optional>

#include "call_gate.hpp"
#include "session.hpp"
#include "switchyard/expert_parallel.hpp"
#include "tensor.hpp"

namespace switchyard::python {

// Row buffers are memory of the ExpertParallel, so their Tensors own this.
struct EpCore {
  std::shared_ptr<WorldCore> world;
  Owned<ExpertParallel> ep;
  CallGate gate;
  std::vector<int> members;  // the world's rank of each rank

  EpCore(std::shared_ptr<WorldCore> owner, std::unique_ptr<ExpertParallel> made);
  ~EpCore();
};

// What dispatch has written, or will have when the stream has got there.
struct DispatchedRows {
  Tensor rows, src_info, row_offsets, row_counts, expert_ids;
  std::optional<Tensor> scales, scale_row_offsets, src_ranks, expert_outputs;
};

class EpHandle {
 public:
  EpHandle(std::shared_ptr<Session> session, std::shared_ptr<EpCore> core);

  ExpertParallel& use(const char* call) const;
  Session& session() const { return *session_; }
  const std::shared_ptr<EpCore>& core() const { return core_; }
  // The world's rank, for a rank that exists here; otherwise raises.
  int world_rank(const char* call, int rank) const;

  // The memory of a rank's rows, of the ExpertParallel and beside it.
  DispatchedRows rows_of(const char* call, int rank, bool src_ranks);

  void dispatch_async(int rank, nb::handle tokens, nb::handle topk_ids);
  DispatchedRows dispatch_wait(int rank, bool src_ranks, const std::string& unwritten);
  DispatchedRows dispatch(int rank, nb::handle tokens, nb::handle topk_ids, bool src_ranks,
                          const std::string& unwritten);
  void combine_async(int rank, nb::handle expert_rows);
  nb::any combine_wait(int rank, nb::handle topk_ids, nb::handle topk_weights, nb::object out,
                       const std::string& reduction);
  nb::any combine(int rank, nb::handle expert_rows, nb::handle topk_ids, nb::handle topk_weights,
                  nb::object out, const std::string& reduction);
  void all_reduce(int rank, nb::handle values);

  void synchronize(std::optional<int> rank);
  // After a fault, or with other ranks.
  void reset(std::optional<std::vector<int>> survivors, nb::object placement, bool by_world_rank);

 private:
  // Allocated once per rank, with what the kernels write beside the rows.
  struct RankMemory {
    Tensor row_offsets, row_counts, expert_ids;
    std::optional<Tensor> scale_row_offsets, src_ranks;
  };
  RankMemory& memory_of(const char* call, int rank);
  DispatchInput input_of(Arguments& arguments, nb::handle tokens, nb::handle topk_ids) const;
  DispatchOutput output_of(const DispatchedRows& rows, const std::string& unwritten) const;
  CombineInput expert_rows_of(const char* call, Arguments& arguments, int rank, nb::handle expert_rows);
  // Makes `out` if it is None.
  CombineOutput destination_of(const char* call, Arguments& arguments, int rank, nb::handle topk_ids,
                               nb::handle topk_weights, nb::object& out, const std::string& reduction) const;
  void enqueued(Arguments& arguments);
  void check_num_rows(const char* call, int rank, int64_t num_rows);
  [[noreturn]] void raise_fault(const Status& status, std::optional<int> rank) const;

  std::shared_ptr<Session> session_;
  std::shared_ptr<EpCore> core_;
  std::vector<std::optional<RankMemory>> memory_;  // by rank
};

void bind_expert_parallel(nb::module_& module);

}  // namespace switchyard::python
