#include "exchange_memory.hpp"

#include <cstring>
#include <iterator>

#include "ep_config.hpp"
#include "switchyard/detail/ep/all_reduce_params.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/layout.hpp"

namespace switchyard {

uint32_t ExchangeSizes::token_bytes(const ExpertParallelConfig& config) {
  return static_cast<uint32_t>(config.hidden) * static_cast<uint32_t>(sizeof(bf16));
}
uint32_t ExchangeSizes::encoded_bytes(const ExpertParallelConfig& config) {
  return format_layout(config).encoded_bytes;
}
uint32_t ExchangeSizes::combine_bytes(const ExpertParallelConfig& config) {
  return combine_row_bytes(config.combine_format, config.hidden);
}
uint32_t ExchangeSizes::message_bytes(const ExpertParallelConfig& config) {
  return MessageLayout{encoded_bytes(config), config.top_k}.bytes();
}

namespace {

// The parts lie one after the other: rows, their scales, the scales that owners fetch from here, the sources
// of rows' scales, and expert outputs.
Status assign_rows(const ExpertParallelConfig& config, ExchangeSizes& sizes) {
  constexpr uint64_t kAlignment = 256;
  const FormatLayout format = format_layout(config);
  sizes.has_encoded_outputs =
      config.protocol == Protocol::kDirect && config.combine_format != CombineFormat::kBF16;
  const uint32_t output_bytes =
      sizes.has_encoded_outputs ? ExchangeSizes::combine_bytes(config) : ExchangeSizes::token_bytes(config);
  const bool stages_scales = config.protocol == Protocol::kDirect && format.interleaves_rows;
  const TokenScalesLayout token_scales{config.max_tokens_per_rank, config.top_k, format.encodes_by_expert,
                                       align_up(format.scales_bytes, 16u)};
  const CheckedSize parts[] = {
      CheckedSize(sizes.row_capacity) * CheckedSize(format.row_bytes),
      scale_tensor_bytes(config, static_cast<uint32_t>(sizes.row_capacity)),
      stages_scales ? token_scales.bytes() : CheckedSize(0),
      CheckedSize(stages_scales ? sizes.row_capacity : 0) * CheckedSize(sizeof(uint32_t)),
      CheckedSize(sizes.row_capacity) * CheckedSize(output_bytes)};
  uint64_t* ends[] = {&sizes.scales_offset, &sizes.token_scales_offset, &sizes.scale_sources_offset,
                      &sizes.expert_outputs_offset, &sizes.rows};
  CheckedSize end(0);
  for (size_t i = 0; i < std::size(parts); ++i) {
    end = end + parts[i] + CheckedSize(kAlignment);
    if (!end.ok() || sizes.row_capacity > UINT32_MAX || end.value() / OutputCellLayout::kUnit > UINT32_MAX)
      return invalid_argument(
          "max_tokens_per_rank %d, top_k %d and capacity_factor %g make %llu rows per rank; their bytes "
          "(hidden "
          "%d) must be below %llu",
          config.max_tokens_per_rank, config.top_k, config.capacity_factor,
          static_cast<unsigned long long>(sizes.row_capacity), config.hidden,
          static_cast<unsigned long long>(OutputCellLayout::kUnit) << 32);
    end = CheckedSize(end.value() / kAlignment * kAlignment);
    *ends[i] = end.value();
  }
  sizes.has_scales = parts[1].value() > 0;
  sizes.has_bf16_rows = config.own_format == nullptr && config.dispatch_format == TokenFormatKind::kBF16;
  return Status();
}

}  // namespace

Result<ExchangeSizes> ExchangeSizes::of(const ExpertParallelConfig& config, int n_ranks) {
  const EpShape shape = shape_of(config, n_ranks);
  const int tokens = config.max_tokens_per_rank;
  const bool has_shared = config.shared_expert == SharedExpert::kFused;
  const CheckedSize ids = CheckedSize(tokens) * CheckedSize(config.top_k);
  ExchangeSizes sizes{};
  sizes.row_capacity = switchyard::row_capacity(config, n_ranks);
  SWITCHYARD_RETURN_IF_ERROR(assign_rows(config, sizes));
  sizes.counters = static_cast<uint64_t>(SyncCounterLayout{shape.n_experts}.total_size()) * sizeof(int32_t);
  CheckedSize recv(0), combine(0), send(0), reduce(0);
  if (config.protocol == Protocol::kSlotted) {
    recv = DispatchRecvLayout{shape.n_experts / shape.n_ranks, shape.n_ranks, tokens, message_bytes(config)}
               .bytes();
    combine = CombineRecvLayout{tokens, config.top_k, combine_bytes(config)}.bytes();
    if (has_shared) send = DispatchSendLayout{tokens, message_bytes(config)}.bytes();
    sizes.combine_counts = CombineCountLayout{shape.n_experts}.bytes().value();
  } else {
    sizes.combine_counts = OutputCellLayout{shape.n_ranks}.bytes().value();
    sizes.count_table =
        CountTableLayout{shape.n_ranks, shape.n_experts + (has_shared ? 1 : 0)}.bytes().value();
    sizes.row_of = (ids * CheckedSize(sizeof(uint32_t))).value();
  }
  if (config.routing == Routing::kSkipAllToAll) {
    const AllReduceLayout layout{n_ranks, tokens, config.hidden};
    reduce = layout.value_bytes();
    sizes.reduce_cells = layout.cell_bytes();
  }
  if (!(recv + combine + send + reduce + CheckedSize(sizes.rows)).ok())
    return invalid_argument("the exchange buffers of %d tokens x %d experts x %u bytes exceed 64 bits",
                            tokens, config.n_experts, message_bytes(config));
  sizes.src_info = sizes.row_capacity * 2 * sizeof(int32_t);
  sizes.dispatch_counts = DispatchCountLayout{shape.n_experts, shape.n_ranks}.bytes().value();
  sizes.dispatch_recv = recv.value();
  sizes.combine_recv = combine.value();
  sizes.send = send.value();
  sizes.reduce_values = reduce.value();
  sizes.expert_scales = config.expert_input_scales.size() * sizeof(float);
  return sizes;
}

namespace {

Status allocate_into(DeviceMemory& memory, Device& device, uint64_t bytes) {
  if (bytes == 0) return Status();
  Result<DeviceMemory> allocated = DeviceMemory::allocate(device, bytes);
  if (!allocated.ok()) return allocated.status();
  memory = std::move(allocated).value();
  return Status();
}

}  // namespace

Result<ExchangeMemory> ExchangeMemory::allocate(Device& device, const ExchangeSizes& sizes,
                                                Protocol protocol) {
  ExchangeMemory memory;
  memory.protocol = protocol;
  const std::pair<DeviceMemory*, uint64_t> buffers[] = {{&memory.dispatch_recv, sizes.dispatch_recv},
                                                        {&memory.dispatch_counts, sizes.dispatch_counts},
                                                        {&memory.combine_recv, sizes.combine_recv},
                                                        {&memory.combine_counts, sizes.combine_counts},
                                                        {&memory.counters, sizes.counters},
                                                        {&memory.count_table, sizes.count_table},
                                                        {&memory.row_of, sizes.row_of},
                                                        {&memory.send, sizes.send},
                                                        {&memory.reduce_values, sizes.reduce_values},
                                                        {&memory.reduce_cells, sizes.reduce_cells},
                                                        {&memory.expert_scales, sizes.expert_scales},
                                                        {&memory.poison, 64}};
  for (const auto& [buffer, bytes] : buffers)
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(*buffer, device, bytes));
  if (protocol == Protocol::kDirect) SWITCHYARD_RETURN_IF_ERROR(memory.allocate_rows(device, sizes));
  Result<DeviceMemory> fault = DeviceMemory::allocate_host_visible(device, 2 * sizeof(FaultRecord));
  if (!fault.ok()) return fault.status();
  memory.fault = std::move(fault).value();
  return memory;
}

