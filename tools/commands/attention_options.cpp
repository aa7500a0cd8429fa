#include "attention_options.hpp"

#include "options.hpp"

namespace switchyard::tools {
namespace {

constexpr int kMaxBatch = 65536, kMaxSeqLen = 1 << 20;

// Numbers as choices, each by its name.
std::vector<std::pair<std::string, int>> numbers(std::initializer_list<int> values) {
  std::vector<std::pair<std::string, int>> choices;
  for (const int value : values) choices.emplace_back(std::to_string(value), value);
  return choices;
}

void add_choices(Command& command, reference::AttentionCase& attention_case) {
  add_scheduler_option(command, attention_case.scheduler);
  add_order_option(command, attention_case.order);
  command.add_number("--ctas", attention_case.num_blocks, 0, 65535,
                     "Blocks at a time; 0: all multiprocessors");
}

// "name (what it means), .."
void add_meaning(std::string& description, const std::string& name, const std::string& meaning) {
  description += (description.empty() ? "" : ", ") + name + " (" + meaning + ")";
}

}  // namespace

Option add_scheduler_option(Command& command, TileSchedulerKind& kind) {
  std::vector<std::pair<std::string, TileSchedulerKind>> choices;
  std::string description;
  if (kind == TileSchedulerKind::kAutomatic) choices.emplace_back(to_string(kind), kind);
  for (const TileSchedulerName& scheduler : kTileSchedulers) {
    choices.emplace_back(scheduler.name, scheduler.kind);
    add_meaning(description, scheduler.name, scheduler.meaning);
  }
  if (kind == TileSchedulerKind::kAutomatic) description += ",\nor auto, which chooses and says why";
  return command.add_choice("--scheduler", kind, choices, description);
}

Option add_order_option(Command& command, MHASchedule& order) {
  std::vector<std::pair<std::string, MHASchedule>> choices;
  std::string description;
  if (order == MHASchedule::AUTOMATIC) choices.emplace_back(option_name(order), order);
  for (const OrderName& name : kOrders) {
    choices.emplace_back(name.option, name.order);
    add_meaning(description, name.option, name.meaning);
  }
  if (order == MHASchedule::AUTOMATIC) description += ", auto";
  return command.add_choice("--order", order, choices, description);
}

void add_attention_options(Command& command, AttentionOptions& options) {
  reference::AttentionCase& attention_case = options.attention_case;
  add_target_option(command, options.target);
  const Option batch =
      command.add_number("--batch", options.batch, 0, kMaxBatch, "Sequences, all of --seq queries");
  const Option seq = command.add_number("--seq", options.seq_len, 0, kMaxSeqLen, "Queries of each sequence");
  command.add_list("--seq-lens", options.seq_lens, 0, kMaxSeqLen, "Queries of each sequence, as 512,0,17,..")
      .excludes(batch)
      .excludes(seq);
  command.add_list("--kv-lens", options.kv_lens, 0, kMaxSeqLen,
                   "Keys of each sequence, or one number for all [as the queries]");
  command.add_number("--heads", attention_case.num_heads, 1, 1024, "Query heads");
  const Option kv_heads = command
                              .add_number("--kv-heads", options.num_kv_heads, 1, 1024,
                                          "K/V heads, a divisor of --heads [--heads]")
                              .hide_default();
  const Option head_dim = command.add_choice("--head-dim", attention_case.head_dim, numbers({64, 128, 256}),
                                             "Elements of a row of a head: 64, 128 or 256");
  command
      .add_flag("--mla", options.is_mla,
                "Multi-head latent attention: keys of 576 elements that all heads share, whose first 512\n"
                "are the values")
      .excludes(head_dim)
      .excludes(kv_heads);
  command.add_choice(
      "--kv-format", attention_case.kv_format,
      std::vector<std::pair<std::string, KvFormat>>{{"bf16", KvFormat::kBF16}, {"fp8", KvFormat::kFP8}},
      "Keys and values as bf16, or as fp8 codes (e4m3) with a scale for each head");
  command.add_flag("--causal", attention_case.causal, "A query sees the keys up to its own position only");
  command.add_number("--window", attention_case.window, 0, kMaxSeqLen,
                     "A query sees keys less than so far away; 0: all");
  command.add_fraction("--soft-cap", options.soft_cap, 0, 1000,
                       "Scores s become C * tanh(s / C); 0: they stay as they are");
  command.add_flag("--sinks", attention_case.has_sinks, "Every head has one more score, without a key");
  command.add_choice("--page-size", attention_case.page_size, numbers({0, 16, 32, 64, 128, 256}),
                     "Keys and values in pages of so many rows, 16, 32, 64, 128 or 256; 0: none");
  add_choices(command, attention_case);
  command.add_seed("--seed", attention_case.seed, "All numbers follow from it");
}

Status finish_attention_options(AttentionOptions& options) {
  reference::AttentionCase& attention_case = options.attention_case;
  attention_case.query_lens = options.seq_lens;
  if (options.seq_lens.empty())
    attention_case.query_lens.assign(static_cast<size_t>(options.batch), options.seq_len);
  attention_case.key_lens = options.kv_lens;
  if (options.kv_lens.size() == 1)
    attention_case.key_lens.assign(attention_case.query_lens.size(), options.kv_lens[0]);
  if (!attention_case.key_lens.empty() && attention_case.key_lens.size() != attention_case.query_lens.size())
    return invalid_argument("--kv-lens: %zu values given for %zu sequences", attention_case.key_lens.size(),
                            attention_case.query_lens.size());
  attention_case.is_dense = options.seq_lens.empty() && options.kv_lens.size() <= 1;
  attention_case.soft_cap = static_cast<float>(options.soft_cap);
  attention_case.num_kv_heads = options.num_kv_heads == 0 ? attention_case.num_heads : options.num_kv_heads;
  if (options.is_mla) reference::make_latent(attention_case);
  if (attention_case.num_heads % attention_case.num_kv_heads != 0)
    return invalid_argument("--kv-heads: %d must be a divisor of --heads (%d)", attention_case.num_kv_heads,
                            attention_case.num_heads);
  return check_target_option(options.target);
}

}  // namespace switchyard::tools
