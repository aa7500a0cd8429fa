#include "reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "all_cores.hpp"
#include "switchyard/detail/base/exp.hpp"
#include "token_format.hpp"

namespace switchyard::reference {
namespace {

std::string text(const RowOrigin& origin) {
  return "(rank " + std::to_string(origin.src_rank) + ", token " + std::to_string(origin.src_token) + ", k " +
         std::to_string(origin.k) + ")";
}

}  // namespace

std::vector<bf16> Step::token(int rank, int token_idx, int expert_idx) const {
  if (format != TokenFormatKind::kBF16) return decoded(encoded_token(rank, token_idx, expert_idx));
  const auto first = tokens[rank].begin() + static_cast<ptrdiff_t>(token_idx) * hidden;
  return {first, first + hidden};
}

EncodedToken Step::encoded_token(int rank, int token_idx, int expert_idx) const {
  const float scale = input_scale_of(expert_idx);
  if (token_codes.empty()) {
    const auto first = tokens[rank].begin() + static_cast<ptrdiff_t>(token_idx) * hidden;
    return encode_token(format, std::vector<bf16>(first, first + hidden), scale);
  }
  const auto part = [&](const std::vector<uint8_t>& of_rank, size_t bytes) {
    const auto first = of_rank.begin() + static_cast<ptrdiff_t>(token_idx * bytes);
    return std::vector<uint8_t>(first, first + static_cast<ptrdiff_t>(bytes));
  };
  const TokenFormatInfo info = info_of(format);
  return decode_token(
      format, part(token_codes[rank], info.row_bytes(hidden)),
      part(token_scales[rank], static_cast<size_t>(info.num_scales(hidden) * info.scale_bytes)), scale);
}

std::vector<bf16> identity_expert(const void*, const Step& step, int rank, int token_idx, int expert_idx) {
  return step.token(rank, token_idx, expert_idx);
}

std::vector<float> Step::group_input_scales(int rank) const {
  std::vector<float> scales;
  if (has_shared_expert) scales.push_back(input_scale);
  for (int seat = 0; seat < n_local_experts(); ++seat) {
    const int expert = expert_at(rank, seat);
    scales.push_back(expert < 0 ? 1.0f : input_scale_of(expert));
  }
  return scales;
}

int Step::n_local_experts() const {
  if (experts_of_rank.empty()) return n_experts / n_ranks;
  size_t most = static_cast<size_t>(num_seats);
  for (const std::vector<int>& experts : experts_of_rank) most = std::max(most, experts.size());
  return static_cast<int>(most);
}

int Step::expert_at(int rank, int seat) const {
  if (experts_of_rank.empty()) return rank * n_local_experts() + seat;
  return seat < static_cast<int>(experts_of_rank[rank].size()) ? experts_of_rank[rank][seat] : -1;
}

int Step::owner_of(int src_rank, int expert) const {
  if (experts_of_rank.empty()) return expert / n_local_experts();
  std::vector<int> holders, near_holders;
  for (int rank = 0; rank < n_ranks; ++rank)
    for (const int held : experts_of_rank[rank]) {
      if (held != expert) continue;
      if (skips_all_to_all && rank / num_reducing() != src_rank / num_reducing()) continue;
      holders.push_back(rank);
      if (group_of_rank.empty() || group_of_rank[rank] == group_of_rank[src_rank])
        near_holders.push_back(rank);
    }
  if (skips_all_to_all) return holders.empty() ? -1 : holders[expert % holders.size()];
  for (const int rank : holders)
    if (rank == src_rank) return rank;
  return near_holders.empty() ? holders[src_rank % holders.size()]
                              : near_holders[src_rank % near_holders.size()];
}

bool Step::is_shared_row(int rank, int token_idx) const {
  if (!has_shared_expert) return false;
  if (!skips_all_to_all) return true;
  const int64_t tokens = num_tokens(rank), share = rank % num_reducing();
  return token_idx >= tokens * share / num_reducing() && token_idx < tokens * (share + 1) / num_reducing();
}

namespace {

// Calls work(rank, token) for every token, on all cores.
template <typename Work>
void for_each_token(const Step& step, Work work) {
  std::vector<std::pair<int, int>> tokens;
  for (int rank = 0; rank < step.n_ranks; ++rank)
    for (int token = 0; token < step.num_tokens(rank); ++token) tokens.emplace_back(rank, token);
  for_each_on_all_cores(tokens.size(), [&](size_t i) { work(tokens[i].first, tokens[i].second); });
}

void put_row(std::vector<bf16>& rows, int row_idx, const std::vector<bf16>& row) {
  std::copy(row.begin(), row.end(),
            rows.begin() + static_cast<ptrdiff_t>(row_idx) * static_cast<ptrdiff_t>(row.size()));
}

}  // namespace

Step as_seen(Step step) {
  if (step.format == TokenFormatKind::kBF16 || step.encodes_by_expert()) return step;
  for_each_token(step,
                 [&](int rank, int token) { put_row(step.tokens[rank], token, step.token(rank, token, 0)); });
  step.format = TokenFormatKind::kBF16;
  return step;
}

std::vector<std::vector<RowOrigin>> dispatched_rows(const Step& step, int rank) {
  std::vector<std::vector<RowOrigin>> rows(step.num_groups());
  const int first_group = step.num_groups() - step.n_local_experts();
  if (step.has_shared_expert)
    for (int token = 0; token < step.num_tokens(rank); ++token)
      if (step.is_shared_row(rank, token)) rows[0].push_back({rank, token, -1});
  for (int src_rank = 0; src_rank < step.n_ranks; ++src_rank)
    for (int token = 0; token < step.num_tokens(src_rank); ++token)
      for (int k = 0; k < step.top_k; ++k) {
        const int expert = step.topk_ids[src_rank][token * step.top_k + k];
        if (!step.reaches(src_rank, expert, rank)) continue;
        for (int seat = 0; seat < step.n_local_experts(); ++seat)
          if (step.expert_at(rank, seat) == expert) rows[first_group + seat].push_back({src_rank, token, k});
      }
  return rows;
}

namespace {

// Checks that rows are the encoded tokens of the step's format.
class RowChecker {
 public:
  RowChecker(const Step& step, const DispatchResult& result) : step_(step), result_(result) {}

