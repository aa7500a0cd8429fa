#include "ep_config.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/tuning.hpp"

namespace switchyard {

const char* to_string(Protocol protocol) {
  switch (protocol) {
    case Protocol::kAutomatic:
      return "automatic";
    case Protocol::kSlotted:
      return "slotted";
    case Protocol::kDirect:
      return "direct";
  }
  return "unknown";
}

const char* to_string(RowLayout layout) {
  switch (layout) {
    case RowLayout::kRagged:
      return "ragged";
    case RowLayout::kMasked:
      return "masked";
    case RowLayout::kPerRank:
      return "per-rank";
  }
  return "unknown";
}

const char* to_string(RowDelivery delivery) {
  switch (delivery) {
    case RowDelivery::kAutomatic:
      return "automatic";
    case RowDelivery::kSender:
      return "sender";
    case RowDelivery::kReceiver:
      return "receiver";
  }
  return "unknown";
}

const char* to_string(CombineStart start) {
  switch (start) {
    case CombineStart::kBehindExperts:
      return "behind-experts";
    case CombineStart::kWithExperts:
      return "with-experts";
  }
  return "unknown";
}

namespace {

constexpr int kMaxStepsInFlight = 8;
constexpr int kMaxRowSets = 8;
constexpr uint64_t kMaxTimeoutNs = 86'400'000'000'000;
constexpr float kMinInputScale = 0x1p-100f;
bool is_input_scale(float scale) { return scale >= kMinInputScale && scale <= 1 / kMinInputScale; }

Status check_range(const char* name, int value, int low, int high) {
  if (value >= low && value <= high) return Status();
  return invalid_argument("%s is %d; it must be %d..%d", name, value, low, high);
}

Status check_input_scales(const ExpertParallelConfig& config) {
  if (!is_input_scale(config.input_scale))
    return invalid_argument("input_scale is %g; it must be 2^-100..2^100", config.input_scale);
  const std::vector<float>& scales = config.expert_input_scales;
  const int num_wanted = format_layout(config).encodes_by_expert ? config.n_experts : 0;
  if (static_cast<int>(scales.size()) != num_wanted)
    return invalid_argument("expert_input_scales has %zu entries; format %s needs %d", scales.size(),
                            format_layout(config).name, num_wanted);
  for (size_t i = 0; i < scales.size(); ++i)
    if (!is_input_scale(scales[i]))
      return invalid_argument("expert_input_scales[%zu] is %g; it must be 2^-100..2^100", i, scales[i]);
  return Status();
}

// A token that comes once to a rank has one encoding there, no expert of its own, and a sender whose memory
// is read.
Status check_per_rank(const ExpertParallelConfig& config, int n_ranks) {
  if (config.protocol == Protocol::kSlotted)
    return invalid_argument(
        "protocol is slotted; it must be direct or automatic where row_layout is per-rank");
  if (config.own_format != nullptr && config.own_format->near.direct == nullptr)
    return invalid_argument("own_format %s is no DirectFormat, which row_layout per-rank needs",
                            format_layout(config).name);
  if (needs_wire(config, n_ranks))
    return invalid_argument(
        "p2p_world_size is %d and the number of ranks %d; where row_layout is per-rank all ranks must reach "
        "each "
        "other's memory: p2p_world_size 0, and at most %d ranks",
        config.p2p_world_size, n_ranks, kMaxDirectRanks);
  if (format_layout(config).encodes_by_expert)
    return invalid_argument(
        "format %s encodes a token for each expert; where row_layout is per-rank it comes once",
        format_layout(config).name);
  if (config.capacity_factor != 0)
    return invalid_argument(
        "capacity_factor is %g; it must be 0 where row_layout is per-rank: there is always room",
        config.capacity_factor);
  if (config.counts_experts)
    return invalid_argument("counts_experts must be false where row_layout is per-rank: rows have no expert");
  return Status();
}

Status check_row_layout(const ExpertParallelConfig& config, int n_ranks) {
  constexpr int kMaxRowAlignment = 256;
  SWITCHYARD_RETURN_IF_ERROR(check_range("row_alignment", config.row_alignment, 1, kMaxRowAlignment));
  SWITCHYARD_RETURN_IF_ERROR(
      check_range("max_rows_per_expert", config.max_rows_per_expert, 0, kMaxRowsPerExpert));
  if (config.row_layout != RowLayout::kMasked) {
    if (config.max_rows_per_expert != 0)
      return invalid_argument("max_rows_per_expert is %d; it must be 0 where row_layout is %s",
                              config.max_rows_per_expert, to_string(config.row_layout));
    return config.row_layout == RowLayout::kPerRank ? check_per_rank(config, n_ranks) : Status();
  }
  if (config.capacity_factor != 0)
    return invalid_argument(
        "capacity_factor is %g; it must be 0 where row_layout is masked: "
        "max_rows_per_expert says how many rows there is room for",
        config.capacity_factor);
  if (config.routing == Routing::kSkipAllToAll && config.max_rows_per_expert != 0)
    return invalid_argument(
        "max_rows_per_expert is %d; it must be 0 where the all-to-all is skipped: there is always room",
        config.max_rows_per_expert);
  if (config.shared_expert == SharedExpert::kFused && config.max_rows_per_expert != 0 &&
      config.max_rows_per_expert < config.max_tokens_per_rank)
    return invalid_argument(
        "max_rows_per_expert is %d; it must be at least max_tokens_per_rank (%d) where a shared expert is "
        "fused",
        config.max_rows_per_expert, config.max_tokens_per_rank);
  return Status();
}

Status check_row_sets(const ExpertParallelConfig& config, int n_ranks) {
  SWITCHYARD_RETURN_IF_ERROR(check_range("row_sets", config.row_sets, 1, kMaxRowSets));
  if (config.row_sets == 1) return Status();
  if (config.row_layout != RowLayout::kPerRank)
    return invalid_argument("row_sets is %d; it must be 1 where row_layout is %s, and not per-rank",
                            config.row_sets, to_string(config.row_layout));
  if (config.shared_expert != SharedExpert::kNone)
    return invalid_argument("row_sets is %d; it must be 1 where a shared expert is fused", config.row_sets);
  if (config.routing == Routing::kSkipAllToAll)
    return invalid_argument("row_sets is %d; it must be 1 where the all-to-all is skipped", config.row_sets);
  // Ranks tell each other where their rows begin as they tell counts.
  if (const uint64_t num_rows = row_capacity(config, n_ranks); num_rows > CountCell::kMaxCount)
    return invalid_argument("row_sets is %d, which makes %llu rows per rank; at most %u", config.row_sets,
                            static_cast<unsigned long long>(num_rows), CountCell::kMaxCount);
  return Status();
}

// Scales of a tensor that interleaves rows arrive in the expert output (SiblingScales).
bool has_room_for_scales(const ExpertParallelConfig& config) {
  const FormatLayout format = format_layout(config);
  return !format.interleaves_rows ||
         align_up(format.scales_bytes, 16u) <= combine_row_bytes(config.combine_format, config.hidden);
}

Status check_delivery(const ExpertParallelConfig& config) {
  if (config.row_delivery != RowDelivery::kReceiver) return Status();
  if (config.protocol == Protocol::kSlotted)
    return invalid_argument(
        "row_delivery is receiver; it must be sender or automatic where protocol is slotted: every row is a "
        "message");
  if (config.own_format != nullptr && config.own_format->near.direct == nullptr)
    return invalid_argument("row_delivery is receiver; own_format %s is no DirectFormat, which it needs",
                            format_layout(config).name);
  if (format_layout(config).encodes_by_expert)
    return invalid_argument(
        "row_delivery is receiver; it must be sender or automatic in format %s, which encodes a token for "
        "each expert",
        format_layout(config).name);
  if (!has_room_for_scales(config))
    return invalid_argument(
        "row_delivery is receiver; format %s has %u bytes of scales for a row, and their tensor interleaves "
        "rows: they must be at most %u, the bytes of an expert's row",
        format_layout(config).name, format_layout(config).scales_bytes,
        combine_row_bytes(config.combine_format, config.hidden));
  return Status();
}

Status check_reduction(const ExpertParallelConfig& config) {
  if (!config.reduce_at_owner) return Status();
  if (config.protocol == Protocol::kSlotted)
    return invalid_argument(
        "reduce_at_owner must be false where protocol is slotted: it needs the direct one");
  if (config.own_format != nullptr && config.own_format->near.direct == nullptr)
    return invalid_argument("reduce_at_owner must be false in own_format %s, which is no DirectFormat",
                            format_layout(config).name);
  if (config.row_layout == RowLayout::kPerRank)
    return invalid_argument(
        "reduce_at_owner must be false where row_layout is per-rank: the caller sums up there");
  if (config.routing == Routing::kSkipAllToAll)
    return invalid_argument("reduce_at_owner must be false where the all-to-all is skipped: nothing is sent");
  return Status();
}

Status check_start(const ExpertParallelConfig& config, int n_ranks) {
  if (config.combine_start == CombineStart::kBehindExperts) return Status();
  if (config.combine_start != CombineStart::kWithExperts)
    return invalid_argument("combine_start is %d; it must be behind-experts or with-experts",
                            static_cast<int>(config.combine_start));
  const char* wrong = nullptr;
  if (config.protocol == Protocol::kSlotted)
    wrong = "protocol must be direct";
  else if (config.combine_format != CombineFormat::kBF16)
    wrong = "combine_format must be bf16";
  else if (config.reduce_at_owner)
    wrong = "reduce_at_owner must be false: sums are made when all experts have ended";
  else if (config.row_layout == RowLayout::kPerRank)
    wrong = "row_layout must not be per-rank, where no rows are those of one expert";
  else if (config.own_epilogue != nullptr)
    wrong = "own_epilogue must be null";
  else if (needs_wire(config, n_ranks))
    wrong = "all ranks must reach each other's memory, without a wire";
  return wrong == nullptr ? Status() : invalid_argument("combine_start is with-experts; %s", wrong);
}

Status check_seats(const ExpertParallelConfig& config, int n_ranks) {
  SWITCHYARD_RETURN_IF_ERROR(
      check_range("max_experts_per_rank", config.max_experts_per_rank, 0, kMaxExperts));
  if (config.placement)
    SWITCHYARD_RETURN_IF_ERROR(check_placement(*config.placement, config.n_experts, n_ranks));
  const int num_seats = num_seats_per_rank(config, n_ranks);
  if (num_seats > kMaxExperts / n_ranks)
    return invalid_argument(
        "%d experts per rank (placement, max_experts_per_rank) on %d ranks make %lld seats; at most %d",
        num_seats, n_ranks, static_cast<long long>(num_seats) * n_ranks, kMaxExperts);
  if (config.own_format != nullptr && config.own_format->layout != nullptr &&
      format_layout(config).encodes_by_expert && has_seat_table(config, n_ranks))
    return invalid_argument(
        "own_format %s encodes by expert; it needs an even division of n_experts (%d) by the number of ranks "
        "(%d), without placement or max_experts_per_rank",
        format_layout(config).name, config.n_experts, n_ranks);
  return Status();
}

Status check_own_format(const ExpertParallelConfig& config) {
  if (config.dispatch_format != TokenFormatKind::kBF16)
    return invalid_argument("dispatch_format is %s; it must be left bf16 where own_format is given",
                            to_string(config.dispatch_format));
  if (config.own_format->layout == nullptr || config.own_format->near.slotted == nullptr)
    return invalid_argument("own_format has no kernels; own_format<Format>() makes one that has");
  SWITCHYARD_RETURN_IF_ERROR(config.own_format->check(config.hidden));
  const FormatLayout layout = format_layout(config);
  if (config.protocol == Protocol::kDirect && config.own_format->near.direct == nullptr)
    return invalid_argument("protocol is direct; own_format %s is no DirectFormat: only slotted carries it",
                            layout.name);
  if (layout.encoded_bytes == 0 || layout.encoded_bytes % 16 != 0)
    return invalid_argument(
        "own_format %s: encoded_bytes() is %u with hidden %d; it must be a multiple of 16", layout.name,
        layout.encoded_bytes, config.hidden);
  if (config.own_format->near.direct != nullptr && layout.row_bytes % 16 != 0)
    return invalid_argument("own_format %s: row_bytes() is %u with hidden %d; it must be a multiple of 16",
                            layout.name, layout.row_bytes, config.hidden);
  if (layout.row_alignment == 0)
    return invalid_argument("own_format %s: row_alignment() is 0; it must be at least 1", layout.name);
  return Status();
}

}  // namespace

int num_seats_per_rank(const ExpertParallelConfig& config, int n_ranks) {
  const int num_needed =
      config.placement ? config.placement->num_seats_per_rank() : (config.n_experts + n_ranks - 1) / n_ranks;
  return std::max(num_needed, config.max_experts_per_rank);
}

bool has_seat_table(const ExpertParallelConfig& config, int n_ranks) {
  return config.placement || config.max_experts_per_rank > 0 || config.n_experts % n_ranks != 0;
}

ExpertPlacement placement_of(const ExpertParallelConfig& config, int n_ranks) {
  return config.placement ? *config.placement : ExpertPlacement::even(config.n_experts, n_ranks).value();
}

Status check_placement(const ExpertPlacement& placement, int n_experts, int n_ranks) {
  if (placement.n_experts() != n_experts)
    return invalid_argument("placement has %d experts; n_experts is %d", placement.n_experts(), n_experts);
  if (placement.n_ranks() != n_ranks)
    return invalid_argument("placement has %d ranks; there are %d", placement.n_ranks(), n_ranks);
  return Status();
}

bool needs_wire(const ExpertParallelConfig& config, int n_ranks) {
  const bool has_far_ranks = config.p2p_world_size != 0 && config.p2p_world_size < n_ranks;
  return config.routing == Routing::kAllToAll && (has_far_ranks || n_ranks > kMaxDirectRanks);
}

bool has_siblings(const ExpertParallelConfig& config) {
  return config.protocol == Protocol::kDirect && config.routing == Routing::kAllToAll &&
         config.row_layout != RowLayout::kPerRank;
}

bool has_equal_siblings(const ExpertParallelConfig& config) {
  return has_siblings(config) && !format_layout(config).encodes_by_expert && has_room_for_scales(config);
}

bool links_rows(const ExpertParallelConfig& config) {
  return has_siblings(config) && (config.row_delivery == RowDelivery::kReceiver || config.reduce_at_owner);
}

bool sends_scales(const ExpertParallelConfig& config, int n_ranks) {
  return config.protocol == Protocol::kDirect && config.own_format == nullptr &&
         format_layout(config).interleaves_rows && !links_rows(config) && !needs_wire(config, n_ranks) &&
         config.max_tokens_per_rank <= kEpLimits.max_tokens_sending_scales;
}

FormatLayout format_layout(const ExpertParallelConfig& config) {
  if (config.own_format != nullptr) return config.own_format->layout(config.hidden);
  const TokenFormatInfo info = info_of(config.dispatch_format);
  return {.name = info.name,
          .encoded_bytes = info.encoded_bytes(config.hidden),
          .row_bytes = info.row_bytes(config.hidden),
          .scales_bytes = static_cast<uint32_t>(info.num_scales(config.hidden) * info.scale_bytes),
          .row_alignment = info.row_alignment,
          .encodes_by_expert = info.encodes_by_expert,
          .interleaves_rows = info.interleaves_rows(),
          .has_tiled_scales = info.placement == ScalePlacement::kTiled};
}

CheckedSize scale_tensor_bytes(const ExpertParallelConfig& config, uint32_t max_rows) {
  return config.own_format != nullptr
             ? config.own_format->scale_tensor_bytes(max_rows, config.hidden)
             : info_of(config.dispatch_format).scale_tensor_bytes(max_rows, config.hidden);
}

Status validate(const ExpertParallelConfig& config, int n_ranks) {
  SWITCHYARD_RETURN_IF_ERROR(check_range("the number of ranks", n_ranks, 1, kMaxRanks));
  SWITCHYARD_RETURN_IF_ERROR(check_range("n_experts", config.n_experts, 1, kMaxExperts));
  SWITCHYARD_RETURN_IF_ERROR(check_range("top_k", config.top_k, 1, kMaxTopK));
  SWITCHYARD_RETURN_IF_ERROR(check_range("hidden", config.hidden, kHiddenMultiple, kMaxHidden));
  SWITCHYARD_RETURN_IF_ERROR(
      check_range("max_tokens_per_rank", config.max_tokens_per_rank, 0, kMaxTokensPerRank));
  SWITCHYARD_RETURN_IF_ERROR(check_range("steps_in_flight", config.steps_in_flight, 1, kMaxStepsInFlight));
  SWITCHYARD_RETURN_IF_ERROR(check_range("n_sms", config.n_sms, 0, 65535));
  SWITCHYARD_RETURN_IF_ERROR(check_range("num_threads", config.num_threads, 0, 1024));
  SWITCHYARD_RETURN_IF_ERROR(check_range("p2p_world_size", config.p2p_world_size, 0, kMaxRanks));
  if (config.routing == Routing::kSkipAllToAll && n_ranks > kMaxDirectRanks)
    return invalid_argument(
        "the number of ranks is %d; it must be 1..%d where the all-to-all is skipped: all_reduce() has no "
        "wire",
        n_ranks, kMaxDirectRanks);
  SWITCHYARD_RETURN_IF_ERROR(check_seats(config, n_ranks));
  SWITCHYARD_RETURN_IF_ERROR(check_start(config, n_ranks));
  if (config.hidden % kHiddenMultiple != 0)
    return invalid_argument("hidden is %d; it must be a multiple of %d", config.hidden, kHiddenMultiple);
  SWITCHYARD_RETURN_IF_ERROR(check_hidden(config.dispatch_format, config.hidden));
  if (config.own_format != nullptr) SWITCHYARD_RETURN_IF_ERROR(check_own_format(config));
  if (config.own_epilogue != nullptr && config.routing == Routing::kSkipAllToAll)
    return invalid_argument(
        "own_epilogue must be null where the all-to-all is skipped: combine leaves partial sums there");
  if (const Status status = check_hidden(kind_of(config.combine_format), config.hidden); !status.ok())
    return invalid_argument("combine_format: %s", status.message().c_str());
  if (config.routing == Routing::kAllToAll &&
      (config.allreduce_world_size < 0 || config.allreduce_world_size > 1))
    return invalid_argument("allreduce_world_size is %d; it must be 0 or 1 where tokens are exchanged",
                            config.allreduce_world_size);
  if (config.routing == Routing::kSkipAllToAll && config.capacity_factor != 0)
    return invalid_argument(
        "capacity_factor is %g; it must be 0 where the all-to-all is skipped: there is always room",
        config.capacity_factor);
  if (config.allreduce_world_size < 0 || n_ranks % num_reducing_ranks(config, n_ranks) != 0)
    return invalid_argument("allreduce_world_size is %d; it must divide the number of ranks (%d), or be 0",
                            config.allreduce_world_size, n_ranks);
  SWITCHYARD_RETURN_IF_ERROR(check_row_layout(config, n_ranks));
  SWITCHYARD_RETURN_IF_ERROR(check_row_sets(config, n_ranks));
  SWITCHYARD_RETURN_IF_ERROR(check_delivery(config));
  SWITCHYARD_RETURN_IF_ERROR(check_reduction(config));
  SWITCHYARD_RETURN_IF_ERROR(check_input_scales(config));
  if (config.num_threads % kWarpSize != 0)
    return invalid_argument("num_threads is %d; it must be a multiple of %d", config.num_threads, kWarpSize);
  if (!(config.capacity_factor >= 0 && config.capacity_factor <= kMaxRanks))
    return invalid_argument("capacity_factor is %g; it must be 0 (chosen) .. %d", config.capacity_factor,
                            kMaxRanks);
  if (config.timeout_ns == 0 || config.timeout_ns > kMaxTimeoutNs)
    return invalid_argument("timeout_ns is %llu; it must be 1..%llu (a day)",
                            static_cast<unsigned long long>(config.timeout_ns),
                            static_cast<unsigned long long>(kMaxTimeoutNs));
  if (config.first_timeout_ns > kMaxTimeoutNs)
    return invalid_argument("first_timeout_ns is %llu; it must be 0 (chosen) .. %llu (a day)",
                            static_cast<unsigned long long>(config.first_timeout_ns),
                            static_cast<unsigned long long>(kMaxTimeoutNs));
  return Status();
}

uint64_t first_timeout_ns(const ExpertParallelConfig& config) {
  constexpr uint64_t kAtStartUp = 60'000'000'000;
  if (config.first_timeout_ns != 0) return config.first_timeout_ns;
  return config.timeout_ns == ExpertParallelConfig{}.timeout_ns ? kAtStartUp : config.timeout_ns;
}

EpShape exchange_shape(const ExpertParallelConfig& config, int n_ranks) {
  EpShape shape = shape_of(config, n_ranks);
  if (config.row_layout != RowLayout::kPerRank) return shape;
  shape.n_experts = shape.num_ids = shape.n_ranks;
  return shape;
}

EpShape shape_of(const ExpertParallelConfig& config, int n_ranks) {
  const int num_exchanging = num_exchanging_ranks(config, n_ranks);
  return {.n_ranks = num_exchanging,
          .n_experts = num_seats_per_rank(config, n_ranks) * num_exchanging,
          .top_k = config.top_k,
          .hidden = config.hidden,
          .max_tokens_per_rank = config.max_tokens_per_rank,
          .p2p_world_size = config.p2p_world_size == 0 ? num_exchanging : config.p2p_world_size,
          .num_ids = config.n_experts};
}

int num_exchanging_ranks(const ExpertParallelConfig& config, int n_ranks) {
  return config.routing == Routing::kSkipAllToAll ? 1 : n_ranks;
}

int num_reducing_ranks(const ExpertParallelConfig& config, int n_ranks) {
  return config.allreduce_world_size == 0 ? n_ranks : config.allreduce_world_size;
}

namespace {

// Counts every token of every rank, top_k times; per rank, once.
uint64_t worst_case_copies(const ExpertParallelConfig& config, int n_ranks) {
  const int num_copies = config.row_layout == RowLayout::kPerRank ? 1 : config.top_k;
  return static_cast<uint64_t>(num_exchanging_ranks(config, n_ranks)) *
         static_cast<uint64_t>(config.max_tokens_per_rank) * static_cast<uint64_t>(num_copies);
}
// Counts the shared expert's rows, and at most as many as pad each group to its alignment.
uint64_t other_rows(const ExpertParallelConfig& config, int n_ranks) {
  const bool has_shared = config.shared_expert == SharedExpert::kFused;
  return (has_shared ? static_cast<uint64_t>(config.max_tokens_per_rank) : 0) +
         num_groups(config, n_ranks) * (group_layout(config, n_ranks).alignment - 1);
}

}  // namespace

bool has_group_in_front(const ExpertParallelConfig& config) {
  return config.shared_expert == SharedExpert::kFused || config.row_sets > 1;
}

int num_expert_groups(const ExpertParallelConfig& config, int n_ranks) {
  return config.row_layout == RowLayout::kPerRank ? 1 : num_seats_per_rank(config, n_ranks);
}

uint64_t num_groups(const ExpertParallelConfig& config, int n_ranks) {
  return static_cast<uint64_t>(num_expert_groups(config, n_ranks)) + (has_group_in_front(config) ? 1 : 0);
}

GroupLayout group_layout(const ExpertParallelConfig& config, int n_ranks) {
  const uint32_t alignment =
      std::lcm(format_layout(config).row_alignment, static_cast<uint32_t>(config.row_alignment));
  if (config.row_layout != RowLayout::kMasked) return {.alignment = alignment};
  int capacity = config.max_rows_per_expert;
  if (capacity == 0) capacity = num_exchanging_ranks(config, n_ranks) * config.max_tokens_per_rank;
  // Without all-to-all a rank cannot tell the others that a step is skipped: repeated ids must fit, too.
  if (config.routing == Routing::kSkipAllToAll) capacity = config.max_tokens_per_rank * config.top_k;
  return {.alignment = alignment, .capacity = align_up(static_cast<uint32_t>(capacity), alignment)};
}

// Such a kernel holds its multiprocessors while it waits for the dispatch of ranks that may not have begun.
// With one multiprocessor for each block that can be resident at once, those ranks' blocks can always become
// resident, whatever else each kernel needs. Every flight may have such a kernel in the place of a dispatch,
// and the launch in front of it if launches are dependent.
int early_block_limit(const ExpertParallelConfig& config, int multiprocessors_per_rank) {
  const int limit =
      multiprocessors_per_rank / config.steps_in_flight - (config.dependent_launch ? config.n_sms : 0);
  return config.n_sms <= limit ? limit : 0;
}

uint64_t worst_case_rows(const ExpertParallelConfig& config, int n_ranks) {
  if (config.row_layout == RowLayout::kMasked)
    return num_groups(config, n_ranks) * group_layout(config, n_ranks).capacity;
  return worst_case_copies(config, n_ranks) + other_rows(config, n_ranks);
}

uint64_t row_capacity(const ExpertParallelConfig& config, int n_ranks) {
  const uint64_t copies = worst_case_copies(config, n_ranks), others = other_rows(config, n_ranks);
  // No step is lost unless a factor is asked for. Every set begins where a group may, and where a band of
  // scales does.
  if (config.row_sets > 1) {
    const uint64_t alignment = std::lcm(uint64_t{group_layout(config, n_ranks).alignment},
                                        format_layout(config).interleaves_rows ? kScaleBandRows : 1u);
    return align_up(worst_case_rows(config, n_ranks), alignment) * static_cast<uint64_t>(config.row_sets);
  }
  if (config.capacity_factor == 0) return worst_case_rows(config, n_ranks);
  const double even_share = static_cast<double>(config.max_tokens_per_rank) * config.top_k;
  return std::min(copies, static_cast<uint64_t>(std::ceil(config.capacity_factor * even_share))) + others;
}

ProtocolChoice choose_protocol(const ExpertParallelConfig& config, int n_ranks) {
  if (config.protocol != Protocol::kAutomatic) return {config.protocol, "asked for"};
  if (config.own_format != nullptr && config.own_format->near.direct == nullptr)
    return {Protocol::kSlotted,
            "format " + std::string(format_layout(config).name) + " is the caller's own and no DirectFormat"};
  if (config.row_layout == RowLayout::kPerRank)
    return {Protocol::kDirect, "rows per rank are the direct protocol's"};
  if (config.row_delivery == RowDelivery::kReceiver)
    return {Protocol::kDirect, "rows that the receiver lays out are the direct protocol's"};
  if (config.reduce_at_owner) return {Protocol::kDirect, "sums at the owner are the direct protocol's"};
  if (config.combine_start == CombineStart::kWithExperts)
    return {Protocol::kDirect, "a combine that starts with the experts is the direct protocol's"};
  const int num_exchanging = num_exchanging_ranks(config, n_ranks);
  if (num_exchanging == 1) return {Protocol::kDirect, "every row moves once, and no rank waits for another"};
  if (num_exchanging > kEpLimits.max_direct_ranks &&
      config.max_tokens_per_rank <= kEpLimits.max_slotted_tokens)
    return {Protocol::kSlotted, "at most " + std::to_string(config.max_tokens_per_rank) +
                                    " tokens of each of " + std::to_string(num_exchanging) +
                                    " ranks are sent before their counts are known"};
  return {Protocol::kDirect, "every row moves once, when " + std::to_string(num_exchanging) +
                                 " ranks have told each other their counts"};
}

}  // namespace switchyard
