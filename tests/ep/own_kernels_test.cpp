// A caller's own token format and own epilogue through ExpertParallel: in both protocols, split and fused,
// over a wire, between processes, and in the emulator's simulated weak memory. Compiled for the host and,
// through own_kernels_test.cu, for CUDA.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "own_step.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"
#include "transport/fake_shmem.hpp"
#include "transport/processes.hpp"

#define OwnKernels SWITCHYARD_SUITE(OwnKernels)
#define OwnKernelsMisuse SWITCHYARD_SUITE(OwnKernelsMisuse)
#define OwnKernelsOfProcesses SWITCHYARD_SUITE(OwnKernelsOfProcesses)

namespace switchyard::inline SWITCHYARD_TARGET {

class OwnKernels : public ::testing::TestWithParam<std::tuple<Protocol, StepMode>> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(kTargetUnderTest); }
  static Protocol protocol() { return std::get<0>(GetParam()); }
  static StepMode mode() { return std::get<1>(GetParam()); }
};

// The target that this file is not compiled for, and what an error says if a world is on the other one.
constexpr Target kOtherTarget = kThisTarget == Target::kHost ? Target::kCuda : Target::kHost;
const std::string kTargets =
    std::string(to_string(kOtherTarget)) + "; the world is on " + to_string(kThisTarget);

class OwnKernelsMisuse : public ::testing::Test {
 protected:
  void SetUp() override {
    SWITCHYARD_SKIP_IF_ABSENT(kTargetUnderTest);
    world_ = must(World::create({.target = kTargetUnderTest, .n_ranks = 2}));
    config_ = OwnStep::config(Protocol::kAutomatic);
  }
  std::string message_of_create() { return ExpertParallel::create(*world_, config_).status().message(); }

  std::unique_ptr<World> world_;
  ExpertParallelConfig config_;
};

const auto kSteps = ::testing::Combine(testing_support::both_protocols(),
                                       ::testing::Values(StepMode::kSplit, StepMode::kFused));
std::string name_of_step(const ::testing::TestParamInfo<std::tuple<Protocol, StepMode>>& info) {
  return testing_support::protocol_name(std::get<0>(info.param)) +
         (std::get<1>(info.param) == StepMode::kSplit ? "Split" : "Fused");
}
INSTANTIATE_TEST_SUITE_P(Steps, OwnKernels, kSteps, name_of_step);

TEST_P(OwnKernels, AFormatAndAnEpilogueOfOnesOwnMakeAStep) {
  ExpertParallelConfig config = OwnStep::config(protocol());
  config.own_format = own_format<Int8TokenFormat>();
  config.own_epilogue = own_epilogue<AddResidual>();
  OwnStep step(config, {});
  EXPECT_EQ(step.ep().config().protocol, protocol());
  for (uint64_t seed = 0; seed < 3 && !HasFatalFailure(); ++seed) step.run(seed, mode(), true);
}

TEST_P(OwnKernels, AnEpilogueTakesTheSumsThatTheLibraryRounds) {
  for (const CombineFormat format : {CombineFormat::kBF16, CombineFormat::kFP8}) {
    ExpertParallelConfig config = OwnStep::config(protocol());
    config.combine_format =
        format;  // direct, experts would hand over fp8: here they hand over nothing, zeros
    config.own_epilogue = own_epilogue<AddResidual>();
    OwnStep step(config, {});
    if (!HasFatalFailure()) step.compare_with_the_library(7, mode());
  }
}

TEST_P(OwnKernels, AFormatThatOnlySlottedCarriesIsSentSlotted) {
  ExpertParallelConfig config = OwnStep::config(Protocol::kAutomatic);
  config.own_format = own_format<SlottedInt8Format>();
  config.own_epilogue = own_epilogue<AddResidual>();
  OwnStep step(config, {});
  EXPECT_EQ(step.ep().config().protocol, Protocol::kSlotted);
  EXPECT_EQ(step.ep().protocol_reason(), "format slotted-int8 is the caller's own and no DirectFormat");
  step.run(11, mode(), true);
}

// A format and an epilogue, with groups of as many ranks; what the tests below run in worlds of their own.
ExpertParallelConfig own_config(Protocol protocol, int p2p_world_size) {
  ExpertParallelConfig config = OwnStep::config(protocol);
  config.own_format = own_format<Int8TokenFormat>();
  config.own_epilogue = own_epilogue<AddResidual>();
  config.p2p_world_size = p2p_world_size;
  config.timeout_ns = 20'000'000'000;
  return config;
}

// Rows and sums are compared bit by bit with what they must be, as those of one group are.
TEST_P(OwnKernels, GroupsOverAWireGiveTheSameBits) {
  for (const int group : {1, 2}) {
    OwnStep step(own_config(protocol(), group), {});
    EXPECT_EQ(step.ep().config().p2p_world_size, group);
    for (uint64_t seed = 0; seed < 3 && !HasFatalFailure(); ++seed) step.run(seed, mode(), true);
    ExpertParallelConfig slotted_only = own_config(Protocol::kSlotted, group);
    slotted_only.own_format = own_format<SlottedInt8Format>();
    if (!HasFatalFailure()) OwnStep(slotted_only, {}).run(3, mode(), true);
  }
}

