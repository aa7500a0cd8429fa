#include "exchange_memory.hpp"

#include <cstring>

#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard {

Status ExchangeMemory::allocate_rows(Device& device) {
  if (protocol == Protocol::kDirect || row_memory.as<void>() != nullptr) return Status();
  const auto allocate = [&](DeviceMemory& memory, uint64_t bytes) {
    Result<DeviceMemory> allocated = DeviceMemory::allocate(device, bytes);
    if (allocated.ok()) memory = std::move(allocated).value();
    return allocated.status();
  };
  SWITCHYARD_RETURN_IF_ERROR(allocate(row_memory, layout->row_memory_bytes));
  return layout->src_info_bytes == 0 ? Status() : allocate(src_info, layout->src_info_bytes);
}

RowBuffers ExchangeMemory::row_buffers() const {
  const bool is_direct = protocol == Protocol::kDirect;
  std::byte* rows = is_direct ? at<std::byte>(layout->row_memory) : row_memory.as<std::byte>();
  if (rows == nullptr) return {};
  std::byte* outputs = rows + layout->expert_outputs_offset;
  return {.rows = layout->has_bf16_rows ? reinterpret_cast<bf16*>(rows) : nullptr,
          .src_info = is_direct ? at<int32_t>(layout->src_info) : src_info.as<int32_t>(),
          .expert_outputs = layout->has_encoded_outputs ? nullptr : reinterpret_cast<bf16*>(outputs),
          .max_rows = static_cast<uint32_t>(layout->row_capacity),
          .encoded_rows = rows,
          .scales = layout->has_scales ? rows + layout->scales_offset : nullptr,
          .encoded_outputs = layout->has_encoded_outputs ? outputs : nullptr,
          .expert_tensor_scales = nullptr};
}

Status ExchangeMemory::clear(const Rank& owner) {
  const auto fill = [&](const ArenaPart& part, uint8_t value) {
    return part.bytes == 0 ? Status()
                           : device_of(owner).fill(arena + part.offset, value, part.bytes, owner.stream());
  };
  const uint8_t nothing_arrived = protocol == Protocol::kSlotted ? 0xff : 0;
  SWITCHYARD_RETURN_IF_ERROR(fill(layout->dispatch_counts, nothing_arrived));
  SWITCHYARD_RETURN_IF_ERROR(fill(layout->combine_counts, nothing_arrived));
  for (const ArenaPart* part : {&layout->count_table, &layout->counters, &layout->counts_ready,
                                &layout->poison, &layout->reduce_cells, &layout->parts_done})
    SWITCHYARD_RETURN_IF_ERROR(fill(*part, 0));
  std::memset(static_cast<void*>(faults), 0, 2 * sizeof(FaultRecord));
  return Status();
}

Status ExchangeMemory::overwrite(const Rank& owner, uint8_t value) const {
  const auto fill = [&](void* memory, uint64_t bytes) {
    return bytes == 0 ? Status() : device_of(owner).fill(memory, value, bytes, owner.stream());
  };
  for (const ArenaPart* part : {&layout->dispatch_recv,      &layout->combine_recv, &layout->row_memory,
                                &layout->src_info,           &layout->row_of,       &layout->send,
                                &layout->reduce_values,      &layout->combine_send, &layout->kept_rows,
                                &layout->narrowed_ids,       &layout->kept_scales,  &layout->kept_sources,
                                &layout->kept_scale_sources, &layout->kept_links,   &layout->kept_row_weights,
                                &layout->arrived_scales,     &layout->kept_seats,   &layout->kept_weights,
                                &layout->rank_ids,           &layout->rank_weights})
    SWITCHYARD_RETURN_IF_ERROR(fill(arena + part->offset, part->bytes));
  SWITCHYARD_RETURN_IF_ERROR(fill(row_memory.as<void>(), row_memory.bytes()));
  return fill(src_info.as<void>(), src_info.bytes());
}

}  // namespace switchyard
