#include "attention_bench.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "limits.hpp"
#include "switchyard/detail/attention/tuning.hpp"
#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard::tools {
namespace {

using reference::AttentionBatch;
using reference::AttentionCase;
using reference::AttentionDifference;

// The launches of one graph, which share the cost of launching it.
constexpr int kLaunchesPerGraph = 10;
constexpr int kRowsLookedAt = 24;
constexpr float kScaleOfCodes = 0.05f;
constexpr size_t kMaxKvHeads = 64;

size_t row_elements(int num_heads, const AttentionCase& attention_case) {
  return static_cast<size_t>(num_heads) * static_cast<size_t>(attention_case.head_dim);
}

// Lengths drawn log-uniformly, always the same.
std::vector<int> ragged_lengths(int count, int shortest, int longest) {
  std::mt19937 random(4);
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) {
    const double share = static_cast<double>(random() >> 8) / 16777216.0;
    lengths.push_back(static_cast<int>(shortest * std::pow(static_cast<double>(longest) / shortest, share)));
  }
  return lengths;
}

}  // namespace

Result<std::unique_ptr<AttentionBench>> AttentionBench::create(World& world,
                                                               const std::vector<AttentionBenchCase>& cases,
                                                               uint64_t seed) {
  std::unique_ptr<AttentionBench> bench(new AttentionBench(world));
  size_t num_query_elements = 0, num_key_elements = 0, num_codes = 0, num_outputs = 0;
  for (const AttentionBenchCase& bench_case : cases) {
    const AttentionCase& attention_case = bench_case.attention_case;
    const size_t num_queries = static_cast<size_t>(attention_case.total_queries());
    num_query_elements =
        std::max(num_query_elements, num_queries * row_elements(attention_case.num_heads, attention_case));
    size_t& num_keys = attention_case.kv_format == KvFormat::kFP8 ? num_codes : num_key_elements;
    num_keys = std::max(num_keys, static_cast<size_t>(attention_case.total_keys()) *
                                      row_elements(attention_case.num_kv_heads, attention_case));
    num_outputs = std::max(num_outputs, num_queries * static_cast<size_t>(attention_case.num_heads));
  }
  const auto take = [&](auto& buffer, auto allocated) {
    if (allocated.ok()) buffer = std::move(allocated).value();
    return allocated.status();
  };
  Rank& rank = bench->rank_;
  SWITCHYARD_RETURN_IF_ERROR(take(bench->queries_, rank.allocate<bf16>(num_query_elements)));
  SWITCHYARD_RETURN_IF_ERROR(take(bench->output_, rank.allocate<bf16>(num_query_elements)));
  SWITCHYARD_RETURN_IF_ERROR(take(bench->keys_, rank.allocate<bf16>(num_key_elements)));
  SWITCHYARD_RETURN_IF_ERROR(take(bench->values_, rank.allocate<bf16>(num_key_elements)));
  SWITCHYARD_RETURN_IF_ERROR(take(bench->key_codes_, rank.allocate<bf16>(num_codes / 2)));
  SWITCHYARD_RETURN_IF_ERROR(take(bench->value_codes_, rank.allocate<bf16>(num_codes / 2)));
  SWITCHYARD_RETURN_IF_ERROR(
      take(bench->scales_, rank.upload(std::vector<float>(kMaxKvHeads, kScaleOfCodes))));
  SWITCHYARD_RETURN_IF_ERROR(take(bench->lse_, rank.allocate<float>(num_outputs)));
  SWITCHYARD_RETURN_IF_ERROR(bench->fill(seed));
  return bench;
}

