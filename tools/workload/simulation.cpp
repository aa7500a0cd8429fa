#include "simulation.hpp"

#include <algorithm>
#include <memory>
#include <random>

#include "buffers.hpp"
#include "reference/identity_experts.hpp"
#include "reference/per_rank.hpp"
#include "reference/placement.hpp"
#include "reference/token_tensors.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/detail/testing/expert_parallel_test_access.hpp"

namespace switchyard::tools {
namespace {

constexpr uint64_t kDeadlineNs = 1'000'000'000;  // virtual: costs nothing

// A world under test: buffers of every rank, and what a step needs.
class SimulatedWorld {
 public:
  explicit SimulatedWorld(const Scenario& scenario) : scenario_(scenario) {}

  Status create();
  // The difference from the reference, or the error that a step with the scenario's fault should have
  // returned and did not.
  std::string run_step(int step_idx);
  // The same of steps in flight at once, without a fault.
  std::string run_steps_at_once(int first_step, int num_steps);
  uint64_t trace_hash() const { return device_of(world_->rank(0)).trace_hash(); }
  std::vector<std::string> events() const;

 private:
  struct RankBuffers {
    reference::TokenTensors tokens;
    Buffer<uint8_t> rows, scales, expert_outputs;  // in their formats
    Buffer<int32_t> src_info, expert_ids;
    Buffer<float> topk_weights, group_input_scales;
    Buffer<uint32_t> row_offsets, row_counts;
    Buffer<int32_t> row_experts;  // of rows per rank, else empty
    Buffer<float> row_weights;

    uint32_t max_rows() const { return static_cast<uint32_t>(src_info.size() / 2); }
  };

  Status allocate();
  Status view_rows(int flight, int rank);
  Status place_experts(int step_idx);
  bool is_per_rank() const { return scenario_.row_layout == RowLayout::kPerRank; }
  // The step as the exchange sees it.
  reference::Step exchanged(const reference::Step& step) const {
    return is_per_rank() ? reference::per_rank(step) : step;
  }
  // Whether experts write fp8 rows: the direct protocol does not encode them.
  bool encodes_outputs() const {
    return scenario_.protocol == Protocol::kDirect && scenario_.combine_format != CombineFormat::kBF16;
  }
  reference::Step draw_step(int step_idx, bool has_bad_id);
  Status upload(int flight, const reference::Step& step);
  Status launch_experts(int flight, int rank);
  Status launch(int flight, const reference::Step& step, int phase_idx, int rank);
  Status launch_all(const reference::Step& step, int step_idx);
  std::string compare(int flight, const reference::Step& step);
  std::string check_fault(const Status& status);
  std::string check_skipped();
  ExpertParallel& flight_of(int flight) { return *ep_->flight(flight).value(); }
  RankBuffers& buffers_of(int flight, int rank) {
    return ranks_[static_cast<size_t>(flight * ep_->n_ranks() + rank)];
  }
  Rank& member(int rank) { return world_->rank(members_[static_cast<size_t>(rank)]); }

