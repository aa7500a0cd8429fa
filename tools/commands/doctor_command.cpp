// `switchyard doctor`: what this machine has, and what will run here.
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "commands.hpp"
#include "files/json_object.hpp"
#include "files/output.hpp"
#include "mps.hpp"
#include "options.hpp"
#include "switchyard/attention.hpp"
#include "switchyard/detail/attention/tuning.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/device/shared_memory.hpp"
#include "switchyard/detail/ep/tuning.hpp"
#include "switchyard/detail/transport/transport.hpp"
#include "switchyard/expert_parallel.hpp"
#include "switchyard/grouped_matmul.hpp"
#include "switchyard/token_format.hpp"
#include "workload/host_memory.hpp"

namespace switchyard::tools {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown CPU";
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

double gib(uint64_t bytes) { return static_cast<double>(bytes) / (1ull << 30); }

// What automatic chooses, for worlds on both sides of where the choice changes.
struct ProtocolExample {
  int n_ranks, max_tokens;
  ProtocolChoice choice;
};

std::vector<ProtocolExample> protocol_examples() {
  std::vector<ProtocolExample> examples;
  for (const auto& [n_ranks, max_tokens] : {std::pair(8, 4096), std::pair(64, 128), std::pair(64, 4)}) {
    ExpertParallelConfig config;
    config.n_experts = 256;
    config.max_tokens_per_rank = max_tokens;
    examples.push_back({n_ranks, max_tokens, choose_protocol(config, n_ranks)});
  }
  return examples;
}

void print_tunings() {
  std::printf("\nExpert-parallel kernels\n");
  std::printf("  host     %s\n  cuda     %s\n  both     %s\n", to_string(kHostEpTuning).c_str(),
              to_string(kCudaEpTuning).c_str(), to_string(kEpKernelSizes).c_str());
  std::printf("\nAttention kernels, by head dimension and kind\n");
  for (const AttentionTuning& tuning : kAttentionTunings) std::printf("  %s\n", to_string(tuning).c_str());
  std::printf("\nMatmul kernels, rows x columns x inner elements of a stage x stages\n ");
  for (const MatmulTuning& tuning : kMatmulTunings) std::printf(" %s", to_string(tuning).c_str());
  std::printf("\n");
}

// Which transports will work here, for ranks on which target, and what to do where one will not.
struct TransportHint {
  const char* name;
  Target target;
  bool works;
  std::string reason;
};

TransportHint process_hint(Target target) {
  const Result<SharedMemory> memory = create_memory_file(4096);
  if (!memory.ok())
    return {"process", target, false, "memory cannot be shared: " + memory.status().message()};
  return {
      "process", target, true,
      target == Target::kHost ? "a process per rank" : "a process per rank; " + describe_mps(mps_folder())};
}

TransportHint shmem_hint(Target target) {
  const Result<std::string> shmem = describe_shmem(target);
  if (!shmem.ok()) return {"shmem", target, false, shmem.status().message()};
  return {"shmem", target, true,
          shmem.value() + ": a process per rank, on any machines, started by " +
              (target == Target::kHost ? "oshrun" : "mpirun")};
}

std::vector<TransportHint> transport_hints() {
  std::vector<Target> targets = {Target::kHost};
  if (num_cuda_devices() > 0) targets.push_back(Target::kCuda);
  std::vector<TransportHint> hints;
  for (const Target target : targets) hints.push_back({"local", target, true, "all ranks in one process"});
  for (const Target target : targets) hints.push_back(process_hint(target));
  for (const Target target : targets) hints.push_back(shmem_hint(target));
  return hints;
}

void print_text(const CudaReport& cuda) {
  std::printf("CPU        %s, %u cores, %.1f GiB\n", cpu_name().c_str(), std::thread::hardware_concurrency(),
              gib(host_memory_bytes()));
  if (cuda.is_built_in)
    std::printf("CUDA       built for %s with toolkit %s; driver %s\n", cuda.architectures.c_str(),
                version_text(cuda.toolkit_version).c_str(),
                cuda.driver_version == 0 ? "not there" : version_text(cuda.driver_version).c_str());
  else
    std::printf("CUDA       not in this build\n");
  for (size_t i = 0; i < cuda.gpus.size(); ++i) {
    const GpuInfo& gpu = cuda.gpus[i];
    std::printf("GPU %-6zu %s, sm_%d%d, %d multiprocessors, %.1f GiB; reaches", i, gpu.name.c_str(),
                gpu.compute_major, gpu.compute_minor, gpu.num_multiprocessors, gib(gpu.memory_bytes));
    for (const int peer : gpu.peers) std::printf(" GPU %d", peer);
    std::printf("%s\n", gpu.peers.empty() ? " no other GPU" : "");
  }
  if (!kChecked)
    std::printf("Build      UNCHECKED: no deadlines, no faults; only to measure what checks cost\n");
  std::printf("\nWhat runs here\n");
  std::printf("  host     yes: every kernel, in the SIMT emulator, 1..512 ranks\n");
  if (num_cuda_devices() > 0)
    std::printf("  cuda     yes: on %d GPU(s), ranks sharing a GPU where there are more of them\n",
                num_cuda_devices());
  else
    std::printf("  cuda     no: %s\n", why_no_cuda().c_str());
  std::printf("  --target auto picks %s\n", num_cuda_devices() > 0 ? "cuda" : "host");
  std::printf("\nTransports (docs/transports.md)\n");
  for (const TransportHint& hint : transport_hints())
    std::printf("  %-8s %s %s: %s\n", hint.name, to_string(hint.target), hint.works ? "yes" : "no",
                hint.reason.c_str());
  std::printf("\nWhat --protocol automatic picks\n");
  for (const auto& [n_ranks, max_tokens, choice] : protocol_examples())
    std::printf("  %2d ranks, up to %4d tokens each   %s: %s\n", n_ranks, max_tokens,
                to_string(choice.protocol), choice.reason.c_str());
  print_tunings();
}

std::vector<JsonObject> ep_tunings_json() {
  std::vector<JsonObject> tunings;
  for (const auto& [target, tuning] :
       {std::pair(Target::kHost, kHostEpTuning), std::pair(Target::kCuda, kCudaEpTuning)})
    tunings.push_back(std::move(JsonObject()
                                    .add("target", to_string(target))
                                    .add("threads", tuning.num_threads)
                                    .add("fewer_threads", tuning.num_fewer_threads)
                                    .add("few_tokens", tuning.few_tokens)
                                    .add("blocks", tuning.num_blocks)));
  return tunings;
}

JsonObject ep_sizes_json() {
  const EpKernelSizes& sizes = kEpKernelSizes;
  return std::move(JsonObject()
                       .add("max_token_stages", sizes.max_token_stages)
                       .add("max_row_numbers", sizes.max_row_numbers)
                       .add("prefetched_ids", sizes.prefetched_ids)
                       .add("max_scale_bands", sizes.max_scale_bands)
                       .add("message_stages", sizes.message_stages)
                       .add("first_rows_in_flight", sizes.first_rows_in_flight)
                       .add("next_rows_in_flight", sizes.next_rows_in_flight)
                       .add("fp8_rows_in_flight", sizes.fp8_rows_in_flight)
                       .add("max_warps_per_row", sizes.max_warps_per_row));
}

JsonObject ep_limits_json() {
  const EpLimits& limits = kEpLimits;
  return std::move(JsonObject()
                       .add("max_direct_ranks", limits.max_direct_ranks)
                       .add("max_slotted_tokens", limits.max_slotted_tokens)
                       .add("max_tokens_sending_scales", limits.max_tokens_sending_scales)
                       .add("suggested_capacity_factor", limits.suggested_capacity_factor));
}

std::vector<JsonObject> attention_tunings_json() {
  std::vector<JsonObject> tunings;
  for (const AttentionTuning& tuning : kAttentionTunings)
    tunings.push_back(std::move(JsonObject()
                                    .add("head_dim", tuning.head_dim)
                                    .add("kind", to_string(tuning.kind))
                                    .add("tile_rows", tuning.tile_rows())
                                    .add("tile_keys", tuning.tile_keys)
                                    .add("part_keys", tuning.part_keys)
                                    .add("consumers", tuning.num_consumers)
                                    .add("threads", tuning.num_threads())
                                    .add("blocks_per_multiprocessor", tuning.blocks_per_multiprocessor)
                                    .add("query_stages", tuning.num_query_stages)
                                    .add("key_stages", tuning.num_key_stages)
                                    .add("blocks_ahead", tuning.blocks_ahead)
                                    .add("producer_registers", tuning.producer_registers)
                                    .add("consumer_registers", tuning.consumer_registers)
                                    .add("turns", to_string(tuning.turns))
                                    .add("stages_output", tuning.stages_output)
                                    .add("value_dim", tuning.value_dim)
                                    .add("kv_format", to_string(tuning.kv_format))));
  return tunings;
}

JsonObject attention_limits_json() {
  const AttentionLimits& limits = kAttentionLimits;
  return std::move(JsonObject()
                       .add("max_decode_tokens", limits.max_decode_tokens)
                       .add("max_short_len", limits.max_short_len)
                       .add("min_wide_block_keys", limits.min_wide_block_keys)
                       .add("min_tiles_for_lpt", limits.min_tiles_for_lpt)
                       .add("units_per_block", limits.units_per_block)
                       .add("min_split_keys", limits.min_split_keys)
                       .add("min_even_split_keys", limits.min_even_split_keys)
                       .add("keys_per_row", limits.keys_per_row)
                       .add("max_splits", limits.max_splits)
                       .add("latent_tile_blocks", limits.latent_tile_blocks)
                       .add("latent_rows_per_block", limits.latent_rows_per_block)
                       .add("plan_threads", limits.num_plan_threads));
}

std::vector<JsonObject> matmul_tunings_json() {
  std::vector<JsonObject> tunings;
  for (const MatmulTuning& tuning : kMatmulTunings)
    tunings.push_back(std::move(JsonObject()
                                    .add("name", to_string(tuning))
                                    .add("tile_rows", tuning.tile_rows)
                                    .add("tile_columns", tuning.tile_columns)
                                    .add("stage_inner", tuning.stage_inner)
                                    .add("stages", tuning.num_stages)
                                    .add("sharing", tuning.sharing == MatmulSharing::kWeights ? "weights"
                                                    : tuning.sharing == MatmulSharing::kRows  ? "rows"
                                                                                              : "none")
                                    .add("element", to_string(tuning.element))
                                    .add("weights", to_string(tuning.weights))
                                    .add("threads", tuning.num_threads())
                                    .add("producer_registers", tuning.producer_registers())
                                    .add("consumer_registers", tuning.consumer_registers())));
  return tunings;
}

// The registry of token formats, for scripts that go over them.
std::vector<JsonObject> formats_json() {
  std::vector<JsonObject> formats;
  for (const TokenFormatKind kind : kTokenFormatKinds)
    formats.push_back(std::move(JsonObject()
                                    .add("name", to_string(kind))
                                    .add("bits", info_of(kind).num_bits)
                                    .add("hidden_multiple", info_of(kind).hidden_multiple())
                                    .add("row_alignment", info_of(kind).row_alignment)));
  return formats;
}

std::vector<JsonObject> transports_json() {
  std::vector<JsonObject> transports;
  for (const TransportHint& hint : transport_hints())
    transports.push_back(std::move(JsonObject()
                                       .add("name", hint.name)
                                       .add("target", to_string(hint.target))
                                       .add("works", hint.works)
                                       .add("reason", hint.reason)));
  return transports;
}

std::string to_json(const CudaReport& cuda) {
  std::vector<JsonObject> gpus;
  for (const GpuInfo& gpu : cuda.gpus)
    gpus.push_back(std::move(JsonObject()
                                 .add("name", gpu.name)
                                 .add("compute_major", gpu.compute_major)
                                 .add("compute_minor", gpu.compute_minor)
                                 .add("multiprocessors", gpu.num_multiprocessors)
                                 .add("memory_bytes", gpu.memory_bytes)
                                 .add("peers", gpu.peers)));
  std::vector<JsonObject> protocols;
  for (const auto& [n_ranks, max_tokens, choice] : protocol_examples())
    protocols.push_back(std::move(JsonObject()
                                      .add("ranks", n_ranks)
                                      .add("max_tokens_per_rank", max_tokens)
                                      .add("protocol", to_string(choice.protocol))
                                      .add("why", choice.reason)));
  JsonObject report;
  report.add("cpu", cpu_name())
      .add("cores", std::thread::hardware_concurrency())
      .add("memory_bytes", host_memory_bytes())
      .add("checked", kChecked)
      .add("cuda_built_in", cuda.is_built_in)
      .add("cuda_toolkit", cuda.toolkit_version)
      .add("cuda_architectures", cuda.architectures)
      .add("cuda_driver", cuda.driver_version)
      .add("gpus", std::move(gpus))
      .add("transports", transports_json())
      .add("automatic_protocol", std::move(protocols))
      .add("formats", formats_json())
      .add("expert_parallel_kernels", ep_tunings_json())
      .add("expert_parallel_sizes", ep_sizes_json())
      .add("expert_parallel_limits", ep_limits_json())
      .add("attention_kernels", attention_tunings_json())
      .add("attention_limits", attention_limits_json())
      .add("matmul_kernels", matmul_tunings_json())
      .add("host_runs", true)
      .add("cuda_runs", num_cuda_devices() > 0);
  if (num_cuda_devices() == 0) report.add("why_no_cuda", why_no_cuda());
  return report.add("auto_target", num_cuda_devices() > 0 ? "cuda" : "host").to_text();
}

}  // namespace

void add_doctor_command(CommandLine& line) {
  Command command = line.add_command("doctor", "Say what this machine has and what will run here");
  auto json = std::make_shared<std::string>();
  add_json_option(command, *json);
  command.set_work([=]() -> Result<ExitCode> {
    SWITCHYARD_RETURN_IF_ERROR(check_output_names({{"--json", *json}}));
    const CudaReport cuda = report_cuda();
    if (*json != "-") print_text(cuda);
    SWITCHYARD_RETURN_IF_ERROR(write_output({"--json", *json}, to_json(cuda)));
    return kVerified;
  });
}

}  // namespace switchyard::tools
