#include "workload.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "reference/all_cores.hpp"
#include "switchyard/detail/ep/shape.hpp"

namespace switchyard::tools {
namespace {

// A sequence of random numbers, identified by (seed, purpose, index): it is the same on every machine and
// cheap to generate in bulk.
class Random {
 public:
  Random(uint64_t seed, uint64_t purpose, uint64_t index) : state_(seed * kIncrement) {
    state_ ^= mix(purpose + 1) ^ mix(index + 0x10001);
  }
  uint64_t next() { return mix(state_ += kIncrement); }
  // The sequence from its number `position` on, counted from here.
  Random from(uint64_t position) const {
    Random later = *this;
    later.state_ += position * kIncrement;
    return later;
  }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }  // [0, 1)
  // A sum of four uniforms is close enough to a normal distribution for test data; twelve would be closer,
  // but cost more.
  float normal() {
    const uint64_t bits = next();
    const auto part = [&](int i) { return static_cast<float>(bits >> (16 * i) & 0xffff) * 0x1p-16f - 0.5f; };
    return (part(0) + part(1) + part(2) + part(3)) * std::sqrt(3.0f);
  }

 private:
  static constexpr uint64_t kIncrement = 0x9e3779b97f4a7c15ull;

  static uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
  }
  uint64_t state_;
};

enum Purpose : uint64_t { kTokens, kLogits, kWeights, kPadding, kGateUp, kDown };

uint64_t stream_of(int step_idx, int rank) {
  return static_cast<uint64_t>(step_idx) * 4096 + static_cast<uint64_t>(rank);
}

// make(random, i) for every i, which takes number i of the sequence and no other; many, on all cores.
template <typename T, typename Make>
std::vector<T> random_values(size_t size, const Random& sequence, Make make) {
  constexpr size_t kNumPerPiece = 1 << 16;
  std::vector<T> values(size);
  reference::for_each_on_all_cores((size + kNumPerPiece - 1) / kNumPerPiece, [&](size_t piece) {
    const size_t begin = piece * kNumPerPiece, end = std::min(begin + kNumPerPiece, size);
    Random random = sequence.from(begin);
    for (size_t i = begin; i < end; ++i) values[i] = make(random, i);
  });
  return values;
}

std::vector<bf16> random_matrix(uint64_t seed, Purpose purpose, int expert, size_t size, float scale) {
  return random_values<bf16>(size, Random(seed, purpose, static_cast<uint64_t>(expert)),
                             [&](Random& random, size_t) { return to_bf16(random.normal() * scale); });
}

}  // namespace

int Workload::max_tokens_per_rank() const {
  return tokens_per_rank.empty() ? 0 : *std::max_element(tokens_per_rank.begin(), tokens_per_rank.end());
}

Status read_routing_file(const std::string& path, int top_k, Workload& workload) {
  if (std::error_code error; std::filesystem::is_directory(path, error))
    return invalid_argument("--routing: %s is a directory; it must be a file", path.c_str());
  std::ifstream file(path);
  if (!file)
    return invalid_argument("--routing: %s is not uniform, zipf or one-expert, and no file to read: %s",
                            path.c_str(), std::strerror(errno));
  workload.file_ids.assign(static_cast<size_t>(workload.n_ranks), {});
  std::string line;
  bool has_tokens = false;
  for (int line_number = 1; std::getline(file, line); ++line_number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos || line.front() == '#') continue;
    std::vector<int32_t> fields;
    const char* position = line.data();
    const char* const end = position + line.size();
    for (;;) {
      while (position < end && *position == ' ') ++position;
      int32_t value = 0;
      const auto [after, error] = std::from_chars(position, end, value);
      if (error != std::errc())
        return invalid_argument("--routing: %s line %d, column %td: %s", path.c_str(), line_number,
                                position - line.data() + 1,
                                error == std::errc::result_out_of_range ? "the number does not fit 32 bits"
                                                                        : "not a whole number");
      fields.push_back(value);
      position = after;
      while (position < end && *position == ' ') ++position;
      if (position == end) break;
      if (*position++ != ',')
        return invalid_argument("--routing: %s line %d: fields must be separated by commas", path.c_str(),
                                line_number);
    }
    const int num_ids = static_cast<int>(fields.size()) - 1;
    if (num_ids < 1 || num_ids > kMaxTopK)
      return invalid_argument("--routing: %s line %d has %d ids; it must have 1..%d", path.c_str(),
                              line_number, num_ids, kMaxTopK);
    if (top_k == 0) top_k = num_ids;
    if (num_ids != top_k)
      return invalid_argument("--routing: %s line %d has %d id%s; it must have %d, as %s", path.c_str(),
                              line_number, num_ids, num_ids == 1 ? "" : "s", top_k,
                              has_tokens ? "the lines before it" : "--top-k says");
    if (fields[0] < 0 || fields[0] >= workload.n_ranks)
      return invalid_argument("--routing: %s line %d: rank %d must be 0..%d (--ranks)", path.c_str(),
                              line_number, fields[0], workload.n_ranks - 1);
    for (int i = 1; i <= num_ids; ++i)
      if (fields[i] < -1 || fields[i] >= workload.n_experts)
        return invalid_argument("--routing: %s line %d: id %d must be -1..%d (--experts)", path.c_str(),
                                line_number, fields[i], workload.n_experts - 1);
    auto& ids = workload.file_ids[static_cast<size_t>(fields[0])];
    ids.insert(ids.end(), fields.begin() + 1, fields.end());
    if (ids.size() > static_cast<size_t>(kMaxTokensPerRank) * static_cast<size_t>(top_k))
      return invalid_argument("--routing: %s line %d: rank %d has more than %d tokens", path.c_str(),
                              line_number, fields[0], kMaxTokensPerRank);
    has_tokens = true;
  }
  if (file.bad()) return invalid_argument("--routing: %s cannot be read to its end", path.c_str());
  if (!has_tokens) return invalid_argument("--routing: %s has no line with ids", path.c_str());
  workload.top_k = top_k;
  workload.tokens_per_rank.clear();
  for (const auto& ids : workload.file_ids)
    workload.tokens_per_rank.push_back(static_cast<int>(ids.size()) / top_k);
  return Status();
}