  const Scenario& scenario_;
  std::unique_ptr<World> world_;
  std::unique_ptr<ExpertParallel> ep_;
  std::vector<int> members_;        // the world's rank of each of ep_'s
  std::vector<RankBuffers> ranks_;  // [flight][rank]
};

Status SimulatedWorld::create() {
  Result<std::unique_ptr<World>> world =
      World::create({.target = TargetChoice::kHost,
                     .n_ranks = scenario_.n_ranks,
                     .host = {.mode = EmulatorMode::kSimulated, .seed = scenario_.seed, .weak = true}});
  if (!world.ok()) return world.status();
  world_ = std::move(world).value();
  Result<std::unique_ptr<ExpertParallel>> ep = ExpertParallel::create(
      *world_,
      {.n_experts = scenario_.n_experts,
       .top_k = scenario_.top_k,
       .hidden = scenario_.hidden,
       .max_tokens_per_rank = scenario_.room_for_tokens,
       .n_sms = scenario_.n_sms,
       .num_threads = kWarpSize,
       .timeout_ns = kDeadlineNs,
       .protocol = scenario_.protocol,
       .capacity_factor = scenario_.capacity_factor,
       .row_layout = scenario_.row_layout,
       .row_alignment = scenario_.row_alignment,
       .max_rows_per_expert = scenario_.max_rows_per_expert(),
       .row_delivery = scenario_.row_delivery,
       .reduce_at_owner = scenario_.reduce_at_owner,
       .dispatch_format = scenario_.format,
       .input_scale = scenario_.style.has_device_scale ? 4 * kInputScale : kInputScale,
       .expert_input_scales = expert_input_scales(scenario_.format, scenario_.n_experts),
       .combine_format = scenario_.combine_format,
       .p2p_world_size = scenario_.p2p_world_size,
       .placement = scenario_.first_placement,
       .max_experts_per_rank = scenario_.next_placement ? scenario_.next_placement->num_seats_per_rank() : 0,
       .steps_in_flight = scenario_.steps_in_flight});
  if (!ep.ok()) return ep.status();
  ep_ = std::move(ep).value();
  for (int rank = 0; rank < scenario_.n_ranks; ++rank) members_.push_back(rank);
  return allocate();
}

Status SimulatedWorld::allocate() {
  const uint64_t num_ids = static_cast<uint64_t>(scenario_.max_tokens * scenario_.top_k);
  const uint64_t num_groups = static_cast<uint64_t>(ep_->num_groups());
  ranks_.clear();
  ranks_.resize(members_.size() * static_cast<size_t>(scenario_.steps_in_flight));
  for (int i = 0; i < static_cast<int>(ranks_.size()); ++i) {
    const int flight = i / ep_->n_ranks(), rank = i % ep_->n_ranks();
    RankBuffers& buffers = buffers_of(flight, rank);
    Result<reference::TokenTensors> given = reference::TokenTensors::create(
        member(rank), {.top_k = scenario_.top_k, .hidden = scenario_.hidden, .format = scenario_.format},
        scenario_.max_tokens, scenario_.style);
    if (!given.ok()) return given.status();
    buffers.tokens = std::move(given).value();
    SWITCHYARD_RETURN_IF_ERROR(view_rows(flight, rank));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.expert_ids, member(rank), num_groups));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.topk_weights, member(rank), num_ids));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_offsets, member(rank), num_groups + 1));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_counts, member(rank), num_groups));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.group_input_scales, member(rank), num_groups));
    const uint64_t num_choices =
        is_per_rank() ? uint64_t{buffers.max_rows()} * static_cast<uint64_t>(scenario_.top_k) : 0;
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_experts, member(rank), num_choices));
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_weights, member(rank), num_choices));
  }
  return Status();
}

Status SimulatedWorld::view_rows(int flight, int rank) {
  const Result<RowBuffers> result = flight_of(flight).row_buffers(rank);
  if (!result.ok()) return result.status();
  const RowBuffers& rows = result.value();
  const TokenFormatInfo format = info_of(scenario_.format);
  const uint64_t max_rows = rows.max_rows, hidden = static_cast<uint64_t>(scenario_.hidden);
  const auto view = [&](void* pointer, uint64_t bytes) {
    return member(rank).view(static_cast<uint8_t*>(pointer), bytes);
  };
  RankBuffers& buffers = buffers_of(flight, rank);
  buffers.rows = view(rows.encoded_rows, max_rows * format.row_bytes(scenario_.hidden));
  buffers.scales = view(rows.scales, format.scale_tensor_bytes(rows.max_rows, scenario_.hidden).value());
  buffers.expert_outputs = rows.encoded_outputs != nullptr
                               ? view(rows.encoded_outputs, max_rows * ep_->combine_message_bytes())
                               : view(rows.expert_outputs, max_rows * hidden * sizeof(bf16));
  buffers.src_info = member(rank).view(rows.src_info, 2 * max_rows);
  return Status();
}

