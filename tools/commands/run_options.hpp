// What `switchyard run` is asked to do.
#pragma once

#include <optional>
#include <string>

#include "placement_options.hpp"
#include "reference/reference.hpp"
#include "switchyard/expert_parallel.hpp"
#include "switchyard/grouped_matmul.hpp"
#include "workload/layer_run.hpp"
#include "workload/workload.hpp"

namespace switchyard::tools {

struct RunOptions {
  std::string target = "auto";
  std::string transport = "local";
  std::string rendezvous;  // where the processes of the ranks meet
  int rank = -1;           // of this process; -1: it has all of them
  int tokens = 64;
  int n_sms = 0;
  Protocol protocol = Protocol::kAutomatic;
  double capacity_factor = 0;
  RowLayout row_layout = RowLayout::kRagged;
  int row_alignment = 1;
  RowDelivery row_delivery = RowDelivery::kAutomatic;
  bool reduce_at_owner = false;
  TokenFormatKind format = TokenFormatKind::kBF16;
  CombineFormat combine_format = CombineFormat::kBF16;
  bool skips_all_to_all = false;
  int p2p_world_size = 0;  // 0: one group
  int allreduce_world_size = 0;
  reference::TensorStyle style;
  int steps_in_flight = 1;
  WeightFormat weights = WeightFormat::kAsRows;
  GateUpStart gate_up_start = GateUpStart::kBehindDispatch;
  CombineStart combine_start = CombineStart::kBehindExperts;
  PlacementOptions placement_options;
  std::optional<ExpertPlacement> placement;  // from these
  std::string mode = "split";
  std::string routing = "uniform";
  int steps = 2;
  uint64_t deadline_ms = 0;  // 0: as the target suggests
  uint64_t join_deadline_ms = 30'000;
  std::string kill;   // RANK@PHASE
  std::string stall;  // RANK@PHASE:MS
  std::string dump;
  std::string json;
  std::string trace;
  Workload workload;
  FaultPlan faults;
  bool tokens_given = false;
  bool top_k_given = false;
  bool ranks_given = false;

  bool starts_processes() const { return transport == "process" && rank < 0; }
  bool is_by_shmem() const { return transport == "shmem"; }
  bool multiplies_fp8() const {
    return workload.matmuls == Matmuls::kFast &&
           matmul_rows_of(format, weights).element == MatmulElement::kFP8;
  }
  // A report that goes to stdout is alone there.
  bool prints_text() const { return json != "-" && trace != "-"; }
};

// Checks the options beyond the range of each, and fills in what follows from them.
Status finish_options(RunOptions& options);
// What they ask of the layer; the deadline is 0 if the target suggests it.
LayerOptions layer_options(const RunOptions& options);

}  // namespace switchyard::tools