Status AttentionBench::fill(uint64_t seed) {
  Result<PeriodicNumbers> numbers = PeriodicNumbers::create(rank_, seed);
  if (!numbers.ok()) return numbers.status();
  numbers_ = std::move(numbers).value();
  const Buffer<bf16>* tensors[] = {&queries_, &keys_, &values_};
  for (int t = 0; t < 3; ++t) SWITCHYARD_RETURN_IF_ERROR(numbers_.fill(*tensors[t], kShifts[t]));
  if (key_codes_.size() == 0) return Status();
  Result<PeriodicNumbers> codes = PeriodicNumbers::create_codes(rank_, seed);
  if (!codes.ok()) return codes.status();
  codes_ = std::move(codes).value();
  SWITCHYARD_RETURN_IF_ERROR(codes_.fill(key_codes_, kShifts[1]));
  return codes_.fill(value_codes_, kShifts[2]);
}

Result<AttentionBenchResult> AttentionBench::time(const AttentionBenchCase& bench_case, int num_replays) {
  const AttentionCase& attention_case = bench_case.attention_case;
  AttentionShape shape = attention_case.shape();
  if (attention_case.page_size > 0) shape.pages_per_sequence = shape.max_key_len / shape.page_size;
  Result<std::unique_ptr<Attention>> attention = Attention::create(rank_, shape);
  if (!attention.ok()) return attention.status();
  const std::vector<int>& num_keys = attention_case.num_keys();
  const Result<Buffer<uint32_t>> query_offsets = rank_.upload(attention_case.query_offsets()),
                                 key_offsets = rank_.upload(attention_case.key_offsets()),
                                 key_lengths =
                                     rank_.upload(std::vector<uint32_t>(num_keys.begin(), num_keys.end()));
  const Result<Buffer<int32_t>> page_table = rank_.upload(page_table_of(attention_case));
  for (const Result<Buffer<uint32_t>>* buffer : {&query_offsets, &key_offsets, &key_lengths})
    if (!buffer->ok()) return buffer->status();
  if (!page_table.ok()) return page_table.status();
  AttentionTensors tensors{.queries = queries_.data(),
                           .keys = keys_.data(),
                           .values = attention_case.value_dim > 0 ? nullptr : values_.data(),
                           .output = output_.data(),
                           .lse = lse_.data()};
  if (attention_case.kv_format == KvFormat::kFP8) {
    tensors.keys = tensors.values = nullptr;
    tensors.key_codes = reinterpret_cast<const uint8_t*>(key_codes_.data());
    tensors.value_codes = reinterpret_cast<const uint8_t*>(value_codes_.data());
    tensors.key_scales = tensors.value_scales = scales_.data();
  }
  if (attention_case.page_size > 0) {
    tensors.page_table = page_table.value().data();
    tensors.key_lengths = key_lengths.value().data();
  } else if (!attention_case.is_dense) {
    tensors.query_offsets = query_offsets.value().data();
    tensors.key_offsets = key_offsets.value().data();
  }
  // Overwrites the output: the case before may have had the same input, and memory that this case fails to
  // write must not look right.
  SWITCHYARD_RETURN_IF_ERROR(output_.fill_bytes(0xff));
  SWITCHYARD_RETURN_IF_ERROR(lse_.fill_bytes(0xff));
  const Result<Timing> timing = time_launches([&] { return attention.value()->run(tensors); }, num_replays);
  if (!timing.ok()) return timing.status();
  AttentionBenchResult result{.bench_case = bench_case,
                              .choice = attention.value()->choice(tensors),
                              .timing = timing.value(),
                              .flops = attention_case.flops(),
                              .kv_bytes = attention_case.key_value_bytes()};
  if (shape.max_query_len <= kAttentionLimits.max_decode_tokens) {
    const Result<Timing> read = time_launches([&] { return enqueue_read(result); }, num_replays);
    if (!read.ok()) return read.status();
    result.read_us = read.value().median_us;
  }
  const int num_outputs = attention_case.query_lens.back() * attention_case.num_heads;
  result.stride = num_outputs / kRowsLookedAt | 1;  // odd, so that it visits all heads
  Result<AttentionDifference> difference = compare(attention_case, result.stride);
  if (!difference.ok()) return difference.status();
  result.difference = difference.value();
  return result;
}