reference::Step SimulatedWorld::draw_step(int step_idx, bool has_bad_id) {
  std::mt19937_64 random(scenario_.seed * 1000 + static_cast<uint64_t>(step_idx));
  const int n_ranks = ep_->n_ranks();
  reference::Step step{n_ranks, scenario_.n_experts, scenario_.top_k, scenario_.hidden, {}, {}, {}};
  step.format = scenario_.format;
  step.input_scale = kInputScale;
  step.expert_input_scales = expert_input_scales(scenario_.format, scenario_.n_experts);
  step.row_alignment = static_cast<uint32_t>(scenario_.row_alignment);
  step.min_group_rows = static_cast<uint32_t>(scenario_.max_rows_per_expert());
  step.combine_format = scenario_.combine_format;
  step.reduces_at_owner = scenario_.reduce_at_owner;
  for (int rank = 0; rank < n_ranks; ++rank) {
    const size_t num_tokens = static_cast<size_t>(scenario_.tokens_of_step[step_idx][rank]);
    std::vector<bf16> tokens(num_tokens * static_cast<size_t>(scenario_.hidden));
    for (bf16& value : tokens) value = to_bf16(static_cast<float>(random() % 4001) / 1000.0f - 2.0f);
    std::vector<int32_t> ids(num_tokens * static_cast<size_t>(scenario_.top_k));
    // Some ids become padding; repeats occur by themselves.
    for (int32_t& id : ids)
      id = random() % 8 == 0 ? -1 : static_cast<int32_t>(random() % scenario_.n_experts);
    std::vector<float> weights(ids.size());
    for (float& weight : weights) weight = static_cast<float>(random() % 1000 + 1) / 1000.0f;
    step.tokens.push_back(std::move(tokens));
    step.topk_ids.push_back(std::move(ids));
    step.topk_weights.push_back(std::move(weights));
  }
  reference::place_experts(step, *ep_);
  for (size_t rank = 0; rank < step.group_of_rank.size(); ++rank)  // of those that are left
    step.group_of_rank[rank] = members_[rank] / scenario_.p2p_world_size;
  if (scenario_.fault == SimulatedFault::kOverflow && step_idx == scenario_.fault_step)
    for (auto& ids : step.topk_ids)
      std::fill(ids.begin(), ids.end(), scenario_.fault_rank * ep_->n_local_experts());
  if (scenario_.style.is_encoded) step = reference::with_encoded_tokens(std::move(step));
  if (has_bad_id)
    step.topk_ids[scenario_.fault_rank].back() = scenario_.n_experts + static_cast<int>(random() % 3);
  return step;
}

// Outputs and receive buffers are overwritten, so that stale or missing values show. A step that breaks has
// no rows for its experts.
Status SimulatedWorld::upload(int flight, const reference::Step& step) {
  for (int rank = 0; rank < ep_->n_ranks(); ++rank) {
    RankBuffers& buffers = buffers_of(flight, rank);
    SWITCHYARD_RETURN_IF_ERROR(buffers.tokens.upload(step, rank));
    SWITCHYARD_RETURN_IF_ERROR(buffers.topk_weights.upload(step.topk_weights[rank]));
    SWITCHYARD_RETURN_IF_ERROR(buffers.group_input_scales.upload(exchanged(step).group_input_scales(rank)));
    SWITCHYARD_RETURN_IF_ERROR(buffers.row_experts.fill_bytes(0xee));
    SWITCHYARD_RETURN_IF_ERROR(buffers.row_weights.fill_bytes(0xee));
    SWITCHYARD_RETURN_IF_ERROR(buffers.row_offsets.fill_bytes(0));
    SWITCHYARD_RETURN_IF_ERROR(buffers.row_counts.fill_bytes(0xee));
    SWITCHYARD_RETURN_IF_ERROR(buffers.rows.fill_bytes(0xee));
    SWITCHYARD_RETURN_IF_ERROR(buffers.scales.fill_bytes(0xee));
    SWITCHYARD_RETURN_IF_ERROR(buffers.src_info.fill_bytes(0xee));
    SWITCHYARD_RETURN_IF_ERROR(buffers.expert_ids.fill_bytes(0xee));
  }
  return Status();
}

// The experts are the identity; they run on the rank's stream, before combine.
Status SimulatedWorld::launch_experts(int flight, int rank) {
  RankBuffers& buffers = buffers_of(flight, rank);
  const StreamHandle stream = member(rank).stream();
  if (scenario_.format == TokenFormatKind::kBF16 && !encodes_outputs())
    return reference::launch_identity_experts(
        stream,
        {reinterpret_cast<bf16*>(buffers.rows.data()), reinterpret_cast<bf16*>(buffers.expert_outputs.data()),
         buffers.row_offsets.data() + ep_->num_groups(), buffers.max_rows(), scenario_.hidden});
  return kernel_table(member(rank))
      .recode_rows({}, stream,
                   {.format = scenario_.format,
                    .hidden = scenario_.hidden,
                    .input = {.rows = reinterpret_cast<std::byte*>(buffers.rows.data()),
                              .scales = reinterpret_cast<std::byte*>(buffers.scales.data()),
                              .max_rows = buffers.max_rows(),
                              .tensor_scale = kInputScale},
                    .num_groups = ep_->num_groups(),
                    .row_offsets = buffers.row_offsets.data(),
                    .group_tensor_scales = buffers.group_input_scales.data(),
                    .output_format = encodes_outputs() ? scenario_.combine_format : CombineFormat::kBF16,
                    .output = buffers.expert_outputs.data()});
}

