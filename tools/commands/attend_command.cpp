// `switchyard attend`: attention over a batch, verified against the plain reference.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "attention_options.hpp"
#include "benchmarks/replay.hpp"
#include "commands.hpp"
#include "files/json_object.hpp"
#include "files/output.hpp"
#include "options.hpp"
#include "report/progress.hpp"
#include "workload/host_memory.hpp"
#include "workload/tile_twin.hpp"

namespace switchyard::tools {
namespace {

using reference::AttentionCase;
using reference::AttentionDifference;
using reference::AttentionHarness;

// The most products that the reference computes; of larger batches it computes every n-th row.
constexpr double kMaxReferenceProducts = 2e9;

struct Report {
  AttentionDifference difference;
  AttentionChoice choice;
  int64_t num_rows = 0;  // of all heads
  int stride = 1;        // every so many were verified
  double microseconds = 0;
  double flops = 0;
  uint64_t kv_bytes = 0;
  Target target = Target::kHost;
  std::string device;

  bool verified() const { return difference.first_bad.empty(); }
};

// Counts the batch, the reference's copy, and on the host the emulator's too.
double host_bytes(const AttentionCase& attention_case, Target target) {
  const double bytes = 4.0 * static_cast<double>(attention_case.total_queries()) * attention_case.num_heads *
                           attention_case.head_dim +
                       static_cast<double>(attention_case.key_value_bytes());
  return bytes * (target == Target::kHost ? 2 : 1);
}

Status with_attention_flags(const Status& status) {
  return with_flags(status, {{"head_dim", "--head-dim"},
                             {"num_heads", "--heads"},
                             {"num_kv_heads", "--kv-heads"},
                             {"max_query_len", "--seq"},
                             {"max_key_len", "--kv-lens"},
                             {"page_size", "--page-size"},
                             {"soft_cap", "--soft-cap"},
                             {"sinks", "--sinks"},
                             {"kv_format", "--kv-format"},
                             {"value_dim", "--mla"}});
}

Status attend(const AttentionOptions& options, Report& report) {
  const AttentionCase& attention_case = options.attention_case;
  Progress progress(4);
  progress.begin("preparing");
  Result<std::unique_ptr<World>> world = World::create({.target = target_choice(options.target)});
  if (!world.ok()) return world.status();
  report.target = world.value()->target();
  report.device = world.value()->rank(0).device_name();
  SWITCHYARD_RETURN_IF_ERROR(check_host_memory(host_bytes(attention_case, report.target)));
  Result<std::unique_ptr<AttentionHarness>> created =
      AttentionHarness::create(world.value()->rank(0), attention_case);
  if (!created.ok()) return with_attention_flags(created.status());
  AttentionHarness& harness = *created.value();
  report.choice = harness.choice();
  report.flops = attention_case.flops();
  report.kv_bytes = attention_case.key_value_bytes();
  report.num_rows = static_cast<int64_t>(harness.batch().query_offsets.back()) * attention_case.num_heads;

  progress.begin("attending");
  Graphs graphs;
  Result<std::unique_ptr<Graph>> graph = world.value()->capture([&] {
    SWITCHYARD_RETURN_IF_ERROR(world.value()->mark("attention"));
    return harness.launch();
  });
  if (!graph.ok()) return with_attention_flags(graph.status());
  graphs.push_back(std::move(graph).value());
  progress.begin("timing");
  const Result<std::vector<SpanSamples>> samples =
      time_replays(graphs, report.target == Target::kHost ? 1 : 10);
  if (!samples.ok()) return samples.status();
  report.microseconds = samples.value().front().summarize(0).median_us;

  progress.begin("verifying");
  report.stride = static_cast<int>(std::clamp(report.flops / 4 / kMaxReferenceProducts, 0.0, 1e9)) + 1;
  if (report.stride % 2 == 0) ++report.stride;  // so that it does not keep to some heads
  const Result<AttentionDifference> difference = harness.compare(report.stride);
  if (!difference.ok()) return difference.status();
  report.difference = difference.value();
  return Status();
}

void print_table(const AttentionOptions& options, const Report& report) {
  const AttentionCase& attention_case = options.attention_case;
  std::printf("Switchyard: attention over %zu sequence%s\n\n", attention_case.query_lens.size(),
              attention_case.query_lens.size() == 1 ? "" : "s");
  std::printf("  target     %s: %s\n", to_string(report.target), report.device.c_str());
  std::printf("  heads      %d of %d, %d for keys and values%s\n", attention_case.num_heads,
              attention_case.head_dim, attention_case.num_kv_heads, attention_case.causal ? ", causal" : "");
  std::printf("  scheduler  %s, order %s, %u blocks: %s\n", to_string(report.choice.scheduler),
              option_name(report.choice.order), report.choice.num_blocks, report.choice.reason.c_str());
  std::printf("  kernel     %s, tiles of %u queries", to_string(report.choice.kind), report.choice.tile_rows);
  if (report.choice.num_splits > 1) std::printf(", keys in %u parts", report.choice.num_splits);
  std::printf("\n  time       %.1f us: %.4g TFLOP/s, keys and values at %.4g TB/s\n", report.microseconds,
              report.flops / report.microseconds * 1e-6,
              static_cast<double>(report.kv_bytes) / report.microseconds * 1e-6);
  std::printf("  error      %.2e relative, %.2e at most, log-sum-exp %.2e\n",
              report.difference.relative_error, report.difference.max_abs_error,
              report.difference.max_lse_error);
  if (!report.verified())
    std::printf("  NOT VERIFIED  %s\n", report.difference.first_bad.c_str());
  else if (report.stride > 1)
    std::printf("  verified   every %d-th of %lld rows\n", report.stride,
                static_cast<long long>(report.num_rows));
  else
    std::printf("  verified   all %lld rows\n", static_cast<long long>(report.num_rows));
}

std::string to_json(const AttentionOptions& options, const Report& report) {
  const AttentionCase& attention_case = options.attention_case;
  JsonObject json;
  json.add("verified", report.verified())
      .add("relative_error", report.difference.relative_error)
      .add("max_abs_error", report.difference.max_abs_error)
      .add("max_lse_error", report.difference.max_lse_error)
      .add("rows", report.num_rows)
      .add("verified_every", report.stride)
      .add("microseconds", report.microseconds)
      .add("flops", report.flops)
      .add("kv_bytes", report.kv_bytes)
      .add("target", to_string(report.target))
      .add("device", report.device)
      .add("seq_lens", attention_case.query_lens)
      .add("kv_lens", attention_case.num_keys())
      .add("heads", attention_case.num_heads)
      .add("kv_heads", attention_case.num_kv_heads)
      .add("head_dim", attention_case.head_dim)
      .add("value_dim", attention_case.output_dim())
      .add("kv_format", to_string(attention_case.kv_format))
      .add("causal", attention_case.causal)
      .add("window", attention_case.window)
      .add("page_size", attention_case.page_size)
      .add("scheduler", to_string(report.choice.scheduler))
      .add("order", option_name(report.choice.order))
      .add("reason", report.choice.reason)
      .add("kernel", to_string(report.choice.kind))
      .add("ctas", report.choice.num_blocks)
      .add("splits", report.choice.num_splits)
      .add("seed", attention_case.seed);
  if (!report.verified()) json.add("first_difference", report.difference.first_bad);
  return json.to_text();
}

Result<ExitCode> attend_and_report(AttentionOptions& options, const std::string& json) {
  SWITCHYARD_RETURN_IF_ERROR(finish_attention_options(options));
  SWITCHYARD_RETURN_IF_ERROR(check_output_names({{"--json", json}}));
  Report report;
  SWITCHYARD_RETURN_IF_ERROR(attend(options, report));
  if (json != "-") print_table(options, report);
  SWITCHYARD_RETURN_IF_ERROR(write_output({"--json", json}, to_json(options, report)));
  return report.verified() ? kVerified : kNotVerified;
}

}  // namespace

void add_attend_command(CommandLine& line) {
  Command command = line.add_command("attend", "Run attention over a batch and verify it");
  auto options = std::make_shared<AttentionOptions>();
  auto json = std::make_shared<std::string>();
  add_attention_options(command, *options);
  add_json_option(command, *json);
  command.set_work([=] { return attend_and_report(*options, *json); });
}

}  // namespace switchyard::tools
