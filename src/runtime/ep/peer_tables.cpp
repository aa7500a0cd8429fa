#include "peer_tables.hpp"

#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard {

Result<PeerTables> PeerTables::upload(const Rank& owner, int rank, const std::vector<std::byte*>& arenas,
                                      const std::vector<bool>& is_near, uint64_t poison_offset,
                                      DeviceMemory& memory) {
  constexpr size_t kTables = 3;  // near arenas, their poison, all arenas
  if (memory.bytes() == 0) {
    Result<DeviceMemory> allocated =
        DeviceMemory::allocate(device_of(owner), kTables * arenas.size() * sizeof(std::byte*));
    if (!allocated.ok()) return allocated.status();
    memory = std::move(allocated).value();
  }
  const size_t capacity = memory.bytes() / kTables / sizeof(std::byte*);
  std::vector<std::byte*> table(kTables * capacity);
  for (size_t peer = 0; peer < arenas.size(); ++peer) {
    table[peer] = is_near[peer] ? arenas[peer] : nullptr;
    table[capacity + peer] = is_near[peer] ? arenas[peer] + poison_offset : nullptr;
    table[2 * capacity + peer] = arenas[peer];
  }
  std::byte** tables = memory.as<std::byte*>();
  SWITCHYARD_RETURN_IF_ERROR(
      device_of(owner).copy(tables, table.data(), table.size() * sizeof(table[0]), owner.stream()));
  return PeerTables{
      .arena_of_rank = tables,
      .poison_of_rank = reinterpret_cast<uint64_t* const*>(tables + capacity),
      .wire = {
          .rank = rank, .arena = arenas[static_cast<size_t>(rank)], .arena_of_rank = tables + 2 * capacity}};
}

}  // namespace switchyard