  // Returns an empty string if the row holds the token, encoded for the expert.
  std::string check(size_t row, const RowOrigin& origin, int expert_idx) {
    return step_.format == TokenFormatKind::kBF16 ? check_plain(row, origin)
                                                  : check_encoded(row, origin, expert_idx);
  }

  // Of a row that only fills up its group.
  std::string check_unwritten(size_t row) {
    const std::string where = "unwritten row " + std::to_string(row) + ": ";
    if (!result_.src_ranks.empty() && result_.src_ranks[row] != -1)
      return where + "src_ranks is " + std::to_string(result_.src_ranks[row]);
    if (result_.unwritten == UnwrittenRows::kLeft) return "";
    if (result_.src_info[2 * row] != -1 || result_.src_info[2 * row + 1] != -1)
      return where + "src_info is not marked";
    if (result_.unwritten == UnwrittenRows::kMarked) return "";
    const size_t hidden = static_cast<size_t>(step_.hidden);
    if (step_.format == TokenFormatKind::kBF16) {
      for (size_t i = 0; i < hidden; ++i)
        if (result_.rows[row * hidden + i].bits != 0)
          return where + "column " + std::to_string(i) + " is not 0";
      return "";
    }
    const TokenFormatInfo info = info_of(step_.format);
    const size_t row_bytes = info.row_bytes(step_.hidden);
    for (size_t i = 0; i < row_bytes; ++i)
      if (result_.encoded_rows[row * row_bytes + i] != 0)
        return where + "byte " + std::to_string(i) + " is not 0";
    for (size_t i = 0; i < static_cast<size_t>(info.num_scales(step_.hidden)); ++i) {
      const uint64_t offset = scale_offset(step_.format, row, i, step_.hidden, result_.max_rows);
      for (size_t byte = 0; byte < static_cast<size_t>(info.scale_bytes); ++byte)
        if (result_.scales[offset + byte] != 0) return where + "scale " + std::to_string(i) + " is not 0";
    }
    return "";
  }