Result<Timing> AttentionBench::time_launches(const std::function<Status()>& enqueue, int num_replays) {
  const int num_launches = world_.target() == Target::kHost ? 1 : kLaunchesPerGraph;
  Graphs graphs;
  Result<std::unique_ptr<Graph>> graph = world_.capture([&] {
    SWITCHYARD_RETURN_IF_ERROR(world_.mark("attention"));
    for (int i = 0; i < num_launches; ++i) SWITCHYARD_RETURN_IF_ERROR(enqueue());
    return Status();
  });
  if (!graph.ok()) return graph.status();
  graphs.push_back(std::move(graph).value());
  Result<std::vector<SpanSamples>> samples = time_replays(graphs, num_replays);
  if (!samples.ok()) return samples.status();
  for (double& microseconds : samples.value().front().microseconds) microseconds /= num_launches;
  return samples.value().front().summarize(0);
}

Status AttentionBench::enqueue_read(const AttentionBenchResult& result) {
  const bool has_codes = result.bench_case.attention_case.kv_format == KvFormat::kFP8;
  const uint32_t num_blocks = static_cast<uint32_t>(device_of(rank_).num_multiprocessors());
  return rank_.launch(benchmarks::limit_kernels(world_.target()).read,
                      {.num_blocks = num_blocks, .num_threads = kWarpSize, .programmatic_dependent = true},
                      {{(has_codes ? key_codes_ : keys_).data(), (has_codes ? value_codes_ : values_).data()},
                       result.kv_bytes / 2});
}

std::vector<int32_t> AttentionBench::page_table_of(const AttentionCase& attention_case) {
  if (attention_case.page_size == 0) return {};
  std::vector<int32_t> pages(static_cast<size_t>(attention_case.total_keys() / attention_case.page_size));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(5));
  return pages;
}

std::vector<bf16> AttentionBench::elements_at(KvFormat format, int shift, size_t begin, size_t end) const {
  if (format == KvFormat::kBF16) return numbers_.at(shift, begin, end);
  std::vector<bf16> elements;
  for (const bf16 pair : codes_.at(shift, begin / 2, end / 2))
    for (const int code : {pair.bits & 0xff, pair.bits >> 8})
      elements.push_back(to_bf16(to_float(e4m3{static_cast<uint8_t>(code)})));
  return elements;
}

std::vector<bf16> AttentionBench::rows_of_last(const AttentionCase& attention_case, int shift) const {
  const KvFormat format = attention_case.kv_format;
  const size_t row = row_elements(attention_case.num_kv_heads, attention_case);
  const size_t num_keys = static_cast<size_t>(attention_case.num_keys().back());
  const size_t first_row = static_cast<size_t>(attention_case.total_keys()) - num_keys;
  const size_t page_size = static_cast<size_t>(attention_case.page_size);
  if (page_size == 0) return elements_at(format, shift, first_row * row, (first_row + num_keys) * row);
  const std::vector<int32_t> pages = page_table_of(attention_case);
  std::vector<bf16> rows;
  for (size_t page = pages.size() - num_keys / page_size; page < pages.size(); ++page) {
    const size_t first = static_cast<size_t>(pages[page]) * page_size;
    const std::vector<bf16> of_page = elements_at(format, shift, first * row, (first + page_size) * row);
    rows.insert(rows.end(), of_page.begin(), of_page.end());
  }
  return rows;
}

