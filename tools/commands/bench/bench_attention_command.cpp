// `switchyard bench attention`: attention by graph replay, over the shapes of the table in
// docs/performance.md.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <span>

#include "benchmarks/attention_bench.hpp"
#include "commands/commands.hpp"
#include "files/npy.hpp"
#include "replay_bench.hpp"
#include "switchyard/detail/attention/tuning.hpp"

namespace switchyard::tools {
namespace {

struct BenchOptions : ReplayOptions {
  AttentionBenchSweep sweep;
  bool is_mla = false;
  std::string only = "all";
  bool tunes = false;
  std::string inputs;

  bool prints_table() const { return ReplayOptions::prints_table() && inputs != "-"; }
};

constexpr const char* kAllGroups = "all";

using BenchReport = ReplayReport<AttentionBenchResult>;

Status finish_options(BenchOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(resolve_target_option(options.target));
  AttentionBenchSweep& sweep = options.sweep;
  if (options.is_mla) sweep.keys = AttentionBenchKeys::kLatents;
  sweep.is_small = options.target == "host";
  set_default(sweep.head_dims, options.target, {64}, {128, 64, 256});
  set_default(sweep.lengths, options.target, {64, 256}, {512, 1024, 2048, 4096, 8192, 16384});
  set_default(sweep.num_tokens, options.target, 256, 16384);
  set_default(options.num_replays, options.target, 2, 10);
  for (const int head_dim : sweep.head_dims)
    if (head_dim != 64 && head_dim != 128 && head_dim != 256)
      return invalid_argument("--head-dims: %d must be 64, 128 or 256", head_dim);
  return check_output_names({{"--json", options.json}, {"--inputs", options.inputs}});
}

// Replaces each case that is no decoding by one for each kernel that could run it.
std::vector<AttentionBenchCase> cases_of_candidates(const std::vector<AttentionBenchCase>& cases) {
  std::vector<AttentionBenchCase> candidates;
  for (const AttentionBenchCase& bench_case : cases) {
    const AttentionShape shape = bench_case.attention_case.shape();
    const AttentionKind kind = kind_of_attention(shape.head_dim, shape.max_query_len, shape.max_key_len,
                                                 shape.causal, shape.kv_format);
    if (kind == AttentionKind::kDecode) continue;
    for (int candidate = 0; candidate < num_candidates(shape.head_dim, kind); ++candidate) {
      candidates.push_back(bench_case);
      candidates.back().attention_case.candidate = candidate;
    }
  }
  return candidates;
}

Status check_something_is_left(const BenchOptions& options, const std::vector<AttentionBenchCase>& cases) {
  if (!cases.empty()) return Status();
  if (options.tunes)
    return invalid_argument(
        "--tune: nothing is left to compare; up to %d queries, fp8 keys and latents have one kernel each",
        kAttentionLimits.max_decode_tokens);
  return invalid_argument("--only: %s is not among the lines of %s", options.only.c_str(),
                          options.is_mla ? "--mla" : "--kv-format");
}

Status measure(const BenchOptions& options, BenchReport& report) {
  std::vector<AttentionBenchCase> cases = attention_bench_cases(options.sweep);
  if (options.only != kAllGroups)
    std::erase_if(cases,
                  [&](const AttentionBenchCase& bench_case) { return bench_case.group != options.only; });
  if (options.tunes) cases = cases_of_candidates(cases);
  SWITCHYARD_RETURN_IF_ERROR(check_something_is_left(options, cases));
  const auto label_of = [](const AttentionBenchCase& bench_case) {
    return bench_case.group + ", " + bench_case.label;
  };
  const auto write_inputs = [&](const AttentionBench& bench) {
    if (options.inputs.empty()) return Status();
    return write_npy({"--inputs", options.inputs}, {bench.period().size()}, bench.period());
  };
  return time_cases<AttentionBench>(options, cases, label_of, write_inputs, report);
}

AttentionTuning tuning_of(const AttentionBenchResult& result) {
  const reference::AttentionCase& attention_case = result.bench_case.attention_case;
  return attention_tuning(attention_case.head_dim, result.choice.kind, result.choice.candidate,
                          attention_case.kv_format);
}

bool is_faster(const AttentionBenchResult& a, const AttentionBenchResult& b) {
  return a.timing.median_us < b.timing.median_us;
}
bool is_of_one_shape(const AttentionBenchResult& a, const AttentionBenchResult& b) {
  return a.bench_case.group == b.bench_case.group && a.bench_case.label == b.bench_case.label &&
         a.bench_case.attention_case.head_dim == b.bench_case.attention_case.head_dim;
}
// Whether no kernel that ran the same shape was faster.
bool is_fastest(const BenchReport& report, const AttentionBenchResult& result) {
  return std::none_of(report.results.begin(), report.results.end(), [&](const AttentionBenchResult& other) {
    return is_of_one_shape(other, result) && is_faster(other, result);
  });
}
// Whether this kernel runs if nobody asks for another.
bool is_chosen(const AttentionBenchResult& result) {
  const AttentionShape shape = result.bench_case.attention_case.shape();
  return result.choice.candidate == choose_candidate(shape.head_dim, result.choice.kind, shape.max_key_len);
}

// Which of the kernels that ran one shape this machine would choose, and what the library's choice costs.
void print_conclusion(std::span<const AttentionBenchResult> of_shape) {
  const auto fastest = std::min_element(of_shape.begin(), of_shape.end(), is_faster);
  const auto chosen = std::find_if(of_shape.begin(), of_shape.end(), is_chosen);
  std::printf("         this machine would choose: %s", to_string(tuning_of(*fastest)).c_str());
  if (of_shape.size() == 1)
    std::printf("; there is no other\n");
  else if (fastest == chosen)
    std::printf("; so does the library\n");
  else
    std::printf("; the library's choice takes %.1f%% longer\n",
                100 * (chosen->timing.median_us / fastest->timing.median_us - 1));
}

// A line for each kernel that could run a shape, and one for what follows.
void print_candidates(const BenchReport& report) {
  std::printf("attention kernels on %s: %s, median of %d replays\n\n", to_string(report.target),
              report.device.c_str(), report.num_replays);
  std::printf("kind     shape           TFLOP/s   kernel\n");
  const std::span<const AttentionBenchResult> results(report.results);
  for (size_t first = 0, i = 0; i < results.size(); ++i) {
    const AttentionBenchResult& result = results[i];
    std::printf("%-7s  %-14s %8.1f   %s%s%s", result.bench_case.group.c_str(),
                result.bench_case.label.c_str(), result.tflops(), to_string(tuning_of(result)).c_str(),
                is_fastest(report, result) ? "; fastest" : "", is_chosen(result) ? "; chosen" : "");
    end_table_line(result.difference.first_bad);
    if (i + 1 < results.size() && is_of_one_shape(result, results[i + 1])) continue;
    print_conclusion(results.subspan(first, i + 1 - first));
    first = i + 1;
  }
}

void print_table(const BenchOptions& options, const BenchReport& report) {
  if (options.tunes) return print_candidates(report);
  std::printf("attention on %s: %s, median of %d replays\n\n", to_string(report.target),
              report.device.c_str(), report.num_replays);
  std::printf("head_dim  kind     shape            time us   TFLOP/s   K/V TB/s   read TB/s   scheduler\n");
  for (const AttentionBenchResult& result : report.results) {
    std::printf("%8d  %-7s  %-14s %9.1f %9.1f %10.2f ", result.bench_case.attention_case.head_dim,
                result.bench_case.group.c_str(), result.bench_case.label.c_str(), result.timing.median_us,
                result.tflops(), result.kv_terabytes_per_second());
    if (result.read_us > 0)
      std::printf("%11.2f", result.read_terabytes_per_second());
    else
      std::printf("%11s", "-");
    std::printf("   %s", to_string(result.choice.scheduler));
    end_table_line(result.difference.first_bad);
  }
}

std::string to_json(const BenchOptions& options, const BenchReport& report) {
  std::vector<JsonObject> results;
  for (const AttentionBenchResult& result : report.results) {
    const reference::AttentionCase& attention_case = result.bench_case.attention_case;
    JsonObject json;
    json.add("group", result.bench_case.group)
        .add("label", result.bench_case.label)
        .add("head_dim", attention_case.head_dim)
        .add("value_dim", attention_case.output_dim())
        .add("heads", attention_case.num_heads)
        .add("kv_heads", attention_case.num_kv_heads)
        .add("kv_format", to_string(attention_case.kv_format))
        .add("causal", attention_case.causal)
        .add("page_size", attention_case.page_size)
        .add("seq_lens", attention_case.query_lens)
        .add("kv_lens", attention_case.num_keys());
    add_timing(json, result.timing);
    json.add("tflops", result.tflops())
        .add("kv_terabytes_per_second", result.kv_terabytes_per_second())
        .add("read_terabytes_per_second", result.read_terabytes_per_second())
        .add("scheduler", to_string(result.choice.scheduler))
        .add("kernel", to_string(tuning_of(result)))
        .add("candidate", result.choice.candidate);
    if (options.tunes) json.add("fastest", is_fastest(report, result)).add("chosen", is_chosen(result));
    json.add("splits", result.choice.num_splits)
        .add("relative_error", result.difference.relative_error)
        .add("error_of_every", result.stride)
        .add("verified", result.is_verified());
    results.push_back(std::move(json));
  }
  JsonObject json = json_head(report);
  json.add("input_shifts",
           std::vector<int>(std::begin(AttentionBench::kShifts), std::end(AttentionBench::kShifts)))
      .add("results", std::move(results));
  return json.to_text();
}

}  // namespace

void add_bench_attention_command(Command& bench) {
  Command command = bench.add_command(
      "attention",
      "Attention by graph replay: full, causal, ragged, decoding and MLA, with a few rows verified");
  auto options = std::make_shared<BenchOptions>();
  add_target_option(command, options->target);
  AttentionBenchSweep& sweep = options->sweep;
  const Option head_dims =
      command.add_list("--head-dims", sweep.head_dims, 64, 256, "Head dimensions [128,64,256; host 64]");
  command.add_list("--lengths", sweep.lengths, 1, 1 << 20,
                   "Queries of a sequence, a sweep [512,1024,..,16384; host 64,256]");
  command
      .add_number("--tokens", sweep.num_tokens, 1, 1 << 24,
                  "Queries of all sequences together [16384; host 256]")
      .hide_default();
  const Option kv_format =
      command.add_choice("--kv-format", sweep.keys,
                         {{"all", AttentionBenchKeys::kTable},
                          {"bf16", AttentionBenchKeys::kBF16},
                          {"fp8", AttentionBenchKeys::kFP8}},
                         "Keys and values of each line: bf16, or fp8; all: bf16, and when decoding fp8 and\n"
                         "MLA beside it");
  command
      .add_flag("--mla", options->is_mla,
                "Multi-head latent attention in each line: full, causal and ragged, too")
      .excludes(head_dims)
      .excludes(kv_format);
  command.add_name("--only", options->only, {kAllGroups, "full", "causal", "ragged", "decode", "mla"},
                   "Only these lines of the table");
  command.add_flag("--tune", options->tunes,
                   "Time every kernel that could run a shape, except decoding, and say which this machine\n"
                   "would choose");
  command.add_text("--inputs", options->inputs,
                   "Write the numbers that queries, keys and values repeat, each from its own of\n"
                   "input_shifts on, to FILE.npy (bf16 as uint16)");
  finish_replay_command<BenchReport>(command, options, "[10; host 2]");
}

}  // namespace switchyard::tools
