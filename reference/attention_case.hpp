// Batches of attention with random numbers, and one launch of them: for tests and `switchyard attend`.
#pragma once

#include <random>

#include "attention.hpp"
#include "switchyard/attention.hpp"

namespace switchyard::reference {

struct AttentionCase {
  std::vector<int> query_lens;
  std::vector<int> key_lens;  // empty: as the queries
  int num_heads = 2;
  int num_kv_heads = 1;
  int head_dim = 64;
  int value_dim = 0;  // 0: as head_dim; else values are the first so many columns of the keys
  KvFormat kv_format = KvFormat::kBF16;
  bool has_empty_head = false;  // fp8: the keys of the first K/V head are 0, and so is their scale
  bool causal = false;
  int window = 0;
  float scale = 0;  // 0: one over the square root of head_dim
  float soft_cap = 0;
  bool has_sinks = false;
  int page_size = 0;
  bool is_dense = false;  // all lengths are equal, and no offsets are given
  bool has_key_lengths =
      false;  // each sequence has memory for the most keys; lengths are given, without pages
  bool wants_lse = true;
  TileSchedulerKind scheduler = TileSchedulerKind::kAutomatic;
  MHASchedule order = MHASchedule::AUTOMATIC;
  int candidate = -1;  // below 0: the kernel for these lengths
  const OwnAttentionKernels* own_kernels = nullptr;
  int num_blocks = 0;
  int num_rows_before = 0;    // rows of queries in front of those of all sequences; no kernel may write them
  int num_spare_rows = 0;     // likewise behind them
  int sequence_of_nans = -1;  // its keys and values are NaN, so that leaks into other sequences show
  uint64_t seed = 1;

  // Keys of each sequence.
  const std::vector<int>& num_keys() const { return key_lens.empty() ? query_lens : key_lens; }
  int output_dim() const { return value_dim > 0 ? value_dim : head_dim; }
  int64_t total_queries() const { return sum_of(query_lens); }
  int64_t total_keys() const { return sum_of(num_keys()); }
  // Where sequences begin if they lie one behind the other, and where the last one ends.
  std::vector<uint32_t> query_offsets() const { return offsets_of(query_lens, num_rows_before); }
  std::vector<uint32_t> key_offsets() const { return offsets_of(num_keys(), 0); }
  // With pages, the caller sets num_key_rows and pages_per_sequence.
  AttentionShape shape() const;
  // Two operations per product of a query and a key, and two per weighted value; with a mask, only those that
  // are not masked count.
  double flops() const;
  uint64_t key_value_bytes() const;

 private:
  static int64_t sum_of(const std::vector<int>& lengths);
  static std::vector<uint32_t> offsets_of(const std::vector<int>& lengths, int first);
};

// Makes a case one of multi-head latent attention, with DeepSeek's sizes and scale.
void make_latent(AttentionCase& attention_case);

// One case on a rank: its batch, its memory, and its Attention. Rows that belong to no sequence hold NaN, and
// so does the output before the first launch.
class AttentionHarness {
 public:
  static Result<std::unique_ptr<AttentionHarness>> create(Rank& rank, const AttentionCase& attention_case);

  Status launch() { return attention_->run(tensors_); }
  // Waits, and compares every stride-th row.
  Result<AttentionDifference> compare(int stride = 1);

  Attention& attention() { return *attention_; }
  AttentionChoice choice() const { return attention_->choice(tensors_); }
  const AttentionBatch& batch() const { return batch_; }
  const AttentionTensors& tensors() const { return tensors_; }

 private:
  AttentionHarness(Rank& rank, const AttentionCase& attention_case);
  void make_batch();
  void place_keys(std::mt19937_64& random);
  size_t num_query_rows() const { return static_cast<size_t>(shape_.num_query_rows); }
  Status upload();
  Status upload_codes();

  Rank& rank_;
  const AttentionCase case_;
  AttentionBatch batch_;
  AttentionShape shape_;
  std::vector<int32_t> page_table_;
  std::unique_ptr<Attention> attention_;
  AttentionTensors tensors_;
  Buffer<bf16> queries_, keys_, values_, output_;
  Buffer<uint8_t> key_codes_, value_codes_;
  Buffer<float> lse_, sinks_, key_scales_, value_scales_;
  Buffer<uint32_t> query_offsets_, key_offsets_, key_lengths_;
  Buffer<int32_t> page_table_on_device_;
};

}  // namespace switchyard::reference