bool has_router(const Workload& workload) {
  return workload.routing == RoutingKind::kUniform || workload.routing == RoutingKind::kZipf;
}

namespace {

// The rank whose tokens this rank has.
int source_of(const Workload& workload, int rank) { return workload.is_replicated ? 0 : rank; }

}  // namespace

reference::Step make_step(const Workload& workload, int step_idx) {
  reference::Step step{workload.n_ranks, workload.n_experts, workload.top_k, workload.hidden, {}, {}, {}};
  for (int rank = 0; rank < workload.n_ranks; ++rank) {
    const size_t num_tokens = static_cast<size_t>(workload.tokens_per_rank[rank]);
    const size_t num_ids = num_tokens * static_cast<size_t>(workload.top_k);
    const uint64_t stream = stream_of(step_idx, source_of(workload, rank));
    step.tokens.push_back(random_values<bf16>(
        num_tokens * static_cast<size_t>(workload.hidden), Random(workload.seed, kTokens, stream),
        [](Random& random, size_t) { return to_bf16(random.normal()); }));
    step.topk_ids.push_back(workload.routing == RoutingKind::kFile ? workload.file_ids[rank]
                                                                   : std::vector<int32_t>(num_ids, 0));
    step.topk_weights.push_back(
        random_values<float>(num_ids, Random(workload.seed, kWeights, stream), [&](Random& random, size_t) {
          return (0.5f + random.uniform()) / static_cast<float>(workload.top_k);
        }));
  }
  return step;
}

std::vector<std::vector<float>> make_logits(const Workload& workload, int step_idx) {
  std::vector<std::vector<float>> logits;
  for (int rank = 0; rank < workload.n_ranks; ++rank) {
    const size_t n_experts = static_cast<size_t>(workload.n_experts);
    const auto logit = [&](Random& random, size_t i) {
      // Gumbel noise: the largest of logit + noise is drawn with the softmax probability of its logit.
      const float noise = -std::log(-std::log(random.uniform() * 0.999999f + 5e-7f));
      const float popularity =
          workload.routing == RoutingKind::kZipf ? -std::log(static_cast<float>(i % n_experts + 1)) : 0.0f;
      return popularity + noise;
    };
    logits.push_back(random_values<float>(
        static_cast<size_t>(workload.tokens_per_rank[rank]) * n_experts,
        Random(workload.seed, kLogits, stream_of(step_idx, source_of(workload, rank))), logit));
  }
  return logits;
}

void apply_padding(const Workload& workload, int step_idx, reference::Step& step) {
  for (int rank = 0; rank < workload.n_ranks; ++rank) {
    Random random(workload.seed, kPadding, stream_of(step_idx, source_of(workload, rank)));
    for (int32_t& id : step.topk_ids[rank])
      if (random.uniform() < workload.padding) id = -1;
  }
}

std::vector<float> expert_input_scales(TokenFormatKind format, int n_experts) {
  std::vector<float> scales;
  for (int expert = 0; info_of(format).encodes_by_expert && expert < n_experts; ++expert)
    scales.push_back(kInputScale * (1 + 0.25f * static_cast<float>(expert % 4)));
  return scales;
}

reference::MlpExperts make_experts(const Workload& workload) {
  reference::MlpExperts experts{workload.hidden, workload.expert_width, {}, {}};
  const size_t size = static_cast<size_t>(workload.hidden) * static_cast<size_t>(workload.expert_width);
  for (int expert = 0; expert < workload.n_experts + (workload.has_shared_expert ? 1 : 0); ++expert) {
    experts.gate_up.push_back(random_matrix(workload.seed, kGateUp, expert, 2 * size,
                                            1.0f / std::sqrt(static_cast<float>(workload.hidden))));
    experts.down.push_back(random_matrix(workload.seed, kDown, expert, size,
                                         1.0f / std::sqrt(static_cast<float>(workload.expert_width))));
  }
  return experts;
}

}  // namespace switchyard::tools
