// What `switchyard run` runs: a shape, the routing of each token, and its values. Everything is drawn from
// the seed.
#pragma once

#include <string>
#include <vector>

#include "reference/reference.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/status.hpp"

namespace switchyard::tools {

enum class StepMode { kSplit, kFused };
// The plain kernels, whose bits the reference has, too; or GroupedMatmuls.
enum class Matmuls { kReference, kFast };
enum class RoutingKind { kUniform, kZipf, kOneExpert, kFile };

struct Workload {
  int n_ranks = 8;
  std::vector<int> tokens_per_rank;
  int hidden = 1024;
  int top_k = 8;
  int n_experts = 64;
  int expert_width = 256;
  RoutingKind routing = RoutingKind::kUniform;
  double padding = 0;              // share of ids that become -1
  bool is_replicated = false;      // every rank has the same tokens
  bool has_shared_expert = false;  // one more than n_experts, the last
  Matmuls matmuls = Matmuls::kReference;
  uint64_t seed = 1;
  std::vector<std::vector<int32_t>> file_ids;  // by rank, for RoutingKind::kFile

  int max_tokens_per_rank() const;
};

// How long a wait for a peer may take. The emulator is slow, and slower on a machine that is shared.
constexpr uint64_t default_timeout_ns(Target target) {
  return target == Target::kHost ? 60'000'000'000 : 5'000'000'000;
}

// NVFP4's tensor scale: all tokens of a workload are well within -8..8.
inline constexpr float kInputScale = 8.0f / (6 * 448);
// The tensor scales of formats that have one per expert: some are as small as that, others larger.
std::vector<float> expert_input_scales(TokenFormatKind format, int n_experts);

// Faults to inject: `rank` does not launch `phase` or anything after it, or launches it late.
struct FaultPlan {
  static constexpr int kNobody = -1;
  struct Event {
    int rank = kNobody;
    std::string phase;
    uint64_t milliseconds = 0;  // of a stall
  };
  Event kill;
  Event stall;
};

// Reads one token's ids per line (`rank,id,id,..`) into tokens_per_rank, top_k and file_ids. Blank lines and
// lines that start with # are skipped. `top_k` 0: as many as the first line has.
Status read_routing_file(const std::string& path, int top_k, Workload& workload);

// Tokens and, for routings that come from a router, logits; else ids and weights.
reference::Step make_step(const Workload& workload, int step_idx);
bool has_router(const Workload& workload);
// [rank][token * n_experts], for workloads with a router.
std::vector<std::vector<float>> make_logits(const Workload& workload, int step_idx);
// Turns a share of the ids into -1.
void apply_padding(const Workload& workload, int step_idx, reference::Step& step);

reference::MlpExperts make_experts(const Workload& workload);

}  // namespace switchyard::tools
