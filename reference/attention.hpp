// What attention means, in plain loops: softmax(scale * Q K^T) V for each query of each head, in double, with
// a soft cap and sinks if there are any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/types/bf16.hpp"

namespace switchyard::reference {

// A batch. Rows are [row][head][head_dim], those of the output [row][head][output_dim()]; sequence s has the
// query rows from query_offsets[s] on, and its key number i lies in row key_rows[s][i].
struct AttentionBatch {
  int num_heads = 1;
  int num_kv_heads = 1;
  int head_dim = 64;
  int value_dim = 0;  // 0: as head_dim; else values are the first so many columns of the keys
  bool causal = false;
  int window = 0;            // 0: none
  float scale = 0;           // 0: one over the square root of head_dim
  float soft_cap = 0;        // 0: none
  std::vector<float> sinks;  // [num_heads], or none
  std::vector<float> key_scales,
      value_scales;                     // [num_kv_heads]: what keys and values are multiplied by, or none
  std::vector<uint32_t> query_offsets;  // [sequences + 1]
  std::vector<std::vector<uint32_t>> key_rows;
  std::vector<bf16> queries, keys, values;
  int sequence_of_nans = -1;  // its results are not compared

  int num_sequences() const { return static_cast<int>(key_rows.size()); }
  int output_dim() const { return value_dim > 0 ? value_dim : head_dim; }
  int query_len(int sequence) const {
    return static_cast<int>(query_offsets[static_cast<size_t>(sequence) + 1] -
                            query_offsets[static_cast<size_t>(sequence)]);
  }
};

struct AttentionRow {
  std::vector<double> output;  // [output_dim()]; zeros if the query sees no key
  double lse = 0;              // minus infinity, or the sink, if the query sees no key
};

// The result of query number `query` of a sequence. The last query is at the position of the last key.
AttentionRow attend(const AttentionBatch& batch, int sequence, int query, int head);

// How far a result is from the reference.
struct AttentionDifference {
  double relative_error = 0;  // of the output: the norm of the errors over the norm of the values
  double max_abs_error = 0;
  double max_lse_error = 0;
  std::string first_bad;  // empty: none beyond the bounds
};

// Compares every stride-th row and head. An error is bad if it exceeds what rounding output and weights to
// bf16 can cause. If there is no lse, it is not compared.
AttentionDifference compare_attention(const AttentionBatch& batch, const std::vector<bf16>& output,
                                      const std::vector<float>& lse, int stride = 1);

}  // namespace switchyard::reference
