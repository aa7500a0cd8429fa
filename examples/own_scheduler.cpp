// Attention with a tile scheduler of one's own: each block has neighbouring tiles, so that most of its tiles
// share a K/V head. The output has the same bits as with a scheduler of the library.
#include <cstdio>

#include "switchyard/own_attention_kernels.hpp"

using namespace switchyard;

template <TileEnvironment Environment>
struct ChunkScheduler : TileSchedulerBase<MHASchedule::DEFAULT, Environment> {
  using TileSchedulerBase<MHASchedule::DEFAULT, Environment>::TileSchedulerBase;
  using device_type = ChunkScheduler;
  static constexpr bool may_advance = true;

  SWITCHYARD_NO_EXEC_CHECK
  SWITCHYARD_HD MHATileState initial_state(uint32_t* mailboxes, const auto& summary) const {
    const uint32_t num_places = summary.max_idx(this->shape().num_heads), num_blocks = this->shape().num_ctas;
    const uint32_t chunk = (num_places + num_blocks - 1) / num_blocks;
    const uint32_t begin = this->environment_.block_idx() * chunk;
    return this->state_at(begin, begin + chunk < num_places ? begin + chunk : num_places, mailboxes, summary);
  }
  template <bool producer, MHASchedulerSynchronization sync = MHASchedulerSynchronization::DEFAULT>
  SWITCHYARD_HD OptionalReg<SeqInfo> advance(const auto& summary, MHATileState& state, uint32_t) const {
    return this->advance_by(1, summary, state);
  }
  static constexpr const char* get_type_name() { return "ChunkScheduler"; }
};

int main() {
  const int num_rows = 500, num_heads = 2, head_dim = 64;
  auto world = World::create({.target = TargetChoice::kHost}).value();
  std::vector<bf16> numbers(num_rows * num_heads * head_dim), outputs[2];
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = to_bf16(static_cast<float>(i * 37 % 201) / 100 - 1);
  const auto input = world->rank(0).upload(numbers).value();
  for (const bool is_own : {false, true}) {
    AttentionShape shape{.head_dim = head_dim,
                         .num_heads = num_heads,
                         .num_kv_heads = num_heads,
                         .batch_size = 1,
                         .max_query_len = num_rows,
                         .max_key_len = num_rows,
                         .num_query_rows = num_rows,
                         .num_key_rows = num_rows,
                         .causal = true,
                         .num_blocks = 3};
    if (is_own) shape.own_kernels = &own_attention_kernels<ChunkScheduler, 64>();
    const auto attention = Attention::create(world->rank(0), shape).value();
    const auto output = world->rank(0).allocate<bf16>(numbers.size()).value();
    if (!attention->run({input.data(), input.data(), input.data(), output.data()}).ok()) return 1;
    outputs[is_own] = output.download().value();
    std::printf("%s\n", to_string(attention->choice({})).c_str());
  }
  return outputs[0] == outputs[1] ? 0 : 1;
}
