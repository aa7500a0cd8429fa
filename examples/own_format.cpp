// Dispatch with a token format of one's own: the library's kernel, instantiated with it and launched by hand,
// for one rank that owns all experts.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "int8_token_format.hpp"
#include "switchyard/detail/ep/slotted/kernels.hpp"
#include "switchyard/world.hpp"

using namespace switchyard;
using example::Int8TokenFormat;

// A value, or the end of the program with the reason.
template <typename T>
T need(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.status().to_string().c_str());
  std::exit(1);
}
void need(const Status& status) {
  if (!status.ok()) need(Result<int>(status));
}

int main() {
  constexpr EpShape kShape{1, /*n_experts=*/4, /*top_k=*/2, /*hidden=*/256, /*max_tokens_per_rank=*/16, 1};
  constexpr int kTokens = 16, kRows = kTokens * kShape.top_k;
  std::vector<bf16> tokens(kTokens * kShape.hidden);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = to_bf16(static_cast<float>(i * 37 % 201) - 100.0f);
  std::vector<int32_t> topk_ids(kRows);
  for (int i = 0; i < kRows; ++i) topk_ids[i] = i * 3 % kShape.n_experts;

  auto world = need(World::create({.target = TargetChoice::kHost}));
  Rank& rank = world->rank(0);
  const auto rows = need(rank.allocate<int8_t>(kRows * kShape.hidden));
  const auto scales = need(rank.allocate<float>(kRows));
  const Int8TokenFormat format{kShape.hidden, rows.data(), scales.data()};

  // What ExpertParallel would allocate: slots for messages, cells that say nothing has arrived, counters.
  const uint32_t message_bytes = MessageLayout{format.encoded_bytes(), kShape.top_k}.bytes();
  const auto slots = need(rank.allocate<std::byte>(
      DispatchRecvLayout{kShape.n_experts, 1, kTokens, message_bytes}.bytes().value()));
  auto cells = need(rank.allocate<uint64_t>(kShape.n_experts));
  need(cells.fill_bytes(0xff));
  using Counters = EPLocalSyncCounters<kShape.n_experts>;
  const auto counters = need(rank.allocate<int32_t>(Counters::total_size()));
  const auto fault = need(DeviceMemory::allocate_host_visible(rank.device(), sizeof(FaultRecord)));
  const auto poison = need(rank.allocate<uint32_t>(1));
  // The input and the rest of the output.
  const auto input = need(rank.upload(tokens));
  const auto ids = need(rank.upload(topk_ids));
  const auto row_offsets = need(rank.allocate<uint32_t>(kShape.n_experts + 1));
  const auto expert_ids = need(rank.allocate<int32_t>(kShape.n_experts));
  const auto src_info = need(rank.allocate<int32_t>(2 * kRows));

  DispatchParams<Int8TokenFormat> params{};
  params.format = format;
  params.shape = kShape;
  params.num_tokens = kTokens;
  params.input_tokens = input.data();
  params.topk_ids = ids.data();
  params.row_offsets = row_offsets.data();
  params.expert_ids = expert_ids.data();
  params.src_info = src_info.data();
  params.max_rows = kRows;
  params.recv_bufs.of_rank[0] = slots.data();
  params.recv_counts.of_rank[0] = cells.data();
  params.ep_counters = Counters(counters);
  params.fault.record = fault.as<FaultRecord>();
  params.fault.poison[0] = poison.data();
  params.fault.n_ranks = 1;
  params.fault.timeout_ns = 10'000'000'000;
  need(target::launch(
      "dispatch", dispatch_kernel<RunTimeShape, Int8TokenFormat>,
      {.num_blocks = 2, .num_threads = 128, .shared_bytes = dispatch_shared_bytes(message_bytes)},
      rank.stream(), params));

  const auto codes = need(rows.download());
  const auto row_scales = need(scales.download());
  const auto sources = need(src_info.download());
  if (need(row_offsets.download()).back() != kRows) return std::fprintf(stderr, "rows are missing\n"), 1;
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < kShape.hidden; ++i) {
      const float value = to_float(tokens[sources[2 * row] * kShape.hidden + i]);
      if (std::fabs(static_cast<float>(codes[row * kShape.hidden + i]) * row_scales[row] - value) >
          0.501f * row_scales[row])
        return std::fprintf(stderr, "row %d, element %d: wrong\n", row, i), 1;
    }
  std::printf("%d tokens to %d of %d experts as int8, %u bytes a message: every element within half a step\n",
              kTokens, kShape.top_k, kShape.n_experts, message_bytes);
}
