#include "exchange_layout.hpp"

#include <cstdio>
#include <iterator>

#include "switchyard/detail/ep/all_reduce_params.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/layout.hpp"
#include "switchyard/detail/ep/tuning.hpp"

namespace switchyard {

uint32_t token_bytes(const ExpertParallelConfig& config) {
  return static_cast<uint32_t>(config.hidden) * static_cast<uint32_t>(sizeof(bf16));
}
uint32_t encoded_bytes(const ExpertParallelConfig& config) { return format_layout(config).encoded_bytes; }
uint32_t message_bytes(const ExpertParallelConfig& config) {
  return MessageLayout{encoded_bytes(config), config.top_k}.bytes();
}
uint32_t combine_bytes(const ExpertParallelConfig& config) {
  return combine_row_bytes(config.combine_format, config.hidden);
}

namespace {

constexpr uint64_t kAlignment = 256;
// Of rows, in whichever flight: a gather of rows that begin elsewhere takes 2% longer on an H200.
constexpr uint64_t kRowAlignment = 4096;

// The parts lie one after the other: rows, their scales, the scales that owners fetch from here, the sources
// of rows' scales, the links of rows and their weights, and expert outputs. Links have memory wherever rows
// can have siblings: so what is needed does not depend on where the ranks are.
Status assign_rows(const ExpertParallelConfig& config, ExchangeLayout& layout) {
  const FormatLayout format = format_layout(config);
  layout.has_encoded_outputs =
      config.protocol == Protocol::kDirect && config.combine_format != CombineFormat::kBF16;
  const uint32_t output_bytes = layout.has_encoded_outputs ? combine_bytes(config) : token_bytes(config);
  const bool stages_scales = config.protocol == Protocol::kDirect && format.interleaves_rows;
  const TokenScalesLayout token_scales{config.max_tokens_per_rank, config.top_k, format.encodes_by_expert,
                                       align_up(format.scales_bytes, 16u)};
  const uint64_t rows_per_set = layout.row_capacity / static_cast<uint64_t>(config.row_sets);
  const CheckedSize parts[] = {
      CheckedSize(layout.row_capacity) * CheckedSize(format.row_bytes),
      scale_tensor_bytes(config, static_cast<uint32_t>(layout.row_capacity)),
      stages_scales ? token_scales.bytes() : CheckedSize(0),
      CheckedSize(stages_scales ? layout.row_capacity : 0) * CheckedSize(sizeof(uint32_t)),
      CheckedSize(has_siblings(config) ? layout.row_capacity : 0) * CheckedSize(sizeof(uint32_t)),
      CheckedSize(config.reduce_at_owner ? layout.row_capacity : 0) * CheckedSize(sizeof(float)),
      // The rows of one step go back at a time.
      CheckedSize(rows_per_set) * CheckedSize(output_bytes)};
  uint64_t* ends[] = {&layout.scales_offset,    &layout.token_scales_offset, &layout.scale_sources_offset,
                      &layout.row_links_offset, &layout.row_weights_offset,  &layout.expert_outputs_offset,
                      &layout.row_memory_bytes};
  // Peers count the rows of outputs from the first set on: where that would be lies in this memory, too.
  const CheckedSize in_front = CheckedSize(layout.row_capacity - rows_per_set) * CheckedSize(output_bytes);
  CheckedSize end(0);
  for (size_t i = 0; i < std::size(parts); ++i) {
    end = end + parts[i];
    if (ends[i] == &layout.expert_outputs_offset && end.ok() && in_front.ok() &&
        end.value() < in_front.value())
      end = in_front;
    end = end + CheckedSize(kRowAlignment);
    if (!end.ok() || layout.row_capacity >= RowLink::kNone ||
        end.value() / OutputCellLayout::kUnit > UINT32_MAX)
      return invalid_argument(
          "max_tokens_per_rank %d, top_k %d and capacity_factor %g make %llu rows per rank; their bytes "
          "(hidden %d) must be below %llu",
          config.max_tokens_per_rank, config.top_k, config.capacity_factor,
          static_cast<unsigned long long>(layout.row_capacity), config.hidden,
          static_cast<unsigned long long>(OutputCellLayout::kUnit) << 32);
    end = CheckedSize(end.value() / kRowAlignment * kRowAlignment);
    *ends[i] = end.value();
  }
  layout.src_info_bytes = layout.row_capacity * 2 * sizeof(int32_t);
  layout.has_scales = parts[1].value() > 0;
  layout.has_bf16_rows = config.own_format == nullptr && config.dispatch_format == TokenFormatKind::kBF16;
  return Status();
}

// Lays parts end to end, each aligned.
class PartList {
 public:
  void add(ArenaPart& part, CheckedSize bytes) {
    if (bytes.ok()) part = {end_.ok() ? end_.value() : 0, bytes.value()};
    end_ = end_ + bytes;
    align(kAlignment);
  }
  void add(ArenaPart& part, uint64_t bytes) { add(part, CheckedSize(bytes)); }
  void align(uint64_t alignment) {
    end_ = end_ + CheckedSize(alignment - 1);
    if (end_.ok()) end_ = CheckedSize(end_.value() / alignment * alignment);
  }
  CheckedSize end() const { return end_; }

