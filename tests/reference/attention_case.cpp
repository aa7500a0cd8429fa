#include "attention_case.hpp"

#include <algorithm>
#include <numeric>

namespace switchyard::reference {
namespace {

constexpr bf16 kNotANumber{0x7fc0};
constexpr float kNotWritten = 1e30f;

// Of the normal distribution, nearly: the sum of a few even ones.
void fill(std::vector<bf16>& values, size_t begin, size_t end, std::mt19937_64& random) {
  for (size_t i = begin; i < end; ++i) {
    const uint64_t bits = random();
    float sum = 0;
    for (int part = 0; part < 4; ++part)
      sum += static_cast<float>(bits >> (part * 16) & 0xffff) / 65536.0f - 0.5f;
    values[i] = to_bf16(sum * 1.7320508f);
  }
}

template <typename T>
Status put(Rank& rank, const std::vector<T>& values, Buffer<T>& buffer) {
  Result<Buffer<T>> uploaded = rank.upload(values);
  if (!uploaded.ok()) return uploaded.status();
  buffer = std::move(uploaded).value();
  return Status();
}

}  // namespace

AttentionHarness::AttentionHarness(Rank& rank, const AttentionCase& attention_case)
    : rank_(rank), case_(attention_case) {}

Result<std::unique_ptr<AttentionHarness>> AttentionHarness::create(Rank& rank,
                                                                   const AttentionCase& attention_case) {
  std::unique_ptr<AttentionHarness> harness(new AttentionHarness(rank, attention_case));
  harness->make_batch();
  Result<std::unique_ptr<Attention>> attention = Attention::create(rank, harness->shape_);
  if (!attention.ok()) return attention.status();
  harness->attention_ = std::move(attention).value();
  SWITCHYARD_RETURN_IF_ERROR(harness->upload());
  return harness;
}

// Where rows lie, and what is in them.
void AttentionHarness::make_batch() {
  const std::vector<int>& key_lens = case_.key_lens.empty() ? case_.query_lens : case_.key_lens;
  batch_.num_heads = case_.num_heads;
  batch_.num_kv_heads = case_.num_kv_heads;
  batch_.head_dim = case_.head_dim;
  batch_.causal = case_.causal;
  batch_.window = case_.window;
  batch_.sequence_of_nans = case_.sequence_of_nans;
  std::mt19937_64 random(case_.seed);

  batch_.query_offsets = {0};
  for (const int length : case_.query_lens)
    batch_.query_offsets.push_back(batch_.query_offsets.back() + static_cast<uint32_t>(length));
  const auto longest = [](const std::vector<int>& lengths) {
    return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  };
  shape_ = {.head_dim = case_.head_dim,
            .num_heads = case_.num_heads,
            .num_kv_heads = case_.num_kv_heads,
            .batch_size = static_cast<int>(case_.query_lens.size()),
            .max_query_len = longest(case_.query_lens),
            .max_key_len = longest(key_lens),
            .num_query_rows = int64_t{batch_.query_offsets.back()} + case_.num_spare_rows,
            .causal = case_.causal,
            .window = case_.window,
            .page_size = case_.page_size,
            .scheduler = case_.scheduler,
            .order = case_.order,
            .num_blocks = case_.num_blocks};

  key_offsets_ = {0};
  uint32_t num_rows = 0;
  if (case_.page_size > 0) {
    const int page_size = case_.page_size;
    shape_.pages_per_sequence = (shape_.max_key_len + page_size - 1) / page_size + 1;
    const size_t num_pages = key_lens.size() * static_cast<size_t>(shape_.pages_per_sequence);
    page_table_.resize(num_pages);
    std::iota(page_table_.begin(), page_table_.end(), 0);
    std::shuffle(page_table_.begin(), page_table_.end(), random);
    num_rows = static_cast<uint32_t>(num_pages) * static_cast<uint32_t>(page_size);
  }
  for (size_t sequence = 0; sequence < key_lens.size(); ++sequence) {
    std::vector<uint32_t>& rows = batch_.key_rows.emplace_back();
    for (uint32_t key = 0; key < static_cast<uint32_t>(key_lens[sequence]); ++key) {
      const uint32_t page_size = static_cast<uint32_t>(case_.page_size);
      rows.push_back(
          page_size == 0
              ? num_rows++
              : static_cast<uint32_t>(page_table_[sequence * static_cast<size_t>(shape_.pages_per_sequence) +
                                                  key / page_size]) *
                        page_size +
                    key % page_size);
    }
    key_offsets_.push_back(key_offsets_.back() + static_cast<uint32_t>(key_lens[sequence]));
    key_lengths_.push_back(static_cast<uint32_t>(key_lens[sequence]));
  }
  shape_.num_key_rows = num_rows;

  const size_t query_row = static_cast<size_t>(case_.num_heads) * static_cast<size_t>(case_.head_dim);
  const size_t key_row = static_cast<size_t>(case_.num_kv_heads) * static_cast<size_t>(case_.head_dim);
  batch_.queries.resize(num_query_rows() * query_row);
  fill(batch_.queries, 0, batch_.queries.size(), random);
  batch_.keys.assign(num_rows * key_row, kNotANumber);
  batch_.values = batch_.keys;
  for (int sequence = 0; sequence < batch_.num_sequences(); ++sequence) {
    if (sequence == batch_.sequence_of_nans) continue;
    for (const size_t row : batch_.key_rows[static_cast<size_t>(sequence)]) {
      fill(batch_.keys, row * key_row, (row + 1) * key_row, random);
      fill(batch_.values, row * key_row, (row + 1) * key_row, random);
    }
  }
}

Status AttentionHarness::upload() {
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, batch_.queries, queries_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, batch_.keys, keys_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, batch_.values, values_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, std::vector<bf16>(batch_.queries.size(), kNotANumber), output_));
  const size_t num_places = num_query_rows() * static_cast<size_t>(case_.num_heads);
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, std::vector<float>(num_places, kNotWritten), lse_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, batch_.query_offsets, query_offsets_on_device_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, key_offsets_, key_offsets_on_device_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, key_lengths_, key_lengths_on_device_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, page_table_, page_table_on_device_));
  tensors_ = {.queries = queries_.data(),
              .keys = keys_.data(),
              .values = values_.data(),
              .output = output_.data(),
              .lse = lse_.data()};
  if (!case_.is_dense) tensors_.query_offsets = query_offsets_on_device_.data();
  if (case_.page_size > 0) {
    tensors_.key_lengths = key_lengths_on_device_.data();
    tensors_.page_table = page_table_on_device_.data();
  } else if (!case_.is_dense) {
    tensors_.key_offsets = key_offsets_on_device_.data();
  }
  return Status();
}

Result<AttentionDifference> AttentionHarness::compare(int stride) {
  SWITCHYARD_RETURN_IF_ERROR(rank_.synchronize());
  const Result<std::vector<bf16>> output = output_.download();
  const Result<std::vector<float>> lse = lse_.download();
  if (!output.ok()) return output.status();
  if (!lse.ok()) return lse.status();
  const size_t num_used = batch_.query_offsets.back() * static_cast<size_t>(case_.num_heads);
  for (size_t place = num_used; place < lse.value().size(); ++place)
    if (lse.value()[place] != kNotWritten ||
        output.value()[place * static_cast<size_t>(case_.head_dim)].bits != kNotANumber.bits)
      return AttentionDifference{.first_bad = "a row of no sequence was written"};
  return compare_attention(batch_, output.value(), lse.value(), stride);
}

}  // namespace switchyard::reference
