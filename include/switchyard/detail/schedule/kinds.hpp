// The tile schedulers and the orders by name: an enum each, and a list that everything which names or tries
// them goes through. A new scheduler has its type and its case of with_scheduler() in schedulers.hpp; a new
// order has its way from a place to a tile in tile_summary.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

enum class TileSchedulerKind {
  kTransient,
  kTile,
  kQueued,
  kAutomatic,  // in a shape: Attention chooses. The last one: no kernel has it.
};

// The order in which tiles are handed out.
enum class MHASchedule {
  DEFAULT,        // tile fastest, then head, then sequence
  PROMPT_ROTATE,  // as DEFAULT, the tiles of odd heads from the last to the first
  LPT,            // the tiles of a head that see most keys first, the last heads together
  AUTOMATIC,      // in a shape: Attention chooses. The last one: no kernel has it.
};

struct TileSchedulerName {
  TileSchedulerKind kind;
  const char* name;     // as options say it
  const char* meaning;  // which tiles a block has
};
inline constexpr TileSchedulerName kTileSchedulers[] = {
    {TileSchedulerKind::kTransient, "transient", "a block per tile"},
    {TileSchedulerKind::kTile, "tile", "each block every n-th"},
    {TileSchedulerKind::kQueued, "queued", "the next free one"},
};

struct OrderName {
  MHASchedule order;
  const char* name;       // of the enum
  const char* type_name;  // in get_type_name(): behind the name of a scheduler
  const char* option;     // as options say it
  const char* meaning;
};
inline constexpr OrderName kOrders[] = {
    {MHASchedule::DEFAULT, "DEFAULT", "<DEFAULT>", "default", "by sequence, head, tile"},
    {MHASchedule::PROMPT_ROTATE, "PROMPT_ROTATE", "<PROMPT_ROTATE>", "rotate", "odd heads backwards"},
    {MHASchedule::LPT, "LPT", "<LPT>", "lpt", "longest tiles first"},
};

// Each list holds every value but the automatic one, at its index.
inline constexpr size_t kNumTileSchedulers = sizeof(kTileSchedulers) / sizeof(kTileSchedulers[0]);
inline constexpr size_t kNumOrders = sizeof(kOrders) / sizeof(kOrders[0]);
static_assert([] {
  for (size_t i = 0; i < kNumTileSchedulers; ++i)
    if (static_cast<size_t>(kTileSchedulers[i].kind) != i) return false;
  for (size_t i = 0; i < kNumOrders; ++i)
    if (static_cast<size_t>(kOrders[i].order) != i) return false;
  return kNumTileSchedulers == static_cast<size_t>(TileSchedulerKind::kAutomatic) &&
         kNumOrders == static_cast<size_t>(MHASchedule::AUTOMATIC);
}());

constexpr const char* to_string(TileSchedulerKind kind) {
  return kind == TileSchedulerKind::kAutomatic ? "auto" : kTileSchedulers[static_cast<size_t>(kind)].name;
}
constexpr const char* to_string(MHASchedule order) {
  return order == MHASchedule::AUTOMATIC ? "AUTOMATIC" : kOrders[static_cast<size_t>(order)].name;
}
// The order as options say it: default, rotate, lpt.
constexpr const char* option_name(MHASchedule order) {
  return order == MHASchedule::AUTOMATIC ? "auto" : kOrders[static_cast<size_t>(order)].option;
}

// Whether a plan puts the sequences with more keys first.
SWITCHYARD_HD constexpr bool sorts_sequences(MHASchedule order) { return order == MHASchedule::LPT; }

// Calls visit(std::integral_constant<MHASchedule, order>), so that the order is a template argument.
SWITCHYARD_NO_EXEC_CHECK
template <typename Visit>
SWITCHYARD_HD SWITCHYARD_FORCE_INLINE void with_order(MHASchedule order, const Visit& visit) {
  switch (order) {
    case MHASchedule::DEFAULT:
      return visit(std::integral_constant<MHASchedule, MHASchedule::DEFAULT>{});
    case MHASchedule::PROMPT_ROTATE:
      return visit(std::integral_constant<MHASchedule, MHASchedule::PROMPT_ROTATE>{});
    case MHASchedule::LPT:
      return visit(std::integral_constant<MHASchedule, MHASchedule::LPT>{});
    case MHASchedule::AUTOMATIC:
      return;
  }
}

}  // namespace switchyard