Status SimulatedWorld::launch(int flight, const reference::Step& step, int phase_idx, int rank) {
  RankBuffers& buffers = buffers_of(flight, rank);
  ExpertParallel& ep = flight_of(flight);
  const DispatchInput input = buffers.tokens.input(step.num_tokens(rank), buffers.topk_weights.data());
  const DispatchOutput rows{.rows = buffers.rows.data(),
                            .src_info = buffers.src_info.data(),
                            .max_rows = buffers.max_rows(),
                            .row_offsets = buffers.row_offsets.data(),
                            .expert_ids = buffers.expert_ids.data(),
                            .scales = buffers.scales.data(),
                            .row_counts = buffers.row_counts.data(),
                            .row_experts = is_per_rank() ? buffers.row_experts.data() : nullptr,
                            .row_weights = is_per_rank() ? buffers.row_weights.data() : nullptr};
  const CombineInput experts{buffers.expert_outputs.data(), buffers.src_info.data()};
  const int combine_phase = scenario_.mode == StepMode::kFused ? 1 : 2;
  if (phase_idx == combine_phase) SWITCHYARD_RETURN_IF_ERROR(launch_experts(flight, rank));
  const CombineOutput output{buffers.tokens.topk_ids(), buffers.topk_weights.data(), step.num_tokens(rank),
                             buffers.tokens.destination()};
  if (scenario_.mode == StepMode::kFused)
    return phase_idx == 0 ? ep.dispatch(rank, input, rows) : ep.combine(rank, experts, output);
  switch (phase_idx) {
    case 0:
      return ep.dispatch_async(rank, input);
    case 1:
      return ep.dispatch_wait(rank, rows);
    case 2:
      return ep.combine_async(rank, experts);
    default:
      return ep.combine_wait(rank, output);
  }
}

Status SimulatedWorld::launch_all(const reference::Step& step, int step_idx) {
  const bool has_fault = step_idx == scenario_.fault_step;
  const int num_phases = static_cast<int>(scenario_.phases().size());
  for (int phase_idx = 0; phase_idx < num_phases; ++phase_idx) {
    for (int rank = 0; rank < ep_->n_ranks(); ++rank) {
      const bool is_culprit = has_fault && rank == scenario_.fault_rank;
      if (is_culprit && scenario_.fault == SimulatedFault::kKill && phase_idx >= scenario_.fault_phase)
        continue;
      if (is_culprit && phase_idx == scenario_.fault_phase &&
          (scenario_.fault == SimulatedFault::kShortStall || scenario_.fault == SimulatedFault::kLongStall)) {
        const uint64_t stall_ns =
            scenario_.fault == SimulatedFault::kShortStall ? kDeadlineNs / 2 : kDeadlineNs * 2;
        SWITCHYARD_RETURN_IF_ERROR(
            kernel_table(member(rank)).stall({}, member(rank).stream(), StallParams{stall_ns}));
      }
      SWITCHYARD_RETURN_IF_ERROR(launch(/*flight=*/0, step, phase_idx, rank));
    }
  }
  return Status();
}

template <typename T>
std::vector<T> downloaded(const Buffer<T>& buffer, size_t count) {
  Result<std::vector<T>> values = buffer.download(count);
  return values.ok() ? std::move(values).value() : std::vector<T>(count);
}

