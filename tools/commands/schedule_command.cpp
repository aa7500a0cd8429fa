// `switchyard schedule`: what a tile scheduler makes of a workload of attention, before a kernel runs.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "attention_options.hpp"
#include "commands.hpp"
#include "files/json_object.hpp"
#include "files/output.hpp"
#include "options.hpp"
#include "workload/measured_schedule.hpp"
#include "workload/tile_twin.hpp"

namespace switchyard::tools {
namespace {

constexpr int kMaxBatch = 65536, kMaxSeqLen = 1 << 24;

struct ScheduleOptions {
  AttentionWorkload workload;
  int batch = 4;
  int seq_len = 4096;
  std::vector<int> seq_lens;
  uint32_t l2_mib = 50;
  TileSchedulerKind kind = TileSchedulerKind::kQueued;
  MHASchedule schedule = MHASchedule::LPT;
  bool compares = false;
  bool measures = false;
  std::string target = "auto";
  std::string json;
  std::string svg;

  bool prints_text() const { return json != "-" && svg != "-"; }
};

Status finish_options(ScheduleOptions& options, bool has_kv_heads) {
  AttentionWorkload& workload = options.workload;
  workload.is_ragged = !options.seq_lens.empty();
  if (workload.is_ragged)
    workload.seq_lens.assign(options.seq_lens.begin(), options.seq_lens.end());
  else
    workload.seq_lens.assign(static_cast<size_t>(options.batch), static_cast<uint32_t>(options.seq_len));
  if (!has_kv_heads) workload.num_kv_heads = workload.num_heads;
  workload.l2_bytes = uint64_t{options.l2_mib} << 20;
  SWITCHYARD_RETURN_IF_ERROR(check_target_option(options.target));
  SWITCHYARD_RETURN_IF_ERROR(options.measures ? fit_to_kernel(workload) : workload.check());
  return check_output_names({{"--json", options.json}, {"--svg", options.svg}});
}

struct Spread {
  double low = 0, mean = 0, high = 0;
};

template <typename T>
Spread spread_of(const std::vector<T>& values) {
  Spread spread{static_cast<double>(values.front()), 0, static_cast<double>(values.front())};
  for (const T value : values) {
    spread.low = std::min(spread.low, static_cast<double>(value));
    spread.high = std::max(spread.high, static_cast<double>(value));
    spread.mean += static_cast<double>(value) / static_cast<double>(values.size());
  }
  return spread;
}

void print_workload(const AttentionWorkload& workload) {
  std::printf("%s\n%s\n\n", workload.describe_batch().c_str(), workload.describe_tiles().c_str());
}

void print_one(const AttentionWorkload& workload, const TwinResult& result) {
  print_workload(workload);
  std::printf("%s\n", result.type_name.c_str());
  const Spread tiles = spread_of(result.tiles_per_block), busy = spread_of(result.busy_per_block);
  std::printf("  tiles per block   least %g, mean %.2f, most %g\n", tiles.low, tiles.mean, tiles.high);
  if (result.tiles_per_block.size() <= 32) {
    std::printf("                   ");
    for (const uint32_t count : result.tiles_per_block) std::printf(" %u", count);
    std::printf("\n");
  }
  std::printf("  busy per block    least %g, mean %.2f, most %g\n", busy.low, busy.mean, busy.high);
  std::printf("  makespan          %g (at best %g)\n", result.makespan, result.bound());
  std::printf("  efficiency        %.3f\n", result.efficiency());
}

void print_measured(const TwinResult& twin, const MeasuredSchedule& measured, const std::string& device) {
  const TwinResult& result = measured.result;
  const Spread busy = spread_of(result.busy_per_block);
  std::printf("  measured on %s, a unit being %.3f us\n", device.c_str(), measured.microseconds_per_unit);
  std::printf("    busy per block  least %.2f, mean %.2f, most %.2f\n", busy.low, busy.mean, busy.high);
  std::printf("    makespan        %.2f (%.1f us), predicted %g\n", result.makespan,
              result.makespan * measured.microseconds_per_unit, twin.makespan);
  std::printf("    efficiency      %.3f, predicted %.3f\n", result.efficiency(), twin.efficiency());
}

void print_comparison(const AttentionWorkload& workload, const std::vector<TwinResult>& results) {
  print_workload(workload);
  std::printf("scheduler   order     tiles per block   busy per block      makespan   efficiency\n");
  const TwinResult* best = &results.front();
  for (const TwinResult& result : results)
    if (result.makespan < best->makespan) best = &result;
  for (const TwinResult& result : results) {
    const Spread tiles = spread_of(result.tiles_per_block), busy = spread_of(result.busy_per_block);
    char tile_range[40], busy_range[40];
    std::snprintf(tile_range, sizeof(tile_range), "%g..%g", tiles.low, tiles.high);
    std::snprintf(busy_range, sizeof(busy_range), "%g..%g", busy.low, busy.high);
    std::printf("%-10s  %-8s  %-15s   %-17s   %8g   %10.3f%s\n", to_string(result.kind),
                option_name(result.schedule), tile_range, busy_range, result.makespan, result.efficiency(),
                result.makespan == best->makespan ? "  *" : "");
  }
  std::printf("\nNo schedule ends before %g. * ends first.\n", results.front().bound());
}

std::string to_json(const AttentionWorkload& workload, const std::vector<TwinResult>& results,
                    bool verified) {
  std::vector<JsonObject> schedules;
  for (const TwinResult& result : results) {
    JsonObject json;
    json.add("scheduler", to_string(result.kind))
        .add("order", option_name(result.schedule))
        .add("type", result.type_name)
        .add("verified", result.is_verified)
        .add("tiles", result.tiles.size())
        .add("total_cost", result.total_cost)
        .add("makespan", result.makespan)
        .add("bound", result.bound())
        .add("efficiency", result.efficiency())
        .add("tiles_per_block", result.tiles_per_block)
        .add("busy_per_block", result.busy_per_block);
    schedules.push_back(std::move(json));
  }
  JsonObject json;
  json.add("verified", verified)
      .add("seq_lens", workload.seq_lens)
      .add("causal", workload.is_causal)
      .add("heads", workload.num_heads)
      .add("kv_heads", workload.num_kv_heads)
      .add("head_dim", workload.head_dim)
      .add("tile_m", workload.tile_m)
      .add("tile_n", workload.tile_n)
      .add("tile_overhead", workload.tile_overhead)
      .add("blocks", workload.num_ctas)
      .add("l2_bytes", workload.l2_bytes)
      .add("schedules", std::move(schedules));
  return json.to_text();
}

// Appends what was measured after what was predicted, each scheduler in its turn.
Status measure_all(const ScheduleOptions& options, std::vector<TwinResult>& results) {
  Result<std::unique_ptr<World>> world = World::create({.target = target_choice(options.target)});
  if (!world.ok()) return world.status();
  const size_t num_twins = results.size();
  for (size_t i = 0; i < num_twins; ++i) {
    Result<MeasuredSchedule> measured = measure_schedule(*world.value(), options.workload, results[i]);
    if (!measured.ok()) return measured.status();
    if (options.prints_text()) {
      if (options.compares) std::printf("%s\n", results[i].type_name.c_str());
      print_measured(results[i], measured.value(), world.value()->rank(0).device_name());
    }
    results.push_back(std::move(measured).value().result);
  }
  return Status();
}

Result<ExitCode> schedule_and_report(ScheduleOptions& options, bool has_kv_heads) {
  SWITCHYARD_RETURN_IF_ERROR(finish_options(options, has_kv_heads));
  std::vector<TwinResult> results;
  for (const TileSchedulerName& scheduler : kTileSchedulers)
    for (const OrderName& order : kOrders)
      if (options.compares || (scheduler.kind == options.kind && order.order == options.schedule))
        results.push_back(run_twin(options.workload, scheduler.kind, order.order));
  if (options.prints_text())
    options.compares ? print_comparison(options.workload, results)
                     : print_one(options.workload, results.front());
  if (options.measures) SWITCHYARD_RETURN_IF_ERROR(measure_all(options, results));
  const bool verified = std::all_of(results.begin(), results.end(),
                                    [](const TwinResult& result) { return result.is_verified; });
  SWITCHYARD_RETURN_IF_ERROR(
      write_output({"--json", options.json}, to_json(options.workload, results, verified)));
  if (!options.svg.empty())
    SWITCHYARD_RETURN_IF_ERROR(write_output({"--svg", options.svg}, to_svg(options.workload, results)));
  if (!verified) std::fprintf(stderr, "switchyard schedule: NOT VERIFIED: a tile was lost or given twice\n");
  return verified ? kVerified : kNotVerified;
}

void add_workload_options(Command& command, ScheduleOptions& options) {
  AttentionWorkload& workload = options.workload;
  const Option batch =
      command.add_number("--batch", options.batch, 0, kMaxBatch, "Sequences, all of --seq rows");
  const Option seq = command.add_number("--seq", options.seq_len, 0, kMaxSeqLen, "Rows of each sequence");
  command.add_list("--seq-lens", options.seq_lens, 0, kMaxSeqLen, "Rows of each sequence, as 4096,0,17,..")
      .excludes(batch)
      .excludes(seq);
  command.add_flag("--causal", workload.is_causal, "A row sees the rows up to itself only");
  command.add_number("--heads", workload.num_heads, 1, 1024, "Query heads");
  command.add_number("--head-dim", workload.head_dim, 1, 1024, "Elements of a row of a head, in bf16");
  command.add_number("--tile-m", workload.tile_m, 1, 65536, "Query rows of a tile");
  command.add_number("--tile-n", workload.tile_n, 1, 65536, "K/V rows that cost one unit");
  command.add_fraction("--tile-overhead", workload.tile_overhead, 0.0, 1e6,
                       "Units that every tile costs beyond its K/V tiles");
  command.add_number("--ctas", workload.num_ctas, 1, 65535, "Blocks that run at a time");
  command.add_number("--l2-mib", options.l2_mib, 1, 65536,
                     "L2 cache, which lpt wants to hold the K/V of the heads at work");
}

}  // namespace

void add_schedule_command(CommandLine& line) {
  Command command =
      line.add_command("schedule", "Predict how a tile scheduler of attention shares work among blocks");
  auto options = std::make_shared<ScheduleOptions>();
  add_workload_options(command, *options);
  const Option kv_heads = command
                              .add_number("--kv-heads", options->workload.num_kv_heads, 1, 1024,
                                          "K/V heads, a divisor of --heads [--heads]")
                              .hide_default();
  const Option scheduler = add_scheduler_option(command, options->kind);
  const Option order = add_order_option(command, options->schedule);
  command.add_flag("--compare", options->compares, "Every scheduler with every order, side by side")
      .excludes(scheduler)
      .excludes(order);
  command.add_flag(
      "--measure", options->measures,
      "Run the attention kernel too, and show beside the prediction when each tile began and ended");
  add_target_option(command, options->target, "Where --measure runs: auto takes a GPU if there is one");
  command.add_text("--svg", options->svg, "Draw who works on what when to FILE, or alone to stdout with -")
      .show_type("FILE");
  add_json_option(command, options->json);
  command.set_work([=] { return schedule_and_report(*options, kv_heads.is_given()); });
}

}  // namespace switchyard::tools