TEST_P(OwnKernels, AnEpilogueOverAWireTakesTheSumsThatTheLibraryRounds) {
  for (const CombineFormat format : {CombineFormat::kBF16, CombineFormat::kFP8}) {
    ExpertParallelConfig config = own_config(protocol(), 2);
    config.own_format = nullptr;
    config.combine_format = format;
    OwnStep step(config, {});
    if (!HasFatalFailure()) step.compare_with_the_library(7, mode());
  }
}

TEST_P(OwnKernels, AnEpilogueTakesSumsThatOwnersHaveMade) {
  if (protocol() == Protocol::kSlotted) GTEST_SKIP() << "owners sum up in the direct protocol";
  for (const int group_size : {0, 2})
    for (const CombineFormat format : {CombineFormat::kBF16, CombineFormat::kFP8}) {
      ExpertParallelConfig config = own_config(protocol(), group_size);
      config.own_format = nullptr;
      config.combine_format = format;
      config.reduce_at_owner = true;
      OwnStep step(config, {});
      if (!HasFatalFailure()) step.compare_with_the_library(8, mode());
    }
}

#if !defined(__SANITIZE_THREAD__)
// Every rank is a process. On a GPU as the tests of process_steps_test.cpp: this process, which forks, must
// not even ask for one.
class OwnKernelsOfProcesses : public OwnKernels {
 protected:
  void SetUp() override {
    const char* process_target = std::getenv("SWITCHYARD_PROCESS_TARGET");
    if (kThisTarget == Target::kCuda && (process_target == nullptr || std::string(process_target) != "cuda"))
      GTEST_SKIP() << "SWITCHYARD_PROCESS_TARGET is not cuda";
  }
};

INSTANTIATE_TEST_SUITE_P(Steps, OwnKernelsOfProcesses, kSteps, name_of_step);

TEST_P(OwnKernelsOfProcesses, VerifyInGroupsOfAnySize) {
  for (const int group : {0, 1, 2}) {
    const std::string address = testing_support::unique_address();
    testing_support::Processes processes;
    for (int rank = 0; rank < OwnStep::kRanks; ++rank)
      processes.start([&, rank]() -> std::string {
        JoinOptions options = testing_support::join_options(rank, OwnStep::kRanks, address);
        options.target = kTargetUnderTest;
        OwnStep step(testing_support::join(options), own_config(protocol(), group));
        for (uint64_t seed = 0; seed < 3 && !HasFatalFailure(); ++seed) step.run(seed, mode(), true);
        return HasFailure() ? "failed" : "";
      });
    for (const std::string& report : processes.reports()) EXPECT_EQ(report, "") << "groups of " << group;
  }
}
#endif

#if !defined(__CUDACC__)
// World::join() of one of four PEs, with the wire of SHMEM between groups.
std::unique_ptr<World> join_by(const ShmemApi& shmem) {
  const TestHooks hooks{.shmem = &shmem};
  JoinOptions options;
  options.transport = TransportChoice::kShmem;
  options.target = TargetChoice::kHost;
  options.host.num_workers = 1;
  options.host.hooks = &hooks;
  return must(World::join(options));
}

TEST_P(OwnKernels, RanksMayBeThoseOfShmem) {
  for (const int group : {1, 2, 4}) {
    const testing_support::FakeShmem shmem({.n_pes = OwnStep::kRanks, .group = group});
    testing_support::in_threads(OwnStep::kRanks, [&](int) {
      OwnStep step(join_by(shmem.api()), own_config(protocol(), 0));
      EXPECT_EQ(step.ep().config().p2p_world_size, group == OwnStep::kRanks ? 0 : group);
      for (uint64_t seed = 0; seed < 2 && !HasFatalFailure(); ++seed) step.run(seed, mode(), true);
    });
  }
}

// As NVSHMEM's: its kernels are linked inside a plugin, where a caller's are not.
TEST_F(OwnKernelsMisuse, OverAWireWhoseKernelsAreATransportsOwnIsNamed) {
  const testing_support::FakeShmem shmem({.n_pes = OwnStep::kRanks, .group = 2});
  ShmemApi api = shmem.api();
  api.kernels = &kernel_table(Target::kHost);
  testing_support::in_threads(OwnStep::kRanks, [&](int) {
    const std::unique_ptr<World> world = join_by(api);
    ExpertParallelConfig config = own_config(Protocol::kDirect, 0);
    EXPECT_EQ(ExpertParallel::create(*world, config).status().message(),
              "own_format must be null where ranks are reached over NVSHMEM: kernels that call it are linked "
              "with it, in its plugin; p2p_world_size is 2 of 4 ranks");
    config.own_format = nullptr;
    EXPECT_EQ(
        ExpertParallel::create(*world, config).status().message(),
        "own_epilogue must be null where ranks are reached over NVSHMEM: kernels that call it are linked "
        "with it, in its plugin; p2p_world_size is 2 of 4 ranks");
  });
}