// Compares a few rows of the last sequence, behind the rows of all others.
Result<AttentionDifference> AttentionBench::compare(const AttentionCase& attention_case, int stride) {
  const std::vector<uint32_t> query_offsets = attention_case.query_offsets(),
                              key_offsets = attention_case.key_offsets();
  const size_t last = attention_case.query_lens.size() - 1;
  const size_t query_row = row_elements(attention_case.num_heads, attention_case);
  const size_t num_queries = static_cast<size_t>(attention_case.query_lens[last]);
  AttentionBatch batch{.num_heads = attention_case.num_heads,
                       .num_kv_heads = attention_case.num_kv_heads,
                       .head_dim = attention_case.head_dim,
                       .value_dim = attention_case.value_dim,
                       .causal = attention_case.causal,
                       .scale = attention_case.scale,
                       .query_offsets = {0, static_cast<uint32_t>(num_queries)}};
  if (attention_case.kv_format == KvFormat::kFP8)
    batch.key_scales = batch.value_scales = std::vector<float>(kMaxKvHeads, kScaleOfCodes);
  batch.key_rows.emplace_back(key_offsets[last + 1] - key_offsets[last]);
  std::iota(batch.key_rows[0].begin(), batch.key_rows[0].end(), 0u);
  const size_t first_query = query_offsets[last] * query_row;
  batch.queries = numbers_.at(kShifts[0], first_query, first_query + num_queries * query_row);
  batch.keys = rows_of_last(attention_case, kShifts[1]);
  if (attention_case.value_dim == 0) batch.values = rows_of_last(attention_case, kShifts[2]);
  const size_t num_heads = static_cast<size_t>(attention_case.num_heads),
               num_outputs = num_queries * num_heads;
  const size_t output_dim = static_cast<size_t>(attention_case.output_dim());
  const Result<std::vector<bf16>> output =
      rank_.view(output_.data() + query_offsets[last] * num_heads * output_dim, num_outputs * output_dim)
          .download();
  if (!output.ok()) return output.status();
  const Result<std::vector<float>> lse =
      rank_.view(lse_.data() + query_offsets[last] * num_heads, num_outputs).download();
  if (!lse.ok()) return lse.status();
  return reference::compare_attention(batch, output.value(), lse.value(), stride);
}

// As many tokens in sequences of each length, full and causal; and a ragged batch, in the best order and as
// its sequences lie.
void add_prefill_cases(const std::vector<int>& head_dims, const AttentionBenchSweep& sweep,
                       std::vector<AttentionBenchCase>& cases) {
  const int width = sweep.is_small ? 256 : 2048;  // heads times head dimension
  for (const int head_dim : head_dims)
    for (const bool causal : {false, true})
      for (const int length : sweep.lengths)
        cases.push_back({causal ? "causal" : "full",
                         std::to_string(length),
                         {.query_lens = std::vector<int>(
                              static_cast<size_t>(std::max(1, sweep.num_tokens / length)), length),
                          .num_heads = width / head_dim,
                          .num_kv_heads = width / head_dim,
                          .head_dim = head_dim,
                          .causal = causal,
                          .is_dense = true}});
  AttentionCase ragged{
      .query_lens = sweep.is_small ? ragged_lengths(6, 16, 128) : ragged_lengths(64, 128, 8192),
      .num_heads = sweep.is_small ? 2 : 16,
      .num_kv_heads = sweep.is_small ? 2 : 16,
      .head_dim = 128,
      .causal = true};
  cases.push_back({"ragged", "lpt queue", ragged});
  ragged.scheduler = TileSchedulerKind::kTile;
  ragged.order = MHASchedule::DEFAULT;
  cases.push_back({"ragged", "static", ragged});
}

// Few and many sequences; then, of many, such as differ in length, pages, and several queries.
void add_decode_cases(bool is_small, std::vector<AttentionBenchCase>& cases) {
  const int batch = is_small ? 4 : 64, num_keys = is_small ? 256 : 4096;
  const auto with = [&](int of_batch, int of_keys) {
    return AttentionCase{.query_lens = std::vector<int>(static_cast<size_t>(of_batch), 1),
                         .key_lens = std::vector<int>(static_cast<size_t>(of_batch), of_keys),
                         .num_heads = is_small ? 8 : 32,
                         .num_kv_heads = is_small ? 2 : 8,
                         .head_dim = 128,
                         .is_dense = true};
  };
  const auto name = [](int of_batch, int of_keys) {
    return std::to_string(of_batch) + " x " + std::to_string(of_keys);
  };
  cases.push_back({"decode", name(batch, num_keys), with(batch, num_keys)});
  const int few = is_small ? 1 : 4, many_keys = is_small ? 2048 : 65536;
  cases.push_back({"decode", name(few, many_keys), with(few, many_keys)});
  AttentionCase ragged = with(batch, num_keys);
  ragged.key_lens = ragged_lengths(batch, num_keys / 8, num_keys * 2);
  ragged.is_dense = false;
  cases.push_back({"decode", "ragged keys", ragged});
  for (const int page_size : {16, 64, 256}) {
    AttentionCase paged = with(batch, num_keys);
    paged.page_size = page_size;
    cases.push_back({"decode", "pages of " + std::to_string(page_size), paged});
  }
  for (const int num_queries : {4, 16}) {
    AttentionCase several = with(batch, num_keys);
    several.query_lens.assign(several.query_lens.size(), num_queries);
    several.causal = true;
    cases.push_back({"decode", std::to_string(num_queries) + " queries", several});
  }
}

