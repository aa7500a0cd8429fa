// The words of attention's tile schedulers. A tile is `tile_shape` rows of the queries of one head of one
// sequence (a prompt). First the library's schedulers and the orders by name, as a shape asks for them
// (attention.hpp): an enum each, and a list that everything which names or tries them goes through. Then what
// a scheduler is asked and answers (types/tile_scheduler.hpp). All are plain values that own nothing.
//
// A new scheduler of the library has its type and its case of with_scheduler() in
// detail/schedule/schedulers.hpp; a new order has its way from a place to a tile in types/tile_summary.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

// Which tiles a block works on.
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

// Which threads agree on a tile inside advance().
enum class MHASchedulerSynchronization {
  NONE,      // none: one thread is the producer
  PRODUCER,  // the threads of the producer
  ALL,       // all threads of the block
  DEFAULT = PRODUCER,
};

// A value or nothing, in registers.
template <typename T>
class OptionalReg {
 public:
  OptionalReg() = default;
  SWITCHYARD_HD constexpr OptionalReg(T value) : value_(value), has_value_(true) {}  // NOLINT

  SWITCHYARD_HD constexpr explicit operator bool() const { return has_value_; }
  SWITCHYARD_HD constexpr bool has_value() const { return has_value_; }
  SWITCHYARD_HD constexpr const T& operator*() const { return value_; }
  SWITCHYARD_HD constexpr const T* operator->() const { return &value_; }

 private:
  T value_{};
  bool has_value_ = false;
};

// Which tile.
struct WorkInfo {
  uint32_t prompt_offset = 0;  // the tile's first row in its sequence, a multiple of the tile's size
  uint32_t head_idx = 0;
  uint32_t prompt_idx = 0;  // the sequence
  bool is_valid_tile = false;

  friend bool operator==(const WorkInfo&, const WorkInfo&) = default;
};

// The tile, and the sequence it lies in.
struct SeqInfo {
  uint32_t seq_len = 0;
  uint32_t start_of_seq = 0;  // its first row among the rows of all sequences
  uint32_t prompt_offset = 0;
  uint32_t head_idx = 0;
  uint32_t prompt_idx = 0;

  SWITCHYARD_HD constexpr bool is_valid() const { return prompt_offset < seq_len; }
  friend bool operator==(const SeqInfo&, const SeqInfo&) = default;
};

// A block's position in the order. Every thread that advances has its own, and all agree.
struct MHATileState {
  uint32_t idx = 0;      // the place in the order; it only grows
  uint32_t max_idx = 0;  // where the order ends
  // Shared memory in which a producer publishes the index it took: at least two mailboxes, which alternate.
  uint32_t* sidx_ptr = nullptr;
  uint32_t first_position = 0;  // no sequence before this one in the plan holds idx: where a search may begin

  SWITCHYARD_HD constexpr bool is_valid() const { return idx < max_idx; }
};

// The numbers a scheduler was made with.
struct MHATileShape {
  uint32_t tile_shape = 0;  // rows of a tile
  uint32_t num_heads = 0;   // query heads; K/V heads where each tile holds all queries of one (decoding)
  uint32_t num_ctas = 0;    // blocks of a persistent launch, at most
  // LPT only. How many rows of one K/V head fit in L2, keys and values together; 0: any number.
  uint32_t kv_rows_in_l2 = 0;
  uint32_t heads_per_kv_head = 1;

  friend bool operator==(const MHATileShape&, const MHATileShape&) = default;
};

}  // namespace switchyard