Status ExchangeMemory::allocate_rows(Device& device, const ExchangeSizes& sizes) {
  if (row_memory.as<void>() != nullptr) return Status();
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(row_memory, device, sizes.rows));
  return allocate_into(src_info, device, sizes.src_info);
}

RowBuffers ExchangeMemory::row_buffers(const ExchangeSizes& sizes) const {
  std::byte* rows = row_memory.as<std::byte>();
  if (rows == nullptr) return {};
  return {.rows = sizes.has_bf16_rows ? reinterpret_cast<bf16*>(rows) : nullptr,
          .src_info = src_info.as<int32_t>(),
          .expert_outputs = sizes.has_encoded_outputs
                                ? nullptr
                                : reinterpret_cast<bf16*>(rows + sizes.expert_outputs_offset),
          .max_rows = static_cast<uint32_t>(sizes.row_capacity),
          .encoded_rows = rows,
          .scales = sizes.has_scales ? rows + sizes.scales_offset : nullptr,
          .encoded_outputs = sizes.has_encoded_outputs ? rows + sizes.expert_outputs_offset : nullptr};
}

uint64_t ExchangeMemory::bytes() const {
  uint64_t bytes = 0;
  for (const DeviceMemory* buffer :
       {&dispatch_recv, &dispatch_counts, &combine_recv, &combine_counts, &counters, &count_table, &row_of,
        &row_memory, &src_info, &send, &reduce_values, &reduce_cells, &expert_scales})
    bytes += buffer->bytes();
  return bytes;
}

