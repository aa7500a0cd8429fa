#include "attention_options.hpp"

#include "options.hpp"

namespace switchyard::tools {
namespace {

constexpr int kMaxBatch = 65536, kMaxSeqLen = 1 << 20;

void add_choices(CLI::App& command, reference::AttentionCase& attention_case) {
  add_choice_option<SchedulerChoice>(
      command, "--scheduler", attention_case.scheduler,
      {{"auto", SchedulerChoice::kAuto},
       {"transient", SchedulerChoice::kTransient},
       {"tile", SchedulerChoice::kTile},
       {"queued", SchedulerChoice::kQueued}},
      "transient (a block per tile), tile (each block every n-th), queued (the next free one),\n"
      "or auto, which chooses and says why");
  add_choice_option<OrderChoice>(
      command, "--order", attention_case.order,
      {{"auto", OrderChoice::kAuto},
       {"default", OrderChoice::kDefault},
       {"rotate", OrderChoice::kRotate},
       {"lpt", OrderChoice::kLpt}},
      "default (by sequence, head, tile), rotate (odd heads backwards), lpt (longest tiles first), auto");
  command.add_option("--ctas", attention_case.num_blocks, "Blocks at a time; 0: all multiprocessors")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
}

}  // namespace

void add_attention_options(CLI::App& command, AttentionOptions& options) {
  reference::AttentionCase& attention_case = options.attention_case;
  add_target_option(command, options.target);
  CLI::Option* batch = command.add_option("--batch", options.batch, "Sequences, all of --seq queries")
                           ->check(CLI::Range(0, kMaxBatch))
                           ->capture_default_str();
  CLI::Option* seq = command.add_option("--seq", options.seq_len, "Queries of each sequence")
                         ->check(CLI::Range(0, kMaxSeqLen))
                         ->capture_default_str();
  add_list_option(command, "--seq-lens", options.seq_lens, 0, kMaxSeqLen,
                  "Queries of each sequence, as 512,0,17,..")
      ->excludes(batch)
      ->excludes(seq);
  add_list_option(command, "--kv-lens", options.kv_lens, 0, kMaxSeqLen,
                  "Keys of each sequence, or one number for all [as the queries]");
  command.add_option("--heads", attention_case.num_heads, "Query heads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--kv-heads", options.num_kv_heads, "K/V heads, a divisor of --heads [--heads]")
      ->check(CLI::Range(1, 1024));
  command.add_option("--head-dim", attention_case.head_dim, "Elements of a row of a head")
      ->check(CLI::IsMember({64, 128, 256}))
      ->capture_default_str();
  command.add_flag("--causal", attention_case.causal, "A query sees the keys up to its own position only");
  command.add_option("--window", attention_case.window, "A query sees keys less than so far away; 0: all")
      ->check(CLI::Range(0, kMaxSeqLen))
      ->capture_default_str();
  command
      .add_option("--page-size", attention_case.page_size,
                  "Keys and values in pages of so many rows; 0: none")
      ->check(CLI::IsMember({0, 16, 32, 64, 128, 256}))
      ->capture_default_str();
  add_choices(command, attention_case);
  add_seed_option(command, "--seed", attention_case.seed, "All numbers follow from it");
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
  attention_case.num_kv_heads = options.num_kv_heads == 0 ? attention_case.num_heads : options.num_kv_heads;
  if (attention_case.num_heads % attention_case.num_kv_heads != 0)
    return invalid_argument("--kv-heads: %d must be a divisor of --heads (%d)", attention_case.num_kv_heads,
                            attention_case.num_heads);
  return check_target_option(options.target);
}

double attention_flops(const reference::AttentionCase& attention_case) {
  double seen = 0;
  for (size_t s = 0; s < attention_case.query_lens.size(); ++s) {
    const double queries = attention_case.query_lens[s];
    const double keys = attention_case.num_keys()[s];
    // Causal counts half of a square, as is usual: that of the queries, or of the keys if they are fewer.
    const double square = std::min(queries, keys);
    double of_sequence = attention_case.causal ? square * (keys - square / 2) : queries * keys;
    if (attention_case.window > 0)
      of_sequence =
          std::min(of_sequence, queries * attention_case.window * (attention_case.causal ? 1.0 : 2.0));
    seen += of_sequence;
  }
  return 4 * seen * attention_case.num_heads * attention_case.head_dim;
}

uint64_t key_value_bytes(const reference::AttentionCase& attention_case) {
  return static_cast<uint64_t>(attention_case.total_keys()) *
         static_cast<uint64_t>(attention_case.num_kv_heads) * static_cast<uint64_t>(attention_case.head_dim) *
         2 * sizeof(bf16);
}

}  // namespace switchyard::tools