// Decoding of latents: all heads of a model on one GPU, and fewer, over several; few sequences,
// lengths that differ, pages, and two queries.
void add_mla_cases(bool is_small, std::vector<AttentionBenchCase>& cases) {
  const int batch = is_small ? 2 : 128, num_keys = is_small ? 192 : 4096, all_heads = is_small ? 16 : 128;
  const auto add = [&](const std::string& label, int of_batch, int of_keys, int num_heads, auto change) {
    AttentionCase latent{.query_lens = std::vector<int>(static_cast<size_t>(of_batch), 1),
                         .key_lens = std::vector<int>(static_cast<size_t>(of_batch), of_keys),
                         .num_heads = num_heads,
                         .is_dense = true};
    reference::make_latent(latent);
    change(latent);
    cases.push_back({"mla", label, latent});
  };
  const auto as_it_is = [](AttentionCase&) {};
  for (const int num_heads : {all_heads, all_heads / 2, all_heads / 8})
    add(std::to_string(num_heads) + " heads", batch, num_keys, num_heads, as_it_is);
  add("few sequences", is_small ? 1 : 4, is_small ? 768 : 65536, all_heads, as_it_is);
  add("ragged keys", batch, num_keys, all_heads, [&](AttentionCase& ragged) {
    ragged.key_lens = ragged_lengths(batch, num_keys / 8, num_keys * 2);
    ragged.is_dense = false;
  });
  for (const int page_size : {16, 64})
    add("pages of " + std::to_string(page_size), batch, num_keys, all_heads,
        [&](AttentionCase& paged) { paged.page_size = page_size; });
  add("2 queries", batch, num_keys, all_heads, [](AttentionCase& several) {
    several.query_lens.assign(several.query_lens.size(), 2);
    several.causal = true;
  });
}

AttentionBenchCase with_codes(AttentionBenchCase bench_case) {
  bench_case.label = "fp8 " + bench_case.label;
  bench_case.attention_case.kv_format = KvFormat::kFP8;
  return bench_case;
}

std::vector<AttentionBenchCase> attention_bench_cases(const AttentionBenchSweep& sweep) {
  std::vector<AttentionBenchCase> cases;
  if (sweep.keys == AttentionBenchKeys::kLatents) {
    add_prefill_cases({128}, sweep, cases);  // as many heads as have 128 columns each before absorption
    for (AttentionBenchCase& bench_case : cases) reference::make_latent(bench_case.attention_case);
    add_mla_cases(sweep.is_small, cases);
    return cases;
  }
  add_prefill_cases(sweep.head_dims, sweep, cases);
  const size_t first_of_decode = cases.size();
  add_decode_cases(sweep.is_small, cases);
  if (sweep.keys == AttentionBenchKeys::kFP8)
    std::transform(cases.begin(), cases.end(), cases.begin(), with_codes);
  if (sweep.keys != AttentionBenchKeys::kTable) return cases;
  const size_t end_of_decode = cases.size();
  for (size_t i = first_of_decode; i < end_of_decode; ++i) cases.push_back(with_codes(cases[i]));
  add_mla_cases(sweep.is_small, cases);
  return cases;
}

}  // namespace switchyard::tools