Status ExchangeMemory::clear(const Rank& owner) {
  const auto fill = [&](const DeviceMemory& memory, uint8_t value) {
    return memory.bytes() == 0
               ? Status()
               : owner.device().fill(memory.as<void>(), value, memory.bytes(), owner.stream());
  };
  const uint8_t nothing_arrived = protocol == Protocol::kSlotted ? 0xff : 0;
  SWITCHYARD_RETURN_IF_ERROR(fill(dispatch_counts, nothing_arrived));
  SWITCHYARD_RETURN_IF_ERROR(fill(combine_counts, nothing_arrived));
  for (const DeviceMemory* buffer : {&count_table, &counters, &poison, &reduce_cells})
    SWITCHYARD_RETURN_IF_ERROR(fill(*buffer, 0));
  std::memset(fault.as<void>(), 0, fault.bytes());
  return Status();
}

Status ExchangeMemory::overwrite(const Rank& owner, uint8_t value) const {
  for (const DeviceMemory* buffer :
       {&dispatch_recv, &combine_recv, &row_memory, &src_info, &row_of, &send, &reduce_values})
    if (buffer->bytes() > 0)
      SWITCHYARD_RETURN_IF_ERROR(
          owner.device().fill(buffer->as<void>(), value, buffer->bytes(), owner.stream()));
  return Status();
}

void ExchangeMemory::share_as(size_t rank, DispatchCall& call) const {
  const bool is_direct = protocol == Protocol::kDirect;
  call.step.recv_bufs.of_rank[rank] = (is_direct ? row_memory : dispatch_recv).as<std::byte>();
  call.step.recv_counts.of_rank[rank] = dispatch_counts.as<uint64_t>();
  call.direct.count_tables.of_rank[rank] = count_table.as<uint64_t>();
  call.direct.src_infos.of_rank[rank] = src_info.as<int32_t>();
}

void ExchangeMemory::share_as(size_t rank, CombineCall& call) const {
  const bool is_direct = protocol == Protocol::kDirect;
  call.step.recv_bufs.of_rank[rank] = (is_direct ? row_memory : combine_recv).as<std::byte>();
  call.step.recv_counts.of_rank[rank] = combine_counts.as<uint64_t>();
}

}  // namespace switchyard
