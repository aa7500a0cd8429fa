// The options that describe a batch of attention and how it is to run, for the commands that run one.
#pragma once

#include <string>
#include <vector>

#include "command_line.hpp"
#include "reference/attention_case.hpp"

namespace switchyard::tools {

struct AttentionOptions {
  std::string target = "auto";
  int batch = 2;
  int seq_len = 512;
  std::vector<int> seq_lens;
  std::vector<int> kv_lens;
  int num_kv_heads = 0;  // 0: as many as heads
  double soft_cap = 0;
  bool is_mla = false;
  reference::AttentionCase attention_case{.num_heads = 4, .num_kv_heads = 0, .head_dim = 128};
};

// --scheduler and --order: one of the list each, or, where the value is automatic, that as well.
Option add_scheduler_option(Command& command, TileSchedulerKind& kind);
Option add_order_option(Command& command, MHASchedule& order);
// Adds --target, and all options of the case.
void add_attention_options(Command& command, AttentionOptions& options);
// Checks what involves more than one flag; fills in the case.
Status finish_attention_options(AttentionOptions& options);

}  // namespace switchyard::tools
