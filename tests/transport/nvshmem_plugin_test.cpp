// The NVSHMEM plugin as the library sees it, without a GPU: it loads, has a table with the kernels of every
// format, and says why it does not start. What needs a GPU is run by hand (CONTRIBUTING.md).
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "ep/ep_harness.hpp"
#include "processes.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/world.hpp"
#include "transport/shmem/shmem_plugin.hpp"

#if !defined(SWITCHYARD_NVSHMEM_PLUGIN_FOLDER)
#define SWITCHYARD_NVSHMEM_PLUGIN_FOLDER ""  // this build has none
#endif

namespace switchyard {
namespace {

constexpr char kFolder[] = SWITCHYARD_NVSHMEM_PLUGIN_FOLDER;

class NvshmemPlugin : public ::testing::Test {
 protected:
  void SetUp() override {
    if (sizeof(kFolder) == 1) GTEST_SKIP() << "this build has no NVSHMEM plugin";
    setenv("SWITCHYARD_PLUGIN_PATH", kFolder, 1);
    const Result<const ShmemApi*> loaded = load_shmem_plugin(Target::kCuda);
    unsetenv("SWITCHYARD_PLUGIN_PATH");
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    api = loaded.value();
  }

  const ShmemApi* api = nullptr;
};

TEST_F(NvshmemPlugin, HasWhatKernelsOnCudaNeed) {
  EXPECT_EQ(std::string(api->library).substr(0, 9), "NVSHMEM 3");
  EXPECT_EQ(api->target, kShmemCuda);
  EXPECT_NE(api->gpu, nullptr);
  EXPECT_NE(api->all_gather, nullptr);
  EXPECT_EQ(api->put, nullptr);  // kernels put
}

TEST_F(NvshmemPlugin, HasWiredKernelsOfEveryFormat) {
  const auto& table = *static_cast<const KernelTable*>(api->kernels);
  EXPECT_EQ(table.load, nullptr);  // all others are the library's
  for (const EpKernels& protocol : {table.wired.slotted, table.wired.direct}) {
    for (const TokenFormatKind format : kTokenFormatKinds) {
      ASSERT_NE(protocol.dispatch(format), nullptr) << to_string(format);
      EXPECT_NE(protocol.dispatch(format), kernel_table(Target::kCuda).wired.slotted.dispatch(format));
      EXPECT_NE(protocol.dispatch(format), kernel_table(Target::kCuda).wired.direct.dispatch(format));
    }
    for (const CombineFormat format : {CombineFormat::kBF16, CombineFormat::kFP8})
      EXPECT_NE(protocol.combine(format), nullptr);
  }
}

TEST_F(NvshmemPlugin, ExportsItsOneFunctionOnly) {
  // Kernels, their launches and the CUDA runtime are in the library, too: either must find its own.
  const std::string file = std::string(kFolder) + "/libswitchyard_nvshmem.so";
  void* plugin = dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(plugin, nullptr);
  EXPECT_NE(dlsym(plugin, kShmemApiSymbol), nullptr);
  for (const char* symbol : {"cudaLaunchKernel", "nvshmemi_finalize", "_ZN10switchyard15nvshmem_kernelsEv"})
    EXPECT_EQ(dlsym(plugin, symbol), nullptr) << symbol;
  dlclose(plugin);
}

TEST_F(NvshmemPlugin, SaysThatALauncherIsMissing) {
  for (const char* name : {"NVSHMEM_BOOTSTRAP", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"})
    if (getenv(name) != nullptr) GTEST_SKIP() << name << " is set";
  const ShmemRequirements requirements{.size = sizeof(ShmemRequirements), .gpu = -1};
  ShmemError error{};
  EXPECT_NE(api->init(&requirements, &error), 0);
  EXPECT_NE(std::string(error.text).find("mpirun"), std::string::npos) << error.text;
}

// NVSHMEM reads the environment in its first call, which in the process that makes the id is not init(). In a
// process of its own, since that call starts a thread. No GPU is needed.
TEST(NvshmemWorld, MakesAnIdWithTheEnvironmentThatAllPesStartWith) {
  if (sizeof(kFolder) == 1) GTEST_SKIP() << "this build has no NVSHMEM plugin";
  constexpr char kVariable[] = "NVSHMEM_IGNORE_CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
  testing_support::Processes processes;
  processes.start([&]() -> std::string {
    setenv("SWITCHYARD_PLUGIN_PATH", kFolder, 1);
    unsetenv(kVariable);
    const Result<const ShmemApi*> api = load_shmem_plugin(Target::kCuda);
    if (!api.ok()) return api.status().to_string();
    ShmemId id{};
    ShmemError error{};
    if (api.value()->make_id(&id, &error) != 0) return error.text;
    return getenv(kVariable) != nullptr ? getenv(kVariable) : "not set";
  });
  EXPECT_EQ(processes.report_of(0), "1");
}

// The tests below need a GPU under MPS, as those of the process transport do (CONTRIBUTING.md):
// SWITCHYARD_PROCESS_TARGET=cuda.
bool is_gpu_asked_for() {
  const char* target = std::getenv("SWITCHYARD_PROCESS_TARGET");
  return target != nullptr && std::string(target) == "cuda";
}
const testing_support::Shape kShape{.n_ranks = 2, .n_experts = 6, .top_k = 2, .tokens_per_rank = {5, 7}};
const testing_support::RunOptions kRun{
    .target = TargetChoice::kCuda, .p2p_world_size = 1, .timeout_ns = 20'000'000'000};

JoinOptions without_launcher(const testing_support::Processes& processes, int rank) {
  setenv("SWITCHYARD_PLUGIN_PATH", kFolder, 1);
  JoinOptions options;
  options.transport = TransportChoice::kShmem;
  options.target = TargetChoice::kCuda;
  options.rank = rank;
  options.n_ranks = kShape.n_ranks;
  options.gpu = 0;
  options.all_gather = processes.all_gather(kShape.n_ranks);
  options.timeout_ns = 15'000'000'000;  // its error comes before the test calls it a hang
  return options;
}

TEST(NvshmemWorld, ProcessesWithoutALauncherMeetByAnAllGather) {
  if (sizeof(kFolder) == 1 || !is_gpu_asked_for()) GTEST_SKIP() << "no NVSHMEM plugin, or no GPU asked for";
  testing_support::Processes processes;
  for (const int rank : {0, 1})
    processes.start([&, rank]() -> std::string {
      testing_support::EpHarness harness(testing_support::join(without_launcher(processes, rank)), kShape,
                                         kRun);
      return harness.run_and_compare(as_run(testing_support::make_step(kShape, 1), kRun));
    });
  for (const std::string& report : processes.reports()) EXPECT_EQ(report, "");
}

// The plugin has a CUDA runtime of its own: that of the library knows none of the kernels in the graph.
TEST(NvshmemWorld, AGraphOfThePluginsKernelsIsReplayed) {
  if (sizeof(kFolder) == 1 || !is_gpu_asked_for()) GTEST_SKIP() << "no NVSHMEM plugin, or no GPU asked for";
  testing_support::Processes processes;
  for (const int rank : {0, 1})
    processes.start([&, rank]() -> std::string {
      testing_support::EpHarness harness(testing_support::join(without_launcher(processes, rank)), kShape,
                                         kRun);
      const Rank& here = harness.world().rank(rank);
      const size_t num_groups = static_cast<size_t>(harness.ep().num_groups());
      const auto row_offsets = testing_support::must(here.allocate<uint32_t>(num_groups + 1));
      const auto expert_ids = testing_support::must(here.allocate<int32_t>(num_groups));
      const Result<std::unique_ptr<Graph>> graph = harness.world().capture([&] {
        SWITCHYARD_RETURN_IF_ERROR(harness.ep().dispatch(
            rank, {}, {.row_offsets = row_offsets.data(), .expert_ids = expert_ids.data()}));
        return harness.ep().combine(rank, {}, {});
      });
      if (!graph.ok()) return graph.status().to_string();
      for (int i = 0; i < 3; ++i) {
        if (const Status launched = graph.value()->launch(); !launched.ok()) return launched.to_string();
        if (const Status ended = harness.ep().synchronize(); !ended.ok()) return ended.to_string();
      }
      return "";
    });
  for (const std::string& report : processes.reports()) EXPECT_EQ(report, "");
}

}  // namespace
}  // namespace switchyard
