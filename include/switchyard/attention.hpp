// Attention over bf16 queries, keys and values: one persistent kernel whose blocks take tiles from a
// scheduler (schedule/). An Attention is made once for a shape, checks it and keeps what its launches need;
// run() only launches, so it can be recorded as a graph.
#pragma once

#include <memory>
#include <string>

#include "switchyard/detail/attention/params.hpp"
#include "switchyard/detail/launch/attention_kernels.hpp"
#include "switchyard/world.hpp"

namespace switchyard {

enum class SchedulerChoice { kAuto, kTransient, kTile, kQueued };
enum class OrderChoice { kAuto, kDefault, kRotate, kLpt };

const char* to_string(TileSchedulerKind kind);

// Sizes. Lengths of single sequences may be anything up to the largest; they come with the tensors.
struct AttentionShape {
  int head_dim = 128;    // 64, 128 or 256
  int num_heads = 1;     // of queries: a multiple of num_kv_heads
  int num_kv_heads = 1;  // each is seen by num_heads / num_kv_heads neighbouring query heads
  int batch_size = 1;
  int max_query_len = 0;
  int max_key_len = 0;
  int64_t num_query_rows = 0;  // of all sequences together
  int64_t num_key_rows = 0;    // likewise; of all pages, where there are pages
  // The last query of a sequence stands at its last key. Causal: a query sees keys up to its own position.
  // With a window: only those less than `window` away from it, on either side; 0: no window.
  bool causal = false;
  int window = 0;
  int page_size = 0;  // keys and values in pages of so many rows: a power of two, 16 to 256; 0: no pages
  int pages_per_sequence = 0;
  float scale = 0;  // of the scores; 0: one over the square root of head_dim
  SchedulerChoice scheduler = SchedulerChoice::kAuto;
  OrderChoice order = OrderChoice::kAuto;
  int num_blocks =
      0;  // at most; 0: all multiprocessors. One tile per block (kTransient) takes what it needs.
};

// All in memory of the rank's device; rows are [row][head][head_dim], without gaps, 16-byte aligned.
struct AttentionTensors {
  const bf16* queries = nullptr;
  const bf16* keys = nullptr;
  const bf16* values = nullptr;
  bf16* output = nullptr;
  float* lse =
      nullptr;  // [query row][head]: logarithm of the sum of the exponentiated scores; null: not wanted
  // Offsets, lengths and page numbers are read by kernels alone and taken on trust: they must lie within the
  // shape's rows and pages.
  // Where sequences begin, [batch_size + 1]; null: sequence s begins at row s * max_query_len (max_key_len).
  const uint32_t* query_offsets = nullptr;
  const uint32_t* key_offsets = nullptr;
  // How many keys each sequence has, [batch_size]; needed with pages. Null: max_key_len, or by key_offsets.
  // With them, automatic means the queue.
  const uint32_t* key_lengths = nullptr;
  const int32_t* page_table = nullptr;  // [batch_size][pages_per_sequence]: with pages
  uint64_t* tile_times =
      nullptr;  // [num_places()][3]: begin and end in ns and the block of each tile; or null
};

// What was chosen, and why.
struct AttentionChoice {
  AttentionKind kind = AttentionKind::kFull;
  TileSchedulerKind scheduler = TileSchedulerKind::kTile;
  MHASchedule order = MHASchedule::DEFAULT;
  uint32_t num_blocks = 0;
  uint32_t num_splits = 1;
  uint32_t num_combine_blocks = 0;  // of the kernel after several splits
  uint32_t tile_rows = 0;           // tokens of a tile
  std::string reason;
};

class Attention {
 public:
  // `rank` must outlive the object.
  static Result<std::unique_ptr<Attention>> create(Rank& rank, const AttentionShape& shape);

  // Launches on the rank's stream and returns. One launch of an Attention at a time.
  Status run(const AttentionTensors& tensors);

  const AttentionShape& shape() const { return shape_; }
  // What run() launches for these tensors: the shape decides, but for key_lengths.
  AttentionChoice choice(const AttentionTensors& tensors) const;
  // Places of the grid of tiles, [sequence][head or part of its keys][tile]: how many tile_times there are.
  uint64_t num_places() const;

 private:
  Attention(Rank& rank, const AttentionShape& shape);

  void choose();
  void choose_splits(uint32_t num_ctas);
  bool takes_queue_for_keys(const AttentionTensors& tensors) const;
  Status allocate();
  uint32_t max_num_blocks() const;
  uint32_t combine_warps(uint32_t num_places) const;
  MHATilePlan tile_plan() const;
  KeyPlaces keys_of(const AttentionTensors& tensors) const;
  AttentionNumbers numbers_of(const AttentionTensors& tensors) const;
  Status launch_plan(const AttentionTensors& tensors);
  Status launch_combine(const AttentionTensors& tensors);

  Rank& rank_;
  const AttentionShape shape_;
  const AttentionKernels& kernels_;
  AttentionChoice choice_;  // of tensors without key_lengths
  MHATileShape tile_shape_;
  uint32_t heads_per_tile_ = 1;
  uint32_t max_num_tiles_ = 0;  // of one sequence and head
  uint32_t split_keys_ = 0;
  Buffer<uint32_t> queue_, plan_;
  Buffer<float> partial_output_, partial_lse_;
};

}  // namespace switchyard