 private:
  std::string differs(size_t row, const RowOrigin& origin) const {
    return "row " + std::to_string(row) + " from " + text(origin) + " differs in ";
  }
  std::string check_plain(size_t row, const RowOrigin& origin) const {
    for (int column = 0; column < step_.hidden; ++column) {
      const bf16 want =
          step_.tokens[origin.src_rank][static_cast<size_t>(origin.src_token) * step_.hidden + column];
      const bf16 got = result_.rows[row * step_.hidden + column];
      if (!(got == want))
        return differs(row, origin) + "column " + std::to_string(column) + ": " +
               std::to_string(to_float(got)) + ", expected " + std::to_string(to_float(want));
    }
    return "";
  }
  std::string check_encoded(size_t row, const RowOrigin& origin, int expert_idx) {
    EncodedToken& want =
        encoded_[{origin.src_rank, origin.src_token, step_.encodes_by_expert() ? expert_idx : 0}];
    if (want.codes.empty()) want = step_.encoded_token(origin.src_rank, origin.src_token, expert_idx);
    const auto difference = [&](const char* what, size_t i, uint8_t got, uint8_t expected) {
      return differs(row, origin) + what + " " + std::to_string(i) + ": " + std::to_string(got) +
             ", expected " + std::to_string(expected);
    };
    for (size_t i = 0; i < want.codes.size(); ++i)
      if (const uint8_t got = result_.encoded_rows[row * want.codes.size() + i]; got != want.codes[i])
        return difference("byte", i, got, want.codes[i]);
    const size_t scale_bytes = static_cast<size_t>(info_of(step_.format).scale_bytes);
    for (size_t i = 0; i < want.scales.size(); ++i) {
      const uint64_t offset =
          scale_offset(step_.format, row, i / scale_bytes, step_.hidden, result_.max_rows) + i % scale_bytes;
      if (result_.scales[offset] != want.scales[i])
        return difference("scale byte", i, result_.scales[offset], want.scales[i]);
    }
    return "";
  }

