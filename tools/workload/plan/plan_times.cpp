// How long a step takes: what each resource needs alone, and the signals that wait for each other. The
// constants are what one GPU measured.
#include <algorithm>

#include "cluster_plan.hpp"
#include "switchyard/detail/base/macros.hpp"

namespace switchyard::tools {

const char* to_string(PlanMessage message) {
  return message == PlanMessage::kExpert ? "expert" : message == PlanMessage::kRank ? "rank" : "node";
}
const char* to_string(PlanLayout layout) {
  return layout == PlanLayout::kRagged ? "ragged" : layout == PlanLayout::kMasked ? "masked" : "per-rank";
}
const char* to_string(Resource resource) {
  constexpr const char* kNames[] = {"memory", "link", "NIC", "latency"};
  return kNames[static_cast<int>(resource)];
}

const Calibration& calibration() {
  constexpr const char* kTable = "docs/performance.md, dispatch and combine, 8 ranks on one H200, 1 token";
  constexpr const char* kLarge = "the same, 4096 tokens: counted bytes by time beyond that of 1 token";
  constexpr const char* kJoins = "the same, 1 token: dispatch + combine - step";
  static const Calibration numbers{
      .direct = {{"direct dispatch, memory", 3585, "GB/s", kLarge},
                 {"direct combine, memory", 4036, "GB/s", kLarge},
                 {"direct dispatch, 1 token", 16.9, "us", kTable},
                 {"direct combine, 1 token", 13.7, "us", kTable},
                 {"direct, joins", 5.2, "us", kJoins}},
      .slotted = {{"slotted dispatch, memory", 3678, "GB/s", kLarge},
                  {"slotted combine, memory", 3953, "GB/s", kLarge},
                  {"slotted dispatch, 1 token", 24.9, "us", kTable},
                  {"slotted combine, 1 token", 20.7, "us", kTable},
                  {"slotted, joins", 7.4, "us", kJoins}},
      .stagger_us =
          {"start of a further rank of a device", 0.86, "us",
           "docs/journal/dispatch-and-combine.md: the first of 8 ranks starts 6 us before the last"},
      .trip_us = {"signal on one device", 0.83, "us",
                  "half a round of release and acquire between two processes on one H200, 1.65 us"},
      .release_us = {"release at system scope", 2.25, "us",
                     "docs/journal/dispatch-and-combine.md: 28.9 -> 24.4 us for the two signals of dispatch"},
      .per_peer_us = {"counts to a further rank by one block", 1.3, "us",
                      "docs/performance.md, many ranks, 64 x 2 beside 8 x 16 blocks, less the starts of 64 "
                      "ranks"},
  };
  return numbers;
}

std::vector<CalibratedNumber> Calibration::numbers() const {
  std::vector<CalibratedNumber> all;
  for (const ProtocolCalibration& protocol : {direct, slotted})
    all.insert(all.end(), {protocol.dispatch_gb_s, protocol.combine_gb_s, protocol.dispatch_us,
                           protocol.combine_us, protocol.join_us});
  all.insert(all.end(), {stagger_us, trip_us, release_us, per_peer_us});
  return all;
}

SignalChain dispatch_chain(const PlanShape& shape, const Cluster& cluster) {
  const int num_forwards = shape.message == PlanMessage::kNode && cluster.num_nodes() > 1 ? 1 : 0;
  // Counts (MM-08, MM-28), then rows and their signal (MM-10).
  if (shape.protocol == Protocol::kDirect) return {2 + num_forwards, 0, cluster.n_ranks - 1};
  return {1 + num_forwards, 0, 0};  // messages and their signal (MM-02)
}

SignalChain combine_chain(const PlanShape& shape, const Cluster& cluster) {
  const int num_forwards = shape.combine_message == PlanMessage::kNode && cluster.num_nodes() > 1 ? 1 : 0;
  // Direct: where the rows lie (MM-11), then loads of them; or rows that are put, and their signal. Slotted:
  // rows and their signal (MM-05).
  return {1 + num_forwards, shape.protocol == Protocol::kDirect ? 1 : 0, 0};
}

namespace {

// The time of a chain, without what a rank does between its signals.
double chain_us(const SignalChain& chain, const Cluster& cluster) {
  const Calibration& numbers = calibration();
  if (cluster.n_ranks == 1) return 0;
  const double signal_us = numbers.trip_us.value + numbers.release_us.value;
  const bool has_links = cluster.ranks_per_device < std::min(cluster.ranks_per_node, cluster.n_ranks);
  const double on_device = chain.num_signals * numbers.trip_us.value;
  const double near = chain.num_signals * (signal_us + cluster.link_latency_us) +
                      chain.num_pulls * 2 * cluster.link_latency_us;
  const double far = chain.num_signals * (signal_us + cluster.nic_latency_us);
  return std::max({on_device, has_links ? near : 0, cluster.num_nodes() > 1 ? far : 0});
}

// Of a phase that moves nothing. What was measured has the chain of 8 ranks on a device, whose counts the 16
// blocks of each send in one go.
double latency_us(double measured_us, const SignalChain& chain, const StepPlan& plan) {
  constexpr Cluster kMeasured{.n_ranks = 8, .ranks_per_device = 8};
  const Calibration& numbers = calibration();
  const auto stagger = [&](const Cluster& cluster) {
    return numbers.stagger_us.value * (std::min(cluster.ranks_per_device, cluster.n_ranks) - 1);
  };
  const int num_turns =
      chain.num_counted_peers == 0 ? 1 : ceil_div(chain.num_counted_peers, plan.shape.n_sms);
  return measured_us - chain_us(chain, kMeasured) - stagger(kMeasured) + chain_us(chain, plan.cluster) +
         stagger(plan.cluster) + std::max(0, num_turns - 1) * numbers.per_peer_us.value;
}

double microseconds(uint64_t bytes, double gb_s) { return static_cast<double>(bytes) / (gb_s * 1e3); }

uint64_t largest(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  return std::max(*std::max_element(a.begin(), a.end()), *std::max_element(b.begin(), b.end()));
}

// The ranks of a device share its memory.
uint64_t largest_of_devices(const std::vector<uint64_t>& of_rank, int ranks_per_device) {
  std::vector<uint64_t> of_device(of_rank.size());
  for (size_t rank = 0; rank < of_rank.size(); ++rank)
    of_device[rank / static_cast<size_t>(ranks_per_device)] += of_rank[rank];
  return *std::max_element(of_device.begin(), of_device.end());
}

void predict_phase(double memory_gb_s, double measured_us, const SignalChain& chain, const StepPlan& plan,
                   PhasePlan& phase) {
  const Cluster& cluster = plan.cluster;
  phase.memory_us =
      microseconds(largest_of_devices(phase.bytes.memory, cluster.ranks_per_device), memory_gb_s);
  phase.link_us = microseconds(largest(phase.bytes.link_out, phase.bytes.link_in), cluster.link_gb_s);
  phase.nic_us = microseconds(largest(phase.bytes.nic_out, phase.bytes.nic_in), cluster.nic_gb_s);
  phase.latency_us = latency_us(measured_us, chain, plan);
}

}  // namespace

double PhasePlan::us() const { return latency_us + std::max({memory_us, link_us, nic_us}); }

Resource PhasePlan::bound() const {
  const double times[] = {memory_us, link_us, nic_us, latency_us};
  return static_cast<Resource>(std::max_element(std::begin(times), std::end(times)) - std::begin(times));
}

void predict_plan_times(StepPlan& plan) {
  const ProtocolCalibration& numbers =
      plan.shape.protocol == Protocol::kDirect ? calibration().direct : calibration().slotted;
  predict_phase(numbers.dispatch_gb_s.value, numbers.dispatch_us.value,
                dispatch_chain(plan.shape, plan.cluster), plan, plan.dispatch);
  predict_phase(numbers.combine_gb_s.value, numbers.combine_us.value, combine_chain(plan.shape, plan.cluster),
                plan, plan.combine);
  plan.step_us = plan.dispatch.us() + plan.combine.us() - numbers.join_us.value;
}

Result<StepPlan> plan_step(const PlanShape& shape, const Cluster& cluster, const PlanRouting& routing,
                           const ExpertPlacement& placement) {
  StepPlan plan;
  plan.shape = shape;
  plan.cluster = cluster;
  SWITCHYARD_RETURN_IF_ERROR(count_plan_bytes(routing, placement, plan));
  predict_plan_times(plan);
  return plan;
}

}  // namespace switchyard::tools
