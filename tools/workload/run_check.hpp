// The checks of `switchyard run`: each step is compared with the plain reference.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "layer_run.hpp"
#include "reference/traffic.hpp"

namespace switchyard::tools {

// The results of all steps together.
struct RunReport {
  bool verified = true;
  std::string first_difference;
  double max_abs_error = 0;
  // The error of sending expert rows back as fp8 instead of bf16: the largest difference, and the rms of the
  // differences over the rms of the outputs.
  double combine_error = 0;
  double squared_combine_error = 0, squared_output = 0;
  double relative_combine_error() const {
    return squared_output == 0 ? 0 : std::sqrt(squared_combine_error / squared_output);
  }
  std::vector<int> ranks;                         // those that were checked: of this process
  std::vector<uint64_t> rows_per_rank;            // without those that only align a group
  uint64_t bytes_moved = 0;                       // between ranks, in one step
  std::optional<reference::StepTraffic> traffic;  // of one step; nothing if the all-to-all is skipped
  std::vector<TimedPhase> phases;
  uint64_t memory_per_rank = 0;  // of ExpertParallel
  std::string device;
  Target target = Target::kHost;
  int n_sms = 0;
  Protocol protocol = Protocol::kAutomatic;
  std::string protocol_reason;
  int p2p_world_size = 0;  // 0: one group
  RowDelivery row_delivery = RowDelivery::kSender;
};

// Compares the layer's last step with the reference and adds the results to the report. `label` names the
// step.
Status check_step(const LayerRun& layer, const reference::Step& step, const reference::MlpExperts& experts,
                  const std::string& label, RunReport& report);

// Writes the step's inputs and results as DIR/rank_R/*.npy.
Status dump_step(const std::string& directory, const LayerRun& layer, const reference::Step& step,
                 const reference::MlpExperts& experts);

}  // namespace switchyard::tools