  const Step& step_;
  const DispatchResult& result_;
  std::map<std::tuple<int, int, int>, EncodedToken> encoded_;  // by (rank, token, expert)
};

}  // namespace

size_t Step::next_group(size_t first_row, size_t num_rows) const {
  size_t next = first_row + std::max<size_t>(num_rows, min_group_rows);
  while (next % row_alignment != 0 || next % info_of(format).row_alignment != 0) ++next;
  return next;
}

std::string check_dispatch(const Step& step, int rank, const DispatchResult& result) {
  const auto expected = dispatched_rows(step, rank);
  RowChecker rows(step, result);
  size_t next_row = 0;
  for (int group = 0; group < step.num_groups(); ++group) {
    const std::string where = "rank " + std::to_string(rank) + ", group " + std::to_string(group) + ": ";
    if (result.row_offsets[group] != next_row)
      return where + "row_offsets is " + std::to_string(result.row_offsets[group]) + ", expected " +
             std::to_string(next_row);
    if (result.expert_ids[group] != group)
      return where + "expert_ids is " + std::to_string(result.expert_ids[group]);
    if (!result.scale_row_offsets.empty() && result.scale_row_offsets[group] != next_row)
      return where + "scale_row_offsets is " + std::to_string(result.scale_row_offsets[group]) +
             ", expected " + std::to_string(next_row);
    if (result.src_info.size() < 2 * (next_row + expected[group].size()))
      return where + "there are " + std::to_string(result.src_info.size() / 2) + " rows in all, expected " +
             std::to_string(next_row + expected[group].size()) + " up to here";
    const bool is_shared = step.has_shared_expert && group == 0;
    const int expert_idx =
        is_shared ? step.n_experts : step.expert_at(rank, group - (step.has_shared_expert ? 1 : 0));
    std::vector<RowOrigin> seen;
    for (size_t i = 0; i < expected[group].size(); ++i) {
      const size_t row = next_row + i;
      // Rows are ordered by source rank, so the index of a row gives its rank; for the shared expert's rows
      // it gives the token, too.
      const RowOrigin origin = is_shared ? expected[group][i]
                                         : RowOrigin{expected[group][i].src_rank, result.src_info[2 * row],
                                                     result.src_info[2 * row + 1]};
      if (origin.src_token < 0 || origin.src_token >= step.num_tokens(origin.src_rank))
        return where + "row " + std::to_string(row) + " claims to come from " + text(origin);
      if (!result.src_ranks.empty() && result.src_ranks[row] != origin.src_rank)
        return where + "row " + std::to_string(row) + ": src_ranks is " +
               std::to_string(result.src_ranks[row]) + ", expected " + std::to_string(origin.src_rank);
      seen.push_back(origin);
      if (const std::string difference = rows.check(row, origin, expert_idx); !difference.empty())
        return where + difference;
    }
    std::sort(seen.begin(), seen.end());
    for (size_t i = 0; i < seen.size(); ++i)
      if (seen[i] != expected[group][i])
        return where + "has a row from " + text(seen[i]) + " where " + text(expected[group][i]) +
               " is expected";
    if (!result.row_counts.empty() && result.row_counts[group] != expected[group].size())
      return where + "row_counts is " + std::to_string(result.row_counts[group]) + ", expected " +
             std::to_string(expected[group].size());
    const size_t next_group = step.next_group(next_row, expected[group].size());
    for (size_t row = next_row + expected[group].size(); row < next_group; ++row)
      if (const std::string difference = rows.check_unwritten(row); !difference.empty())
        return where + difference;
    next_row = next_group;
  }
  if (result.row_offsets[step.num_groups()] != next_row)
    return "rank " + std::to_string(rank) + ": the last row_offsets is " +
           std::to_string(result.row_offsets[step.num_groups()]) + ", expected " + std::to_string(next_row);
  return "";
}

namespace {

// sums += weight * row, as the row is sent. Identity experts return the same row again and again: `last` is
// the previous row, quantised.
struct LastRow {
  std::vector<float> row;
  std::vector<float> scales;  // [group]
  std::vector<float> codes;   // [column], as numbers
};
// Truncates to 20 significant bits, so that the product with a code is exact.
float cut(float factor) {
  if (!std::isfinite(factor)) return factor;
  if (std::fabs(factor) < 0x1p-120f) return 0;
  int exponent = 0;
  const float fraction = std::frexp(factor, &exponent);
  return std::ldexp(std::trunc(std::ldexp(fraction, 20)), exponent - 20);
}
void add_encoded(std::vector<float>& sums, const std::vector<float>& row, float weight, LastRow& last) {
  if (last.row != row) {
    const QuantizedToken quantized = blockwise_fp8(kE4M3, row);
    last = {row, quantized.float_scales, {}};
    for (const uint8_t code : quantized.codes) last.codes.push_back(tables_of(kE4M3).values[code]);
  }
  for (size_t begin = 0; begin < row.size(); begin += 128) {
    const float factor = cut(weight * last.scales[begin / 128]);
    for (size_t column = begin; column < begin + 128; ++column)
      sums[column] = sums[column] + factor * last.codes[column];
  }
}

void add_row(std::vector<float>& sums, const std::vector<bf16>& row, float weight, CombineFormat format,
             LastRow& last) {
  if (format != CombineFormat::kBF16) return add_encoded(sums, to_floats(row), weight, last);
  for (size_t column = 0; column < row.size(); ++column)
    sums[column] = sums[column] + weight * to_float(row[column]);
}

std::vector<bf16> rounded(const std::vector<float>& values) {
  std::vector<bf16> output;
  for (const float value : values) output.push_back(to_bf16(value));
  return output;
}

// The sums of each owner's results, rounded to what is sent, in the order of the owners' first k, among the
// results of the token's own rank, which are not sent; then what is added last.
std::vector<float> sums_of_owners(const Step& step, int rank, int token, ExpertFunction expert,
                                  const void* experts) {
  std::vector<float> sums(step.hidden, 0.0f);
  LastRow last;
  std::vector<int> owners_done;
  const auto id_of = [&](int k) { return step.topk_ids[rank][token * step.top_k + k]; };
  const auto weight_of = [&](int k) { return step.topk_weights[rank][token * step.top_k + k]; };
  for (int first = 0; first < step.top_k; ++first) {
    if (id_of(first) < 0) continue;
    const int owner = step.owner_of(rank, id_of(first));
    if (owner == rank) {
      add_row(sums, expert(experts, step, rank, token, id_of(first)), weight_of(first), step.combine_format,
              last);
      continue;
    }
    if (std::find(owners_done.begin(), owners_done.end(), owner) != owners_done.end()) continue;
    owners_done.push_back(owner);
    std::vector<float> of_owner(step.hidden, 0.0f);
    int num_rows = 0;
    for (int k = first; k < step.top_k; ++k) {
      if (id_of(k) < 0 || step.owner_of(rank, id_of(k)) != owner) continue;
      add_row(of_owner, expert(experts, step, rank, token, id_of(k)), weight_of(k), step.combine_format,
              last);
      ++num_rows;
    }
    if (num_rows > 1 && step.combine_format == CombineFormat::kBF16)
      add_row(sums, rounded(of_owner), 1.0f, step.combine_format, last);
    else if (num_rows > 1)
      add_encoded(sums, of_owner, 1.0f, last);
    else
      add_row(sums, expert(experts, step, rank, token, id_of(first)), weight_of(first), step.combine_format,
              last);
  }
  if (step.is_shared_row(rank, token))
    add_row(sums, expert(experts, step, rank, token, step.n_experts), 1.0f,
            step.is_shared_output_encoded ? step.combine_format : CombineFormat::kBF16, last);
  return sums;
}

std::vector<float> sums_of_token(const Step& step, int rank, int token, ExpertFunction expert,
                                 const void* experts) {
  if (step.reduces_at_owner) return sums_of_owners(step, rank, token, expert, experts);
  std::vector<float> sums(step.hidden, 0.0f);
  LastRow last;
  for (int k = 0; k < step.top_k; ++k) {
    const int id = step.topk_ids[rank][token * step.top_k + k];
    if (id < 0 || (step.skips_all_to_all && !step.reaches(rank, id, rank))) continue;
    add_row(sums, expert(experts, step, rank, token, id), step.topk_weights[rank][token * step.top_k + k],
            step.combine_format, last);
  }
  if (step.is_shared_row(rank, token))
    add_row(sums, expert(experts, step, rank, token, step.n_experts), 1.0f,
            step.is_shared_output_encoded ? step.combine_format : CombineFormat::kBF16, last);
  return sums;
}

}  // namespace

std::vector<float> combine_sums(const Step& step, int rank, ExpertFunction expert, const void* experts) {
  std::vector<float> output;
  output.reserve(static_cast<size_t>(step.num_tokens(rank)) * static_cast<size_t>(step.hidden));
  for (int token = 0; token < step.num_tokens(rank); ++token) {
    const std::vector<float> sums = sums_of_token(step, rank, token, expert, experts);
    output.insert(output.end(), sums.begin(), sums.end());
  }
  return output;
}

std::vector<bf16> combine_weighted(const Step& step, int rank, ExpertFunction expert, const void* experts) {
  // The sums of a rank, each token rounded as it comes: those of a large step need not all be held in fp32.
  const auto rounded_sums = [&](int of_rank) {
    std::vector<bf16> output;
    output.reserve(static_cast<size_t>(step.num_tokens(of_rank)) * static_cast<size_t>(step.hidden));
    for (int token = 0; token < step.num_tokens(of_rank); ++token) {
      const std::vector<bf16> row = rounded(sums_of_token(step, of_rank, token, expert, experts));
      output.insert(output.end(), row.begin(), row.end());
    }
    return output;
  };
  if (!step.skips_all_to_all) return rounded_sums(rank);
  std::vector<std::vector<bf16>> partial;
  const int first = rank / step.num_reducing() * step.num_reducing();
  for (int r = first; r < first + step.num_reducing(); ++r) partial.push_back(rounded_sums(r));
  return summed(partial);
}

std::vector<bf16> summed(const std::vector<std::vector<bf16>>& partial) {
  std::vector<float> sums(partial.front().size(), 0.0f);
  for (const std::vector<bf16>& values : partial)
    for (size_t i = 0; i < values.size(); ++i) sums[i] = sums[i] + to_float(values[i]);
  return rounded(sums);
}

std::vector<bf16> combine_unreduced(const Step& step, int rank, ExpertFunction expert, const void* experts) {
  std::vector<bf16> output;
  for (int token = 0; token < step.num_tokens(rank); ++token)
    for (int k = 0; k < step.top_k; ++k) {
      const int id = step.topk_ids[rank][token * step.top_k + k];
      std::vector<bf16> row =
          id < 0 ? std::vector<bf16>(step.hidden) : expert(experts, step, rank, token, id);
      if (step.combine_format == CombineFormat::kFP8)
        row = decoded(encode_token(TokenFormatKind::kFP8, row, 1));
      output.insert(output.end(), row.begin(), row.end());
    }
  return output;
}

Routing topk_softmax(const std::vector<float>& logits, int num_tokens, int n_experts, int top_k) {
  Routing routing;
  for (int token = 0; token < num_tokens; ++token) {
    const float* begin = logits.data() + static_cast<size_t>(token) * n_experts;
    std::vector<float> row(begin, begin + n_experts);
    for (float& logit : row)
      if (std::isnan(logit)) logit = -std::numeric_limits<float>::infinity();
    std::vector<int32_t> order(n_experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    // Equal logits have equal weights, even infinite ones.
    const auto weight = [&](int k) {
      return row[order[k]] == row[order[0]] ? 1.0f : exp_f32(row[order[k]] - row[order[0]]);
    };
    float sum = 0.0f;
    for (int k = 0; k < top_k; ++k) sum += weight(k);
    for (int k = 0; k < top_k; ++k) {
      routing.topk_ids.push_back(order[k]);
      routing.topk_weights.push_back(weight(k) / sum);
    }
  }
  return routing;
}

namespace {

// sums[column] += value * weights[column].
SWITCHYARD_WIDE void add_scaled_row(std::vector<float>& sums, float value, const bf16* weights) {
  for (size_t column = 0; column < sums.size(); ++column)
    sums[column] = sums[column] + value * to_float(weights[column]);
}

// row [inner] times matrix [inner][columns], summed over k in order.
std::vector<bf16> row_times_matrix(const std::vector<bf16>& row, const std::vector<bf16>& matrix,
                                   int columns) {
  std::vector<float> sums(columns, 0.0f);
  for (size_t k = 0; k < row.size(); ++k) add_scaled_row(sums, to_float(row[k]), matrix.data() + k * columns);
  return rounded(sums);
}

}  // namespace

std::vector<bf16> grouped_matmul(const RaggedGroups& groups, const std::vector<bf16>& rows,
                                 const std::vector<std::vector<bf16>>& matrices, int inner, int columns) {
  std::vector<bf16> output;
  for (size_t group = 0; group < groups.expert_ids.size(); ++group)
    for (uint32_t row = groups.row_offsets[group]; row < groups.row_offsets[group + 1]; ++row) {
      const auto begin = rows.begin() + static_cast<ptrdiff_t>(row) * inner;
      const std::vector<bf16> product = row_times_matrix(std::vector<bf16>(begin, begin + inner),
                                                         matrices[groups.expert_ids[group]], columns);
      output.insert(output.end(), product.begin(), product.end());
    }
  return output;
}

std::vector<float> silu_products(const std::vector<bf16>& gate_up, int width) {
  std::vector<float> products;
  for (size_t row = 0; row < gate_up.size(); row += 2 * static_cast<size_t>(width))
    for (int column = 0; column < width; ++column) {
      const float gate = to_float(gate_up[row + column]), up = to_float(gate_up[row + width + column]);
      const float product = gate / (1.0f + exp_f32(-gate)) * up;
      products.push_back(std::isnan(product) ? std::numeric_limits<float>::quiet_NaN() : product);
    }
  return products;
}

std::vector<bf16> silu_mul(const std::vector<bf16>& gate_up, int width) {
  return rounded(silu_products(gate_up, width));
}

std::vector<bf16> mlp_expert(const void* experts, const Step& step, int rank, int token_idx, int expert_idx) {
  const MlpExperts& mlp = *static_cast<const MlpExperts*>(experts);
  const std::vector<bf16> gate_up =
      row_times_matrix(step.token(rank, token_idx, expert_idx), mlp.gate_up[expert_idx], 2 * mlp.width);
  return row_times_matrix(silu_mul(gate_up, mlp.width), mlp.down[expert_idx], mlp.hidden);
}

std::vector<std::vector<bf16>> moe_layer(const Step& step, const MlpExperts& experts) {
  const Step seen = as_seen(step);
  std::vector<std::vector<bf16>> outputs(step.n_ranks);
  for (int rank = 0; rank < step.n_ranks; ++rank)
    outputs[rank].resize(static_cast<size_t>(step.num_tokens(rank)) * step.hidden);
  for_each_token(step, [&](int rank, int token) {
    put_row(outputs[rank], token, rounded(sums_of_token(seen, rank, token, &mlp_expert, &experts)));
  });
  if (!step.skips_all_to_all) return outputs;
  for (auto first = outputs.begin(); first != outputs.end(); first += step.num_reducing()) {
    const std::vector<bf16> sum = summed({first, first + step.num_reducing()});
    std::fill(first, first + step.num_reducing(), sum);
  }
  return outputs;
}

}  // namespace switchyard::reference
