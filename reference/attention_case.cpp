#include "attention_case.hpp"

#include <algorithm>
#include <numeric>

#include "switchyard/detail/base/minifloat.hpp"

namespace switchyard::reference {
namespace {

constexpr bf16 kNotANumber{0x7fc0};
constexpr float kNotWritten = 1e30f;

// A nearly normal distribution: the sum of a few uniform numbers.
void fill(std::vector<bf16>& values, size_t begin, size_t end, std::mt19937_64& random) {
  for (size_t i = begin; i < end; ++i) {
    const uint64_t bits = random();
    float sum = 0;
    for (int part = 0; part < 4; ++part)
      sum += static_cast<float>(bits >> (part * 16) & 0xffff) / 65536.0f - 0.5f;
    values[i] = to_bf16(sum * 1.7320508f);
  }
}

// Rounds numbers to codes of the scales of their heads; the numbers become what the codes mean, unscaled.
std::vector<uint8_t> quantize(std::vector<bf16>& numbers, const std::vector<float>& scales, size_t head_dim) {
  std::vector<uint8_t> codes(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const float scale = scales[i / head_dim % scales.size()];
    const float number = scale == 0 ? 0 : to_float(numbers[i]) / scale;
    const e4m3 code = to_minifloat<e4m3>(number == number ? number : 448.0f);  // a code is a number
    codes[i] = code.bits;
    numbers[i] = to_bf16(to_float(code));
  }
  return codes;
}

template <typename T>
Status put(Rank& rank, const std::vector<T>& values, Buffer<T>& buffer) {
  Result<Buffer<T>> uploaded = rank.upload(values);
  if (!uploaded.ok()) return uploaded.status();
  buffer = std::move(uploaded).value();
  return Status();
}

}  // namespace

double AttentionCase::flops() const {
  double seen = 0;
  for (size_t s = 0; s < query_lens.size(); ++s) {
    const double queries = query_lens[s];
    const double keys = num_keys()[s];
    // A causal mask counts half of a square, as is usual: that of the queries, or of the keys if they are
    // fewer.
    const double square = std::min(queries, keys);
    double of_sequence = causal ? square * (keys - square / 2) : queries * keys;
    if (window > 0) of_sequence = std::min(of_sequence, queries * window * (causal ? 1.0 : 2.0));
    seen += of_sequence;
  }
  return 2 * seen * num_heads * (head_dim + output_dim());
}

uint64_t AttentionCase::key_value_bytes() const {
  return static_cast<uint64_t>(total_keys()) * static_cast<uint64_t>(num_kv_heads) *
         static_cast<uint64_t>(value_dim > 0 ? head_dim : 2 * head_dim) *
         (kv_format == KvFormat::kFP8 ? 1 : sizeof(bf16));
}

int64_t AttentionCase::sum_of(const std::vector<int>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

std::vector<uint32_t> AttentionCase::offsets_of(const std::vector<int>& lengths, int first) {
  std::vector<uint32_t> offsets = {static_cast<uint32_t>(first)};
  for (const int length : lengths) offsets.push_back(offsets.back() + static_cast<uint32_t>(length));
  return offsets;
}

AttentionShape AttentionCase::shape() const {
  const auto longest = [](const std::vector<int>& lengths) {
    return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  };
  AttentionShape shape{.head_dim = head_dim,
                       .num_heads = num_heads,
                       .num_kv_heads = num_kv_heads,
                       .batch_size = static_cast<int>(query_lens.size()),
                       .max_query_len = longest(query_lens),
                       .max_key_len = longest(num_keys()),
                       .num_query_rows = num_rows_before + total_queries() + num_spare_rows,
                       .num_key_rows = total_keys(),
                       .causal = causal,
                       .window = window,
                       .page_size = page_size,
                       .scale = scale,
                       .soft_cap = soft_cap,
                       .scheduler = scheduler,
                       .order = order,
                       .num_blocks = num_blocks,
                       .candidate = candidate,
                       .own_kernels = own_kernels,
                       .value_dim = value_dim,
                       .kv_format = kv_format};
  if (has_key_lengths) shape.num_key_rows = int64_t{shape.batch_size} * shape.max_key_len;
  return shape;
}

void make_latent(AttentionCase& attention_case) {
  attention_case.num_kv_heads = 1;
  attention_case.head_dim = 576;
  attention_case.value_dim = 512;
  attention_case.scale = 0.0721688f;  // one over the square root of 192, the columns before absorption
}

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

// Computes which rows hold the keys of each sequence.
void AttentionHarness::place_keys(std::mt19937_64& random) {
  const std::vector<int>& num_keys = case_.num_keys();
  const std::vector<uint32_t> offsets = case_.key_offsets();
  const uint32_t page_size = static_cast<uint32_t>(case_.page_size);
  if (page_size > 0) {
    shape_.pages_per_sequence = (shape_.max_key_len + case_.page_size - 1) / case_.page_size + 1;
    page_table_.resize(num_keys.size() * static_cast<size_t>(shape_.pages_per_sequence));
    std::iota(page_table_.begin(), page_table_.end(), 0);
    std::shuffle(page_table_.begin(), page_table_.end(), random);
    shape_.num_key_rows = static_cast<int64_t>(page_table_.size()) * case_.page_size;
  }
  for (size_t sequence = 0; sequence < num_keys.size(); ++sequence) {
    std::vector<uint32_t>& rows = batch_.key_rows.emplace_back(num_keys[sequence]);
    std::iota(rows.begin(), rows.end(),
              case_.has_key_lengths
                  ? static_cast<uint32_t>(sequence) * static_cast<uint32_t>(shape_.max_key_len)
                  : offsets[sequence]);
    for (uint32_t key = 0; page_size > 0 && key < rows.size(); ++key)
      rows[key] =
          static_cast<uint32_t>(
              page_table_[sequence * static_cast<size_t>(shape_.pages_per_sequence) + key / page_size]) *
              page_size +
          key % page_size;
  }
}

// Makes the batch: the rows of each sequence and their values.
void AttentionHarness::make_batch() {
  batch_.num_heads = case_.num_heads;
  batch_.num_kv_heads = case_.num_kv_heads;
  batch_.head_dim = case_.head_dim;
  batch_.value_dim = case_.value_dim;
  batch_.causal = case_.causal;
  batch_.window = case_.window;
  batch_.scale = case_.scale;
  batch_.soft_cap = case_.soft_cap;
  batch_.sequence_of_nans = case_.sequence_of_nans;
  batch_.query_offsets = case_.query_offsets();
  shape_ = case_.shape();
  std::mt19937_64 random(case_.seed);
  place_keys(random);

  // Some far above every score and some far below.
  for (int head = 0; case_.has_sinks && head < case_.num_heads; ++head)
    batch_.sinks.push_back(static_cast<float>(random() % 17) - 6.0f);
  const size_t query_row = static_cast<size_t>(case_.num_heads) * static_cast<size_t>(case_.head_dim);
  const size_t key_row = static_cast<size_t>(case_.num_kv_heads) * static_cast<size_t>(case_.head_dim);
  batch_.queries.resize(num_query_rows() * query_row);
  fill(batch_.queries, 0, batch_.queries.size(), random);
  batch_.keys.assign(static_cast<size_t>(shape_.num_key_rows) * key_row, kNotANumber);
  if (case_.value_dim == 0) batch_.values = batch_.keys;
  for (int sequence = 0; sequence < batch_.num_sequences(); ++sequence) {
    if (sequence == batch_.sequence_of_nans) continue;
    for (const size_t row : batch_.key_rows[static_cast<size_t>(sequence)]) {
      fill(batch_.keys, row * key_row, (row + 1) * key_row, random);
      if (case_.value_dim == 0) fill(batch_.values, row * key_row, (row + 1) * key_row, random);
    }
  }
}

// Every head has scales of its own, which leave no number without a code.
Status AttentionHarness::upload_codes() {
  for (int head = 0; head < case_.num_kv_heads; ++head) {
    batch_.key_scales.push_back(0.01f + 0.003f * static_cast<float>(head % 4));
    batch_.value_scales.push_back(0.03f - 0.005f * static_cast<float>(head % 4));
  }
  if (case_.has_empty_head) batch_.key_scales[0] = 0;
  const size_t head_dim = static_cast<size_t>(case_.head_dim);
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, quantize(batch_.keys, batch_.key_scales, head_dim), key_codes_));
  SWITCHYARD_RETURN_IF_ERROR(
      put(rank_, quantize(batch_.values, batch_.value_scales, head_dim), value_codes_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, batch_.key_scales, key_scales_));
  return put(rank_, batch_.value_scales, value_scales_);
}

