#include "scenario.hpp"

#include <algorithm>
#include <iterator>
#include <random>

#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/ep/tuning.hpp"

namespace switchyard::tools {

const char* to_string(SimulatedFault fault) {
  switch (fault) {
    case SimulatedFault::kNone:
      return "none";
    case SimulatedFault::kShortStall:
      return "short-stall";
    case SimulatedFault::kLongStall:
      return "long-stall";
    case SimulatedFault::kKill:
      return "kill";
    case SimulatedFault::kBadId:
      return "bad-id";
    case SimulatedFault::kOverflow:
      return "overflow";
  }
  return "unknown";
}

std::vector<std::string> Scenario::phases() const {
  if (mode == StepMode::kFused) return {"dispatch", "combine"};
  return {"dispatch_async", "dispatch_wait", "combine_async", "combine_wait"};
}

namespace {

// "0,1|2|1": the experts of each rank.
std::string text_of(const ExpertPlacement& placement) {
  std::string text;
  for (size_t rank = 0; rank < placement.experts_of_rank().size(); ++rank) {
    if (rank > 0) text += "|";
    for (const char* comma = ""; const int expert : placement.experts_of_rank()[rank]) {
      text += comma;
      text += std::to_string(expert);
      comma = ",";
    }
  }
  return text;
}

}  // namespace

std::string Scenario::describe() const {
  std::string text =
      std::to_string(n_ranks) + " ranks, " + std::to_string(n_experts) + " experts, top-" +
      std::to_string(top_k) + ", hidden " + std::to_string(hidden) + ", " + std::to_string(n_sms) +
      " blocks, " + (p2p_world_size == 0 ? "no wire" : "groups of " + std::to_string(p2p_world_size)) + ", " +
      switchyard::to_string(protocol) + ", " + switchyard::to_string(format) + ", combine in " +
      switchyard::to_string(combine_format) + ", " + (mode == StepMode::kFused ? "fused" : "split") + ", " +
      switchyard::to_string(row_layout) + " rows aligned to " + std::to_string(row_alignment) +
      (row_delivery == RowDelivery::kReceiver ? ", filled by their receiver" : "") +
      (reduce_at_owner ? ", summed up by their owner" : "") + ", tokens";
  for (const std::vector<int>& tokens : tokens_of_step) {
    for (size_t rank = 0; rank < tokens.size(); ++rank) {
      text += rank > 0 ? "," : " ";
      text += std::to_string(tokens[rank]);
    }
  }
  if (const std::string special = style.describe(); !special.empty()) text += ", " + special;
  if (room_for_tokens > max_tokens) text += ", room for " + std::to_string(room_for_tokens) + " tokens";
  if (steps_in_flight > 1) text += ", " + std::to_string(steps_in_flight) + " steps in flight";
  if (first_placement)
    text += ", experts " + text_of(*first_placement) + ", then " + text_of(*next_placement);
  if (fault == SimulatedFault::kNone) return text;
  text += "; ";
  text += to_string(fault);
  text += " of rank " + std::to_string(fault_rank) + " in step " + std::to_string(fault_step);
  return fault == SimulatedFault::kBadId || fault == SimulatedFault::kOverflow
             ? text
             : text + " at " + phases()[fault_phase];
}

namespace {

// Whether the format aligns the rows of each expert. The memory for that is more than so few tokens overflow,
// and less than fewer ranks need, which have more experts each.
bool aligns_rows(TokenFormatKind format) { return info_of(format).row_alignment > 1; }

// The first format that encodes, takes rows of this size and aligns none.
TokenFormatKind unaligned_format(int hidden) {
  for (const TokenFormatKind kind : kTokenFormatKinds)
    if (info_of(kind).scale != ScaleType::kNone && !aligns_rows(kind) &&
        hidden % info_of(kind).hidden_multiple() == 0)
      return kind;
  return TokenFormatKind::kBF16;
}

// The capacity is one row less than the worst case, which occurs in the fault's step and in no other. The
// slotted protocol has memory for all rows.
void draw_overflow(const ScenarioSpace& space, Scenario& scenario) {
  if (space.protocol == Protocol::kSlotted || (space.format && aligns_rows(*space.format))) {
    scenario.fault = SimulatedFault::kNone;
    return;
  }
  scenario.protocol = Protocol::kDirect;
  if (aligns_rows(scenario.format)) scenario.format = unaligned_format(scenario.hidden);
  const double even_share = scenario.max_tokens * scenario.top_k;
  scenario.capacity_factor = (scenario.n_ranks * even_share - 1.5) / even_share;
  for (std::vector<int>& tokens : scenario.tokens_of_step)
    tokens[0] = std::min(tokens[0], scenario.max_tokens - 1);
  for (int& tokens : scenario.tokens_of_step[scenario.fault_step]) tokens = scenario.max_tokens;
}

// Formats are drawn from random numbers of their own, so that everything else that a seed draws is the same
// in every format. Two thirds of the seeds have bf16, which is simulated fastest.
void draw_formats(const ScenarioSpace& space, Scenario& scenario) {
  std::mt19937_64 random(scenario.seed ^ 0xf0e4a7ull);
  const uint64_t encoded = 1 + random() % (std::size(kTokenFormatKinds) - 1);
  const uint64_t format = random() % 3 == 0 ? encoded : 0, combine_format = random() % 8;
  scenario.format = space.format.value_or(kTokenFormatKinds[format]);
  scenario.combine_format =
      space.combine_format.value_or(combine_format == 0 ? CombineFormat::kFP8 : CombineFormat::kBF16);
}

// Where the scales of several rows interleave, senders store those of few tokens and owners fetch those of
// many. A third of the seeds have few tokens with room for many.
void draw_room(Scenario& scenario) {
  std::mt19937_64 random(scenario.seed ^ 0x726f6f6dull);
  if (random() % 3 == 0 && scenario.protocol == Protocol::kDirect &&
      info_of(scenario.format).interleaves_rows() && scenario.fault != SimulatedFault::kOverflow)
    scenario.room_for_tokens = kEpLimits.max_tokens_sending_scales + 1;
}

// Half of the seeds have no wire. The others have ranks that only a wire reaches. Their sizes are drawn from
// random numbers of their own, too.
void draw_groups(Scenario& scenario) {
  std::mt19937_64 random(scenario.seed ^ 0x77697265ull);
  std::vector<int> sizes;
  for (int size = 1; size < scenario.n_ranks; ++size)
    if (scenario.n_ranks % size == 0) sizes.push_back(size);
  const uint64_t is_near = random() % 2, drawn = random();
  if (is_near == 0 && !sizes.empty()) scenario.p2p_world_size = sizes[drawn % sizes.size()];
}

// A third of the seeds that can have rows per rank. Of the others, half have rows one behind the other, as
// they come. Fewer ranks would need more memory for rows
// that only fill up their groups, and a step that is over capacity needs memory without such rows.
void draw_row_layout(Scenario& scenario) {
  std::mt19937_64 random(scenario.seed ^ 0x6c61796full);
  const uint64_t is_plain = random() % 2, is_masked = random() % 2, alignment = random() % 8;
  const uint64_t per_rank = random() % 3;
  if (scenario.fault == SimulatedFault::kOverflow) return;
  const bool may_be_per_rank = scenario.protocol == Protocol::kDirect && scenario.p2p_world_size == 0 &&
                               !info_of(scenario.format).encodes_by_expert;
  if (may_be_per_rank && per_rank == 0) scenario.row_layout = RowLayout::kPerRank;
  if (is_plain == 0 || scenario.go_on_with_fewer) return;
  if (scenario.row_layout == RowLayout::kRagged && is_masked == 1) scenario.row_layout = RowLayout::kMasked;
  scenario.row_alignment = 1 + static_cast<int>(alignment);
}

// Where the direct protocol leaves the choice, the seeds deliver rows in either way.
void draw_delivery(Scenario& scenario) {
  const bool is_receiver = std::mt19937_64(scenario.seed ^ 0x64656c69ull)() % 2 == 0;
  if (scenario.protocol != Protocol::kDirect || info_of(scenario.format).encodes_by_expert) return;
  scenario.row_delivery = is_receiver ? RowDelivery::kReceiver : RowDelivery::kSender;
}

// A third of the seeds that can have sums of the owner.
void draw_reduction(Scenario& scenario) {
  const bool is_drawn = std::mt19937_64(scenario.seed ^ 0x72656475ull)() % 3 == 0;
  scenario.reduce_at_owner =
      is_drawn && scenario.protocol == Protocol::kDirect && scenario.row_layout != RowLayout::kPerRank;
}

// Half of the seeds hand tokens over as the examples do.
void draw_style(Scenario& scenario) {
  std::mt19937_64 random(scenario.seed ^ 0x7374796cull);
  if (random() % 2 == 0) return;
  const TokenFormatInfo format = info_of(scenario.format);
  const bool has_wide_ids = random() % 2 == 0, is_encoded = random() % 2 == 0;
  scenario.style = {.has_wide_ids = has_wide_ids,
                    .is_encoded = is_encoded && format.scale != ScaleType::kNone && !format.encodes_by_expert,
                    .has_device_scale = random() % 2 == 0 && scenario.format == TokenFormatKind::kNVFP4,
                    .gap_bytes = static_cast<int>(random() % 3) * 16};
}

// Every expert is on some rank, and now and then on more.
ExpertPlacement draw_placement(const Scenario& scenario, std::mt19937_64& random) {
  const auto n_ranks = static_cast<size_t>(scenario.n_ranks);
  std::vector<std::vector<int>> experts_of_rank(n_ranks);
  for (int expert = 0; expert < scenario.n_experts; ++expert) {
    const size_t owner = random() % n_ranks;
    for (size_t rank = 0; rank < n_ranks; ++rank) {
      const bool has_replica = random() % 6 == 0;
      if (rank != owner && !has_replica) continue;
      std::vector<int>& experts = experts_of_rank[rank];
      experts.insert(experts.begin() + static_cast<ptrdiff_t>(random() % (experts.size() + 1)), expert);
    }
  }
  return ExpertPlacement::from_lists(scenario.n_experts, std::move(experts_of_rank)).value();
}

// A third of the seeds have placements, which change after the first step. A step that overflows needs
// experts that all ranks send to one rank.
void draw_placements(Scenario& scenario) {
  std::mt19937_64 random(scenario.seed ^ 0x73656174ull);
  if (random() % 3 != 0 || scenario.fault == SimulatedFault::kOverflow) return;
  scenario.first_placement = draw_placement(scenario, random);
  scenario.next_placement = draw_placement(scenario, random);
}

}  // namespace

Scenario draw_scenario(uint64_t seed, const ScenarioSpace& space) {
  std::mt19937_64 random(seed ^ 0x5eedull);
  const auto below = [&](uint64_t bound) { return static_cast<int>(random() % bound); };
  Scenario scenario;
  scenario.seed = seed;
  draw_formats(space, scenario);
  scenario.n_ranks = space.rank_counts[below(space.rank_counts.size())];
  draw_groups(scenario);
  // A multiple of the number of ranks, and of one rank less: a world may continue without a dead rank.
  scenario.n_experts = scenario.n_ranks * std::max(1, scenario.n_ranks - 1) * (1 + below(2));
  scenario.top_k = 1 + below(4);
  const int multiple = std::max(info_of(scenario.format).hidden_multiple(),
                                info_of(kind_of(scenario.combine_format)).hidden_multiple());
  const int size = below(3);
  scenario.hidden = multiple * (1 + (multiple == kHiddenMultiple ? size : size / 2));
  scenario.n_sms = 1 + below(3);
  scenario.mode = below(2) == 0 ? StepMode::kSplit : StepMode::kFused;
  scenario.protocol = space.protocol;
  if (space.protocol == Protocol::kAutomatic)
    scenario.protocol = below(2) == 0 ? Protocol::kSlotted : Protocol::kDirect;
  const int num_steps = 2 + below(2);
  for (int step = 0; step < num_steps; ++step) {
    std::vector<int> tokens;
    for (int rank = 0; rank < scenario.n_ranks; ++rank)
      tokens.push_back(below(static_cast<uint64_t>(scenario.max_tokens) + 1));
    scenario.tokens_of_step.push_back(tokens);
  }
  scenario.fault_step = below(static_cast<uint64_t>(num_steps) - 1);  // at least one step follows
  scenario.fault_rank = below(static_cast<uint64_t>(scenario.n_ranks));
  if (!space.faults.empty()) scenario.fault = space.faults[below(space.faults.size())];
  // Nobody waits for a rank that is alone.
  if (scenario.n_ranks == 1 &&
      (scenario.fault == SimulatedFault::kKill || scenario.fault == SimulatedFault::kLongStall))
    scenario.fault = SimulatedFault::kNone;
  draw_placements(scenario);
  if (scenario.fault == SimulatedFault::kOverflow) draw_overflow(space, scenario);
  draw_style(scenario);  // of the format that it is now
  draw_room(scenario);
  draw_delivery(scenario);
  if (scenario.fault == SimulatedFault::kNone) {
    // A third of the seeds without a fault have two steps, or all, in flight.
    const uint64_t drawn = std::mt19937_64(seed ^ 0x666c6967ull)() % 6;
    if (drawn < 2) scenario.steps_in_flight = 2 + static_cast<int>(drawn);
    draw_row_layout(scenario);
    draw_reduction(scenario);
    return scenario;
  }
  const int num_phases = static_cast<int>(scenario.phases().size());
  scenario.fault_phase = below(static_cast<uint64_t>(num_phases));
  // A rank that is late to its own last wait delays no other rank; nor does one whose stall begins after it
  // has sent everything.
  if (scenario.fault != SimulatedFault::kShortStall &&
      scenario.phases()[scenario.fault_phase] == "combine_wait")
    scenario.fault_phase -= 1;
  scenario.go_on_with_fewer = scenario.fault == SimulatedFault::kKill && scenario.n_ranks > 1 &&
                              below(2) == 0 && !aligns_rows(scenario.format);
  if (scenario.fault == SimulatedFault::kBadId) {
    int& tokens = scenario.tokens_of_step[scenario.fault_step][scenario.fault_rank];
    tokens = std::max(1, tokens);
  }
  draw_row_layout(scenario);
  draw_reduction(scenario);
  return scenario;
}

}  // namespace switchyard::tools
