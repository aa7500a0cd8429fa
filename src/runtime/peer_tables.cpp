#include "peer_tables.hpp"

namespace switchyard {

Result<PeerTables> PeerTables::upload(const Rank& owner, int rank, const std::vector<std::byte*>& arenas,
                                      const std::vector<bool>& is_near, uint64_t poison_offset,
                                      DeviceMemory& memory) {
  const size_t n_ranks = arenas.size();
  std::vector<std::byte*> table;  // near arenas, their poison, all arenas
  for (size_t peer = 0; peer < n_ranks; ++peer) table.push_back(is_near[peer] ? arenas[peer] : nullptr);
  for (size_t peer = 0; peer < n_ranks; ++peer)
    table.push_back(is_near[peer] ? arenas[peer] + poison_offset : nullptr);
  table.insert(table.end(), arenas.begin(), arenas.end());
  Result<DeviceMemory> allocated = DeviceMemory::allocate(owner.device(), table.size() * sizeof(table[0]));
  if (!allocated.ok()) return allocated.status();
  memory = std::move(allocated).value();
  std::byte** tables = memory.as<std::byte*>();
  SWITCHYARD_RETURN_IF_ERROR(
      owner.device().copy(tables, table.data(), table.size() * sizeof(table[0]), owner.stream()));
  return PeerTables{
      .arena_of_rank = tables,
      .poison_of_rank = reinterpret_cast<uint64_t* const*>(tables + n_ranks),
      .wire = {
          .rank = rank, .arena = arenas[static_cast<size_t>(rank)], .arena_of_rank = tables + 2 * n_ranks}};
}

}  // namespace switchyard
