// A transport may bring kernels whose wire is its own, as NVSHMEM's plugin does: steps over the wire are made
// of these, all others of the library's.
#include <gtest/gtest.h>

#include <atomic>

#include "fake_shmem.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"
#include "switchyard/expert_parallel.hpp"

namespace switchyard {
namespace {

using testing_support::FakeShmem;
using testing_support::in_threads;

std::atomic<int> num_asked = 0;  // how often someone looked for a kernel of the transport

// The library's kernels with a wire, as a table of a transport's own.
KernelTable table_of_transport() {
  KernelTable table{};
  table.wired = kernel_table(Target::kHost).wired;
  // Between groups a token crosses once, so these are asked for, and not those of the sender.
  table.wired.direct.linked_dispatch = [](TokenFormatKind format) {
    ++num_asked;
    return kernel_table(Target::kHost).wired.direct.linked_dispatch(format);
  };
  return table;
}

// What ExpertParallel::create() says at each of two PEs.
Status create_at_two_pes(int group, const KernelTable& kernels) {
  const FakeShmem shmem({.n_pes = 2, .group = group});
  ShmemApi api = shmem.api();
  api.kernels = &kernels;
  const TestHooks hooks{.shmem = &api};
  JoinOptions options;
  options.transport = TransportChoice::kShmem;
  options.target = TargetChoice::kHost;
  options.host.hooks = &hooks;
  Status status_of[2];
  in_threads(2, [&](int i) {
    const Result<std::unique_ptr<World>> world = World::join(options);
    ASSERT_TRUE(world.ok()) << world.status().message();
    const ExpertParallelConfig config{
        .n_experts = 4, .top_k = 2, .hidden = 64, .max_tokens_per_rank = 4, .protocol = Protocol::kDirect};
    status_of[i] = ExpertParallel::create(*world.value(), config).status();
  });
  EXPECT_EQ(status_of[0].message(), status_of[1].message());
  return status_of[0];
}

TEST(WiredKernels, OfTheTransportAreUsedBetweenGroups) {
  num_asked = 0;
  const Status status = create_at_two_pes(1, table_of_transport());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(num_asked, 2);
}

TEST(WiredKernels, OfTheTransportAreNotUsedInOneGroup) {
  num_asked = 0;
  const Status status = create_at_two_pes(2, table_of_transport());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(num_asked, 0);
}

TEST(WiredKernels, OfATransportThatHasNoneAreNotReplacedByTheLibrarys) {
  const Status status = create_at_two_pes(1, KernelTable{});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("none with a wire"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace switchyard