Status AttentionHarness::upload() {
  const bool has_codes = case_.kv_format == KvFormat::kFP8;
  if (has_codes) SWITCHYARD_RETURN_IF_ERROR(upload_codes());
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, batch_.queries, queries_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, batch_.keys, keys_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, batch_.values, values_));
  const size_t num_places = num_query_rows() * static_cast<size_t>(case_.num_heads);
  const size_t output_dim = static_cast<size_t>(case_.output_dim());
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, std::vector<bf16>(num_places * output_dim, kNotANumber), output_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, std::vector<float>(num_places, kNotWritten), lse_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, batch_.query_offsets, query_offsets_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, case_.key_offsets(), key_offsets_));
  const std::vector<int>& num_keys = case_.num_keys();
  SWITCHYARD_RETURN_IF_ERROR(
      put(rank_, std::vector<uint32_t>(num_keys.begin(), num_keys.end()), key_lengths_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, page_table_, page_table_on_device_));
  SWITCHYARD_RETURN_IF_ERROR(put(rank_, batch_.sinks, sinks_));
  tensors_ = {.queries = queries_.data(),
              .keys = has_codes ? nullptr : keys_.data(),
              .values = has_codes || case_.value_dim > 0 ? nullptr : values_.data(),
              .output = output_.data(),
              .lse = case_.wants_lse ? lse_.data() : nullptr,
              .sinks = case_.has_sinks ? sinks_.data() : nullptr,
              .key_codes = key_codes_.data(),
              .value_codes = value_codes_.data(),
              .key_scales = key_scales_.data(),
              .value_scales = value_scales_.data()};
  if (!case_.is_dense) tensors_.query_offsets = query_offsets_.data();
  if (case_.page_size > 0) tensors_.page_table = page_table_on_device_.data();
  if (case_.page_size > 0 || case_.has_key_lengths)
    tensors_.key_lengths = key_lengths_.data();
  else if (!case_.is_dense)
    tensors_.key_offsets = key_offsets_.data();
  return Status();
}