TEST_P(OwnKernels, RandomInterleavingsInWeakMemoryGiveTheSameResult) {
  ExpertParallelConfig config = OwnStep::config(protocol());
  config.own_format = own_format<Int8TokenFormat>();
  config.own_epilogue = own_epilogue<AddResidual>();
  config.num_threads = 32;
  for (uint64_t seed = 0; seed < 8 && !HasFatalFailure(); ++seed) {
    config.p2p_world_size = static_cast<int>(seed % 4 == 3 ? 0 : seed % 4);
    OwnStep step(config, {.mode = EmulatorMode::kSimulated, .seed = seed, .weak = true});
    for (uint64_t i = 0; i < 2 && !HasFatalFailure(); ++i) step.run(seed * 2 + i, mode(), true);
  }
}
#endif

TEST_F(OwnKernelsMisuse, OfFormatsIsNamed) {
  config_.own_format = own_format<SlottedInt8Format>();
  config_.protocol = Protocol::kDirect;
  EXPECT_EQ(message_of_create(),
            "protocol is direct; own_format slotted-int8 is no DirectFormat: only slotted carries it");
  config_.protocol = Protocol::kAutomatic;
  config_.dispatch_format = TokenFormatKind::kMXFP8;
  EXPECT_EQ(message_of_create(), "dispatch_format is mxfp8; it must be left bf16 where own_format is given");
  config_.dispatch_format = TokenFormatKind::kBF16;
  config_.hidden = 40;
  EXPECT_EQ(message_of_create(),
            "own_format slotted-int8: encoded_bytes() is 56 with hidden 40; it must be a multiple of 16");
  config_.own_format = own_format<Int8TokenFormat>();
  EXPECT_EQ(message_of_create(), "hidden is 40; format int8 needs a multiple of 32");
  config_.hidden = OwnStep::kHidden;
  OwnFormat broken = *own_format<Int8TokenFormat>();
  broken.target = kOtherTarget;
  config_.own_format = &broken;
  EXPECT_EQ(message_of_create(), "own_format is compiled for " + kTargets);
  broken = {};
  EXPECT_EQ(message_of_create(), "own_format has no kernels; own_format<Format>() makes one that has");
  ExpertParallelConfig other = config_;
  config_.own_format = own_format<Int8TokenFormat>();
  EXPECT_EQ(ExpertParallel::create(*world_, {config_, other}).status().message(),
            "rank 1 has another configuration than rank 0: own_format differs");
}

TEST_F(OwnKernelsMisuse, OfEpiloguesIsNamed) {
  config_.own_epilogue = own_epilogue<AddResidual>();
  config_.routing = Routing::kSkipAllToAll;
  EXPECT_EQ(message_of_create(),
            "own_epilogue must be null where the all-to-all is skipped: combine leaves partial sums there");
  config_.routing = Routing::kAllToAll;
  OwnEpilogue elsewhere = *own_epilogue<AddResidual>();
  elsewhere.target = kOtherTarget;
  config_.own_epilogue = &elsewhere;
  EXPECT_EQ(message_of_create(), "own_epilogue is compiled for " + kTargets);
  const AddResidual epilogue{};
  const auto message_of_combine = [&](const CombineDestination& destination) {
    const auto ep = must(ExpertParallel::create(*world_, config_));
    const auto words = must(world_->rank(0).allocate<uint32_t>(64));
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(ep->dispatch(rank, {},
                               {.row_offsets = words.data() + 16 * rank,
                                .expert_ids = reinterpret_cast<int32_t*>(words.data() + 32 + 16 * rank)})
                      .ok());
    const std::string message = ep->combine(0, {}, {.destination = destination}).message();
    EXPECT_TRUE(ep->synchronize().ok());
    return message;
  };
  config_.own_epilogue = nullptr;
  EXPECT_EQ(message_of_combine(own_destination(epilogue)),
            "combine: the destination has an epilogue, but the configuration has no own_epilogue");
  config_.own_epilogue = own_epilogue<AddResidual>();
  CombineDestination of_another_type = own_destination(epilogue);
  of_another_type.epilogue_kernels = &elsewhere;
  EXPECT_EQ(message_of_combine(of_another_type),
            "combine: the epilogue is of another type than the own_epilogue of the configuration");
  CombineDestination null_epilogue = own_destination(epilogue);
  null_epilogue.epilogue = nullptr;
  EXPECT_EQ(message_of_combine(null_epilogue),
            "combine: epilogue is null; own_destination(epilogue) fills it in");
}

}  // namespace switchyard::inline SWITCHYARD_TARGET

#undef OwnKernels
#undef OwnKernelsMisuse
#undef OwnKernelsOfProcesses
