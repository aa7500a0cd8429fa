#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace switchyard::reference {

AttentionRow attend(const AttentionBatch& batch, int sequence, int query, int head) {
  const size_t dim = static_cast<size_t>(batch.head_dim);
  const size_t output_dim = static_cast<size_t>(batch.output_dim());
  const std::vector<bf16>& values = batch.value_dim > 0 ? batch.keys : batch.values;
  const std::vector<uint32_t>& rows = batch.key_rows[static_cast<size_t>(sequence)];
  const int num_keys = static_cast<int>(rows.size());
  const int position = num_keys - batch.query_len(sequence) + query;
  const size_t query_row = batch.query_offsets[static_cast<size_t>(sequence)] + static_cast<size_t>(query);
  const size_t kv_head = static_cast<size_t>(head / (batch.num_heads / batch.num_kv_heads));
  const auto at = [dim](const std::vector<bf16>& rows_of_heads, size_t row, int num_heads, size_t h) {
    return rows_of_heads.data() + (row * static_cast<size_t>(num_heads) + h) * dim;
  };
  const bf16* q = at(batch.queries, query_row, batch.num_heads, static_cast<size_t>(head));
  const double key_scale = batch.key_scales.empty() ? 1 : batch.key_scales[kv_head];
  const double value_scale = batch.value_scales.empty() ? 1 : batch.value_scales[kv_head];
  const double scale = key_scale * (batch.scale > 0 ? batch.scale : 1 / std::sqrt(static_cast<double>(dim)));

  int first = 0, end = num_keys;
  if (batch.causal) end = std::min(end, position + 1);
  if (batch.window > 0) {
    first = std::max(first, position - batch.window + 1);
    end = std::min(end, position + batch.window);
  }
  const double sink =
      batch.sinks.empty() ? -std::numeric_limits<double>::infinity() : batch.sinks[static_cast<size_t>(head)];
  AttentionRow result{std::vector<double>(output_dim, 0.0), sink};
  if (first >= end) return result;
  std::vector<double> scores;
  for (int key = first; key < end; ++key) {
    const bf16* k = at(batch.keys, rows[static_cast<size_t>(key)], batch.num_kv_heads, kv_head);
    double sum = 0;
    for (size_t i = 0; i < dim; ++i) sum += static_cast<double>(to_float(q[i])) * to_float(k[i]);
    scores.push_back(batch.soft_cap > 0 ? batch.soft_cap * std::tanh(sum * scale / batch.soft_cap)
                                        : sum * scale);
  }
  const double max = std::max(sink, *std::max_element(scores.begin(), scores.end()));
  double sum = std::exp(sink - max);
  for (double& score : scores) sum += score = std::exp(score - max);
  for (int key = first; key < end; ++key) {
    const bf16* v = at(values, rows[static_cast<size_t>(key)], batch.num_kv_heads, kv_head);
    const double weight = scores[static_cast<size_t>(key - first)] / sum * value_scale;
    for (size_t i = 0; i < output_dim; ++i) result.output[i] += weight * to_float(v[i]);
  }
  result.lse = max + std::log(sum);
  return result;
}

AttentionDifference compare_attention(const AttentionBatch& batch, const std::vector<bf16>& output,
                                      const std::vector<float>& lse, int stride) {
  // Weights and output are rounded to bf16 (8 bits); a row's values are sums of many such.
  constexpr double kBoundOfRow = 0.012, kBoundOfLse = 1e-3;
  AttentionDifference difference;
  double squared_errors = 0, squared_values = 0;
  const size_t dim = static_cast<size_t>(batch.output_dim());
  int turn = 0;
  for (int sequence = 0; sequence < batch.num_sequences(); ++sequence)
    for (int query = 0; query < batch.query_len(sequence); ++query)
      for (int head = 0; head < batch.num_heads; ++head) {
        if (sequence == batch.sequence_of_nans || turn++ % stride != 0) continue;
        const AttentionRow expected = attend(batch, sequence, query, head);
        const size_t position =
            (batch.query_offsets[static_cast<size_t>(sequence)] + static_cast<size_t>(query)) *
                static_cast<size_t>(batch.num_heads) +
            static_cast<size_t>(head);
        double errors = 0, values = 0;
        for (size_t i = 0; i < dim; ++i) {
          const double error = to_float(output[position * dim + i]) - expected.output[i];
          errors += error * error;
          values += expected.output[i] * expected.output[i];
          if (!(std::abs(error) <= difference.max_abs_error)) difference.max_abs_error = std::abs(error);
        }
        const double seen_lse = lse.empty() ? expected.lse : static_cast<double>(lse[position]);
        const double lse_error = seen_lse == expected.lse ? 0 : std::abs(seen_lse - expected.lse);
        if (!(lse_error <= difference.max_lse_error)) difference.max_lse_error = lse_error;
        squared_errors += errors;
        squared_values += values;
        if (difference.first_bad.empty() &&
            !(std::sqrt(errors) <= kBoundOfRow * std::sqrt(values) && lse_error <= kBoundOfLse))
          difference.first_bad = "sequence " + std::to_string(sequence) + ", query " + std::to_string(query) +
                                 ", head " + std::to_string(head) + ": output off by " +
                                 std::to_string(std::sqrt(errors)) + " of " +
                                 std::to_string(std::sqrt(values)) + ", lse " + std::to_string(seen_lse) +
                                 ", expected " + std::to_string(expected.lse);
      }
  difference.relative_error =
      squared_values > 0 ? std::sqrt(squared_errors / squared_values) : std::sqrt(squared_errors);
  return difference;
}

}  // namespace switchyard::reference