Result<AttentionDifference> AttentionHarness::compare(int stride) {
  SWITCHYARD_RETURN_IF_ERROR(rank_.synchronize());
  const Result<std::vector<bf16>> output = output_.download();
  const Result<std::vector<float>> lse = lse_.download();
  if (!output.ok()) return output.status();
  if (!lse.ok()) return lse.status();
  const ptrdiff_t begin = ptrdiff_t{batch_.query_offsets.front()} * case_.num_heads,
                  end = ptrdiff_t{batch_.query_offsets.back()} * case_.num_heads;
  const auto is_untouched_outside = [&](const auto& values, int width, auto is_untouched) {
    return std::all_of(values.begin(), values.begin() + begin * width, is_untouched) &&
           std::all_of(values.begin() + end * width, values.end(), is_untouched);
  };
  const bool is_left_alone =
      is_untouched_outside(output.value(), case_.output_dim(),
                           [](bf16 value) { return value.bits == kNotANumber.bits; }) &&
      (!case_.wants_lse ||
       is_untouched_outside(lse.value(), 1, [](float value) { return value == kNotWritten; }));
  if (!is_left_alone) return AttentionDifference{.first_bad = "a row of no sequence was written"};
  return compare_attention(batch_, output.value(), case_.wants_lse ? lse.value() : std::vector<float>(),
                           stride);
}

}  // namespace switchyard::reference