 private:
  CheckedSize end_{0};
};

void add_slotted(const ExpertParallelConfig& config, const EpShape& shape, bool has_wire,
                 ExchangeLayout& layout, PartList& parts) {
  const int tokens = config.max_tokens_per_rank;
  parts.add(layout.combine_recv, CombineRecvLayout{tokens, config.top_k, combine_bytes(config)}.bytes());
  parts.add(layout.combine_counts, CombineCountLayout{shape.n_experts}.bytes());
  const int messages_per_token = has_wire && format_layout(config).encodes_by_expert ? config.top_k + 1 : 1;
  if (has_wire || config.shared_expert == SharedExpert::kFused)
    parts.add(layout.send, DispatchSendLayout{tokens, messages_per_token, message_bytes(config)}.bytes());
  // Every row that came over the wire goes back from here.
  if (has_wire)
    parts.add(layout.combine_send, CheckedSize(shape.n_ranks) * CheckedSize(tokens) *
                                       CheckedSize(config.top_k) * CheckedSize(combine_bytes(config)));
}

void add_direct(const ExpertParallelConfig& config, const EpShape& shape, ExchangeLayout& layout,
                PartList& parts) {
  const int num_counts = shape.n_experts + (has_group_in_front(config) ? 1 : 0);
  parts.align(kRowAlignment);
  parts.add(layout.row_memory, layout.row_memory_bytes);
  parts.add(layout.src_info, layout.src_info_bytes);
  parts.add(layout.combine_counts, OutputCellLayout{shape.n_ranks, shape.n_experts}.bytes());
  parts.add(layout.parts_done,
            CheckedSize(num_groups(config, shape.n_ranks)) * CheckedSize(sizeof(uint32_t)));
  parts.add(layout.count_table, CountTableLayout{shape.n_ranks, num_counts}.bytes());
  const CheckedSize choice_bytes =
      CheckedSize(config.max_tokens_per_rank) * CheckedSize(config.top_k) * CheckedSize(sizeof(uint32_t));
  parts.add(layout.row_of, choice_bytes);
  parts.add(layout.reopened_offsets,
            CheckedSize(2 * num_expert_groups(config, shape.n_ranks) + 4) * CheckedSize(sizeof(uint32_t)));
  if (config.row_layout != RowLayout::kPerRank) return;
  // Peers read seats and weights, so that a step behind an abandoned one has copies of its own.
  for (ArenaPart* part : {&layout.kept_seats, &layout.kept_weights})
    parts.add(*part, choice_bytes + choice_bytes);
  for (ArenaPart* part : {&layout.rank_ids, &layout.rank_weights}) parts.add(*part, choice_bytes);
}

// What the direct protocol keeps and receives where ranks are reached over a wire.
void add_far(const ExpertParallelConfig& config, const EpShape& shape, ExchangeLayout& layout,
             PartList& parts) {
  const FormatLayout format = format_layout(config);
  const CheckedSize tokens(config.max_tokens_per_rank), ids = tokens * CheckedSize(config.top_k);
  const CheckedSize num_kept = format.encodes_by_expert ? ids : tokens;
  const uint32_t scales_stride = align_up(format.scales_bytes, 16u);
  parts.add(layout.counts_ready, CheckedSize(shape.n_ranks) * CheckedSize(sizeof(uint64_t)));
  parts.add(layout.kept_rows, num_kept * CheckedSize(format.row_bytes));
  parts.add(layout.kept_scales, num_kept * CheckedSize(scales_stride));
  parts.add(layout.kept_sources, ids * CheckedSize(sizeof(uint64_t)));
  parts.add(layout.combine_recv,
            CombineRecvLayout{config.max_tokens_per_rank, config.top_k, combine_bytes(config)}.bytes());
  if (has_siblings(config)) parts.add(layout.kept_links, ids * CheckedSize(sizeof(uint32_t)));
  if (config.reduce_at_owner) parts.add(layout.kept_row_weights, ids * CheckedSize(sizeof(float)));
  if (!format.interleaves_rows) return;
  parts.add(layout.kept_scale_sources, ids * CheckedSize(sizeof(uint32_t)));
  parts.add(layout.arrived_scales, CheckedSize(layout.row_capacity) * CheckedSize(scales_stride));
}

}  // namespace

Result<ExchangeLayout> ExchangeLayout::of(const ExpertParallelConfig& config, int n_ranks, bool has_wire) {
  const EpShape shape = exchange_shape(config, n_ranks);
  ExchangeLayout layout{};
  layout.row_capacity = switchyard::row_capacity(config, n_ranks);
  SWITCHYARD_RETURN_IF_ERROR(assign_rows(config, layout));
  PartList parts;
  parts.add(layout.poison, 64);
  parts.add(layout.counters,
            static_cast<uint64_t>(SyncCounterLayout{shape.n_experts}.total_size()) * sizeof(int32_t));
  parts.add(layout.dispatch_counts, DispatchCountLayout{shape.n_experts, shape.n_ranks}.bytes());
  if (config.protocol == Protocol::kSlotted)
    add_slotted(config, shape, has_wire, layout, parts);
  else
    add_direct(config, shape, layout, parts);
  if (has_wire && config.protocol == Protocol::kDirect) add_far(config, shape, layout, parts);
  const int num_reducing = num_reducing_ranks(config, n_ranks);
  if (config.routing == Routing::kSkipAllToAll && num_reducing > 1) {
    const AllReduceLayout reduce{num_reducing, config.max_tokens_per_rank, config.hidden};
    parts.add(layout.reduce_values, reduce.value_bytes());
    parts.add(layout.reduce_cells, reduce.cell_bytes());
  }
  const bool has_table = has_seat_table(config, n_ranks);
  const uint64_t num_seats = static_cast<uint64_t>(shape.n_experts);
  if (!config.expert_input_scales.empty())
    parts.add(layout.expert_scales,
              (has_table ? num_seats : config.expert_input_scales.size()) * sizeof(float));
  if (has_table) parts.add(layout.seat_table, static_cast<uint64_t>(config.n_experts) * sizeof(int32_t));
  if (config.counts_experts) parts.add(layout.expert_counts, num_seats * sizeof(int64_t));
  parts.add(layout.narrowed_ids, CheckedSize(config.max_tokens_per_rank) * CheckedSize(config.top_k) *
                                     CheckedSize(sizeof(int32_t)));
  // Last, so that a message behind the last slot lies in no buffer, and the emulator stops whoever writes it.
  if (config.protocol == Protocol::kSlotted)
    parts.add(layout.dispatch_recv, DispatchRecvLayout{shape.n_experts / shape.n_ranks, shape.n_ranks,
                                                       config.max_tokens_per_rank, message_bytes(config)}
                                        .bytes());
  else
    parts.align(kRowAlignment);
  if (!parts.end().ok())
    return invalid_argument("the exchange buffers of %d tokens x %d experts x %u bytes exceed 64 bits",
                            config.max_tokens_per_rank, config.n_experts, message_bytes(config));
  layout.arena_bytes = parts.end().value();
  return layout;
}

std::string memory_advice(const ExpertParallelConfig& config, int n_ranks) {
  if (config.protocol != Protocol::kDirect || config.row_layout != RowLayout::kRagged ||
      config.routing != Routing::kAllToAll)
    return "";
  std::string advice;
  const auto add = [&](const std::string& setting, const ExpertParallelConfig& other) {
    if (!validate(other, n_ranks).ok()) return;
    const Result<ExchangeLayout> needed = ExchangeLayout::of(other, n_ranks, needs_wire(other, n_ranks));
    if (!needed.ok()) return;
    char text[64];
    std::snprintf(text, sizeof(text), " %.2f GB",
                  static_cast<double>(needed.value().arena_bytes) * other.steps_in_flight * 1e-9);
    advice += (advice.empty() ? "" : ", ") + setting + text;
  };
  ExpertParallelConfig per_rank = config, smaller = config;
  per_rank.row_layout = RowLayout::kPerRank;
  per_rank.capacity_factor = 0;
  smaller.capacity_factor = kEpLimits.suggested_capacity_factor;
  add("row_layout per-rank would need", per_rank);
  char setting[64];
  std::snprintf(setting, sizeof(setting), "capacity_factor %g", smaller.capacity_factor);
  if (config.capacity_factor == 0 || config.capacity_factor > smaller.capacity_factor) add(setting, smaller);
  return advice;
}

}  // namespace switchyard
