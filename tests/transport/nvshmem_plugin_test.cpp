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

// On a GPU under MPS, as tests of the process transport are (CONTRIBUTING.md):
// SWITCHYARD_PROCESS_TARGET=cuda.
TEST(NvshmemWorld, ProcessesWithoutALauncherMeetByAnAllGather) {
  const char* target = std::getenv("SWITCHYARD_PROCESS_TARGET");
  if (sizeof(kFolder) == 1 || target == nullptr || std::string(target) != "cuda")
    GTEST_SKIP() << "no NVSHMEM plugin, or no GPU asked for";
  const testing_support::Shape shape{.n_ranks = 2, .n_experts = 6, .top_k = 2, .tokens_per_rank = {5, 7}};
  const testing_support::RunOptions run{
      .target = TargetChoice::kCuda, .p2p_world_size = 1, .timeout_ns = 20'000'000'000};
  testing_support::Processes processes;
  for (const int rank : {0, 1})
    processes.start([&, rank]() -> std::string {
      setenv("SWITCHYARD_PLUGIN_PATH", kFolder, 1);
      JoinOptions options;
      options.transport = TransportChoice::kShmem;
      options.target = TargetChoice::kCuda;
      options.rank = rank;
      options.n_ranks = 2;
      options.gpu = 0;
      options.all_gather = processes.all_gather(2);
      testing_support::EpHarness harness(testing_support::join(options), shape, run);
      return harness.run_and_compare(as_run(testing_support::make_step(shape, 1), run));
    });
  for (const std::string& report : processes.reports()) EXPECT_EQ(report, "");
}

}  // namespace
}  // namespace switchyard