std::string SimulatedWorld::compare(int flight, const reference::Step& step_as_sent) {
  const reference::Step step = exchanged(step_as_sent);
  for (int rank = 0; rank < ep_->n_ranks(); ++rank) {
    const RankBuffers& buffers = buffers_of(flight, rank);
    reference::DispatchResult result;
    result.row_offsets = downloaded(buffers.row_offsets, buffers.row_offsets.size());
    result.row_counts = downloaded(buffers.row_counts, buffers.row_counts.size());
    result.expert_ids = downloaded(buffers.expert_ids, buffers.expert_ids.size());
    const size_t num_rows = std::min<size_t>(result.row_offsets.back(), buffers.max_rows());
    result.src_info = downloaded(buffers.src_info, 2 * num_rows);
    result.encoded_rows = downloaded(buffers.rows, num_rows * info_of(step.format).row_bytes(step.hidden));
    if (step.format == TokenFormatKind::kBF16) {
      result.rows.resize(num_rows * static_cast<size_t>(step.hidden));
      std::copy(result.encoded_rows.begin(), result.encoded_rows.end(),
                reinterpret_cast<uint8_t*>(result.rows.data()));  // of no rows, too
    }
    result.scales = downloaded(buffers.scales, buffers.scales.size());
    result.max_rows = buffers.max_rows();
    if (std::string difference = reference::check_dispatch(step, rank, result); !difference.empty())
      return difference;
    if (is_per_rank()) {
      result.row_experts = downloaded(buffers.row_experts, buffers.row_experts.size());
      result.row_weights = downloaded(buffers.row_weights, buffers.row_weights.size());
      if (std::string difference = reference::check_choices(step_as_sent, rank, result); !difference.empty())
        return difference;
    }
    const std::vector<bf16> expected =
        reference::combine_weighted(step, rank, &reference::identity_expert, nullptr);
    const Result<std::vector<bf16>> output = buffers.tokens.output(step.num_tokens(rank));
    if (!output.ok()) return "rank " + std::to_string(rank) + ": " + output.status().message();
    if (output.value() != expected) return "rank " + std::to_string(rank) + ": the combined output is wrong";
  }
  return "";
}

// A fault must end the step, and every rank that is alive must name the right rank.
std::string SimulatedWorld::check_fault(const Status& status) {
  if (status.ok()) return "the step succeeded in spite of " + std::string(to_string(scenario_.fault));
  const bool is_timeout = scenario_.fault != SimulatedFault::kBadId;
  for (int rank = 0; rank < ep_->n_ranks(); ++rank) {
    if (rank == scenario_.fault_rank && scenario_.fault == SimulatedFault::kKill) continue;
    const Status seen = ep_->synchronize(rank);
    const StatusCode expected = is_timeout ? StatusCode::kDeadlineExceeded : StatusCode::kInvalidArgument;
    const std::string culprit =
        (is_timeout ? "for rank " : "topk_ids of rank ") + std::to_string(scenario_.fault_rank);
    if (seen.code() != expected || seen.message().find(culprit) == std::string::npos)
      return "rank " + std::to_string(rank) + " should have named rank " +
             std::to_string(scenario_.fault_rank) + " and says: " + seen.to_string();
  }
  Status reset = scenario_.go_on_with_fewer ? Status() : ep_->reset();
  if (scenario_.go_on_with_fewer) {
    std::vector<int> survivors;
    for (int rank = 0; rank < ep_->n_ranks(); ++rank)
      if (rank != scenario_.fault_rank) survivors.push_back(rank);
    members_.erase(members_.begin() + scenario_.fault_rank);
    reset = ep_->reset(survivors);
    if (reset.ok()) reset = allocate();
  }
  return reset.ok() ? "" : "reset: " + reset.to_string();
}

// Every rank must report that the step is over capacity, and none may have written an output.
std::string SimulatedWorld::check_skipped() {
  const std::string culprit = "rank " + std::to_string(scenario_.fault_rank) + " would receive ";
  const auto is_filled = []<typename T>(const Buffer<T>& buffer, T with) {
    const std::vector<T> values = downloaded(buffer, buffer.size());
    return std::all_of(values.begin(), values.end(), [&](T value) { return value == with; });
  };
  for (int rank = 0; rank < ep_->n_ranks(); ++rank) {
    const RankBuffers& buffers = buffers_of(/*flight=*/0, rank);
    const std::string name = "rank " + std::to_string(rank);
    const Status seen = ep_->synchronize(rank);
    if (seen.code() != StatusCode::kResourceExhausted || seen.message().find(culprit) == std::string::npos)
      return name + " should have said '" + culprit + "' and says: " + seen.to_string();
    const Result<std::vector<bf16>> output = buffers.tokens.output(scenario_.max_tokens);
    if (!output.ok() || !std::all_of(output.value().begin(), output.value().end(),
                                     [](bf16 value) { return value == bf16{0xeeee}; }))
      return name + " wrote an output of a step that was skipped";
    if (!is_filled(buffers.rows, uint8_t{0xdd})) return name + " received rows of a step that was skipped";
  }
  return "";
}

