// Attention: softmax attention of bf16 queries over keys and values in bf16 or fp8, full, causal, windowed or
// decoding, ragged or paged. One persistent kernel runs it, whose blocks take tiles from a scheduler
// (types/tile_scheduler.hpp). Multi-head latent attention (MLA), with absorbed queries, has head_dim 576 and
// value_dim 512.
//
//   auto attention = Attention::create(rank, {.head_dim = 128, .num_heads = 16, .num_kv_heads = 4,
//                                             .max_query_len = 4096, .max_key_len = 4096,
//                                             .num_query_rows = 4096, .num_key_rows = 4096}).value();
//   Status status = attention->run({queries, keys, values, output});
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "switchyard/types/attention_kind.hpp"
#include "switchyard/types/bf16.hpp"
#include "switchyard/types/tile_types.hpp"
#include "switchyard/world.hpp"

namespace switchyard {

struct OwnAttentionKernels;

// Sizes. Lengths of single sequences may be anything up to the largest; they come with the tensors.
struct AttentionShape {
  int head_dim = 128;    // 64, 128 or 256; 576 with value_dim 512
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
  float scale = 0;  // of the scores; 0: one over the square root of head_dim, but not for MLA
  // Scaled scores become soft_cap * tanh(score / soft_cap), before masks; at most 1000, since they lose as
  // much precision. 0: they stay as they are.
  float soft_cap = 0;
  TileSchedulerKind scheduler = TileSchedulerKind::kAutomatic;
  MHASchedule order = MHASchedule::AUTOMATIC;
  // At most so many blocks; 0: all multiprocessors. kTransient ignores this and launches one block per tile.
  int num_blocks = 0;
  // Which of the kernels for the same head dimension and kind runs, for measuring them beside each other
  // (`switchyard bench attention --tune`); below 0: the one for this length. Kernels that adjust scores and
  // own kernels are always the first.
  int candidate = -1;
  // With a tile scheduler of the application's (own_attention_kernels.hpp); null: the library's.
  const OwnAttentionKernels* own_kernels = nullptr;
  // 0: values have head_dim columns and memory of their own. 512: MLA, where keys are latents of head_dim 576
  // that all heads share (num_kv_heads 1), and values are their first 512 columns. It has neither a soft cap
  // nor sinks, and a scale that is given.
  int value_dim = 0;
  // fp8: keys and values are e4m3 codes with a scale for each K/V head (AttentionTensors::key_codes).
  // Without value_dim.
  KvFormat kv_format = KvFormat::kBF16;
};

// The tensors of one launch, which belong to the caller. All are in memory of the rank's device; rows are
// [row][head][head_dim], without gaps, 16-byte aligned. With value_dim, rows of the output are
// [row][head][value_dim].
struct AttentionTensors {
  const bf16* queries = nullptr;
  const bf16* keys = nullptr;
  const bf16* values = nullptr;  // null with value_dim
  bf16* output = nullptr;
  // [query row][head]: logarithm of the sum of the exponentiated scores, the sink's among them; null: not
  // wanted
  float* lse = nullptr;
  // Offsets, lengths and page numbers are read by kernels alone and taken on trust: they must lie within the
  // shape's rows and pages.
  // Where sequences begin, [batch_size + 1]; null: sequence s begins at row s * max_query_len (max_key_len).
  const uint32_t* query_offsets = nullptr;
  const uint32_t* key_offsets = nullptr;
  // How many keys each sequence has, [batch_size]; needed with pages. Null: max_key_len, or by key_offsets.
  // With them, automatic means the queue.
  const uint32_t* key_lengths = nullptr;
  const int32_t* page_table = nullptr;  // [batch_size][pages_per_sequence]: with pages
  // [num_tile_times()][3]: begin and end in ns and the block of each tile; null: not wanted
  uint64_t* tile_times = nullptr;
  // [head]: one more score in every softmax of the head, which no key and no value belongs to; null: none.
  // It is neither scaled nor capped.
  const float* sinks = nullptr;
  // With kv_format fp8, in place of keys and values: codes, none of which is NaN, and what those of each K/V
  // head are multiplied by, [K/V head], 0 or more.
  const uint8_t* key_codes = nullptr;
  const uint8_t* value_codes = nullptr;
  const float* key_scales = nullptr;
  const float* value_scales = nullptr;
};

// What was chosen, and why.
struct AttentionChoice {
  AttentionKind kind = AttentionKind::kFull;
  // Which of the kernels of the kind; with a soft cap or sinks the first runs all the same.
  int candidate = 0;
  TileSchedulerKind scheduler = TileSchedulerKind::kTile;
  MHASchedule order = MHASchedule::DEFAULT;
  const char* own_scheduler = nullptr;  // the name of the application's, which leaves `scheduler` automatic
  uint32_t num_blocks = 0;
  uint32_t num_splits = 1;  // of the keys of a sequence, each split_keys of them
  uint32_t split_keys = 0;
  uint32_t tile_rows = 0;       // tokens of a tile
  uint32_t heads_per_tile = 1;  // query heads that share a tile
  uint32_t max_num_tiles = 0;   // of one sequence and head
  MHATileShape tile_shape;      // as the scheduler has it: a split is a head
  std::string reason;

  friend bool operator==(const AttentionChoice&, const AttentionChoice&) = default;
};
// "masked, tiles of 128 queries, queued, order lpt, 132 blocks: why"
std::string to_string(const AttentionChoice& choice);

// An attention of one shape on one rank.
//
// Ownership: the caller owns the object and the tensors. The object owns what its launches need beside the
// tensors: the queue of tiles, the plan of a ragged batch, the partial output of splits. It does not own the
// rank or the kernels of shape().own_kernels, which must outlive it.
// Stream: run() enqueues one or two kernels, on the rank's stream or on the one that it is given, and
// returns: they run behind what is on that stream and before what comes behind them. It allocates nothing,
// waits for nothing and copies nothing, so it can be captured as a graph, by World::capture() or by the
// caller. The destructor waits for the device if run() was ever given a stream of the caller's.
// Threads: one call at a time on one object; objects of different ranks, or of one rank, may be called from
// different threads at once. Launches of one object must not overlap; on one stream they never do.
// Errors: create() and run() check shape and pointers and return kInvalidArgument with the argument, its
// value and its limit; nothing has been enqueued then. create() returns kResourceExhausted if memory is
// short. What the kernels read on the device (offsets, lengths, page numbers) is not checked. What goes wrong
// while they run is returned by Rank::synchronize().
// Validity: tensors must stay valid until the launch has ended, or as long as a graph that captured it is
// launched. The object may be destroyed while its launches run, but must outlive those of such a graph. What
// shape() and choice() refer to is valid as long as the object.
class Attention {
 public:
  // Checks the shape, chooses what to launch, loads the kernels and allocates what their launches need.
  static Result<std::unique_ptr<Attention>> create(Rank& rank, const AttentionShape& shape);
  ~Attention();

  // Enqueues the attention. Rows of no sequence are not written.
  Status run(const AttentionTensors& tensors, Stream stream = {});

  const AttentionShape& shape() const;
  // What run() launches for these tensors: the shape decides, but for key_lengths.
  const AttentionChoice& choice(const AttentionTensors& tensors) const;
  // How many tile_times there are: [sequence][head or split of its keys][tile].
  uint64_t num_tile_times() const;

 private:
  struct Impl;
  explicit Attention(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
