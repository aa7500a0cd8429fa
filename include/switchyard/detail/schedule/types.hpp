// The words of a tile scheduler: tiles of work, sequences, and a block's position. A tile is `tile_shape`
// rows of the queries of one head of one sequence (a prompt).
#pragma once

#include <cstdint>

#include "switchyard/detail/schedule/kinds.hpp"

namespace switchyard {

// Which threads agree on a tile inside advance().
enum class MHASchedulerSynchronization {
  NONE,      // nobody: one thread is the producer
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