// From the second step on experts are elsewhere; after a reset with fewer ranks they are divided evenly.
Status SimulatedWorld::place_experts(int step_idx) {
  if (step_idx == 0 || !scenario_.next_placement || ep_->n_ranks() != scenario_.n_ranks) return Status();
  return ep_->set_placement(*scenario_.next_placement);
}

std::string SimulatedWorld::run_step(int step_idx) {
  if (Status status = place_experts(step_idx); !status.ok()) return status.to_string();
  const bool must_fail = step_idx == scenario_.fault_step && scenario_.fault != SimulatedFault::kNone &&
                         scenario_.fault != SimulatedFault::kShortStall;
  const reference::Step step = draw_step(step_idx, must_fail && scenario_.fault == SimulatedFault::kBadId);
  if (Status status = upload(/*flight=*/0, step); !status.ok()) return status.to_string();
  if (Status status = ExpertParallelTestAccess::poison_receive_buffers(*ep_, 0xdd); !status.ok())
    return status.to_string();
  if (Status status = launch_all(step, step_idx); !status.ok()) return status.to_string();
  if (must_fail && scenario_.fault == SimulatedFault::kOverflow) return check_skipped();
  const Status status = ep_->synchronize();
  if (must_fail) return check_fault(status);
  return status.ok() ? compare(/*flight=*/0, step) : status.to_string();
}

// The flights' phases in an order that the seed draws; it is the same on all ranks, whose kernels wait for
// each other.
std::string SimulatedWorld::run_steps_at_once(int first_step, int num_steps) {
  if (Status status = place_experts(first_step); !status.ok()) return status.to_string();
  std::vector<reference::Step> steps;
  std::vector<int> order;
  for (int flight = 0; flight < num_steps; ++flight) {
    steps.push_back(draw_step(first_step + flight, /*has_bad_id=*/false));
    if (Status status = upload(flight, steps.back()); !status.ok()) return status.to_string();
    order.insert(order.end(), scenario_.phases().size(), flight);
  }
  if (Status status = ExpertParallelTestAccess::poison_receive_buffers(*ep_, 0xdd); !status.ok())
    return status.to_string();
  std::mt19937_64 random(scenario_.seed ^ static_cast<uint64_t>(first_step) << 32);
  for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
  std::vector<int> next_phase(steps.size());
  for (const int flight : order) {
    const int phase_idx = next_phase[static_cast<size_t>(flight)]++;
    for (int rank = 0; rank < ep_->n_ranks(); ++rank)
      if (Status status = launch(flight, steps[static_cast<size_t>(flight)], phase_idx, rank); !status.ok())
        return status.to_string();
  }
  if (const Status status = ep_->synchronize(); !status.ok()) return status.to_string();
  std::string difference;
  for (int flight = 0; flight < num_steps && difference.empty(); ++flight)
    difference = compare(flight, steps[static_cast<size_t>(flight)]);
  return difference;
}

std::vector<std::string> SimulatedWorld::events() const {
  std::vector<std::string> events;
  for (int rank = 0; rank < world_->n_ranks(); ++rank)
    events.push_back(device_of(world_->rank(rank)).recent_events(world_->rank(rank).stream()));
  return events;
}

}  // namespace

SimulationResult simulate(const Scenario& scenario) {
  SimulationResult result;
  SimulatedWorld world(scenario);
  if (Status status = world.create(); !status.ok()) {
    result.difference = status.to_string();
    return result;
  }
  const int num_steps = static_cast<int>(scenario.tokens_of_step.size());
  for (int step_idx = 0; step_idx < num_steps && result.difference.empty();
       step_idx += scenario.steps_in_flight) {
    const int num_at_once = std::min(scenario.steps_in_flight, num_steps - step_idx);
    result.difference = scenario.steps_in_flight == 1 ? world.run_step(step_idx)
                                                      : world.run_steps_at_once(step_idx, num_at_once);
    if (!result.difference.empty())
      result.difference = "step " + std::to_string(step_idx) + ": " + result.difference;
  }
  result.trace_hash = world.trace_hash();
  result.events = world.events();
  return result;
}

}  // namespace switchyard::tools
