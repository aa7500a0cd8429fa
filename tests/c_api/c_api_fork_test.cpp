// A fork of a process that has a world: every call says so, none waits for threads that are not there.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "c_api/c_api_harness.hpp"
#include "switchyard/expert_parallel.hpp"
#include "switchyard/world.hpp"

namespace switchyard::c_api_test {
namespace {

bool is_refused(switchyard_status status) {
  const bool refused = status == SWITCHYARD_FAILED_PRECONDITION &&
                       std::strstr(switchyard_last_error(), "is a fork of the one that made the world");
  if (!refused) fprintf(stderr, "%s: %s\n", switchyard_status_name(status), switchyard_last_error());
  return refused;
}

TEST(CApiFork, CallsOfAForkAreRefusedAndItsHandlesAreLeftAlone) {
  switchyard_world* world = make_world(2);
  switchyard_ep_config config = small_config();
  config.protocol = SWITCHYARD_PROTOCOL_DIRECT;
  switchyard_ep* ep = nullptr;
  ASSERT_EQ(switchyard_ep_create(world, &config, &ep), SWITCHYARD_OK) << switchyard_last_error();
  switchyard_attention_shape shape{.size = sizeof(shape)};
  shape.max_query_len = shape.max_key_len = 64;
  shape.num_query_rows = shape.num_key_rows = 64;
  switchyard_attention* attention = nullptr;
  ASSERT_EQ(switchyard_attention_create(world, 0, &shape, &attention), SWITCHYARD_OK)
      << switchyard_last_error();
  void* memory = nullptr;
  ASSERT_EQ(switchyard_allocate(world, 0, 64, &memory), SWITCHYARD_OK);
  // A step that waits for the other rank is under way meanwhile.
  alignas(16) static uint32_t offsets[3];
  alignas(16) static int32_t expert_ids[2];
  const switchyard_dispatch_input input{.size = sizeof(input)};
  switchyard_dispatch_output output{.size = sizeof(output)};
  output.row_offsets = offsets;
  output.expert_ids = expert_ids;
  ASSERT_EQ(switchyard_ep_dispatch(ep, 0, &input, &output, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
      << switchyard_last_error();

  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // instead of a wait without end
    const switchyard_attention_tensors tensors{.size = sizeof(tensors)};
    switchyard_stream stream = nullptr;
    int code = 0;
    code += !is_refused(switchyard_ep_abandon_step(ep, 0));
    code += 2 * !is_refused(switchyard_ep_dispatch(ep, 1, &input, &output, SWITCHYARD_RANK_STREAM));
    code += 4 * !is_refused(switchyard_ep_synchronize(ep, 0, SWITCHYARD_RANK_STREAM));
    code += 8 * !is_refused(switchyard_world_synchronize(world));
    code += 16 * !is_refused(switchyard_stream_create(world, 0, &stream));
    code += 32 * !is_refused(switchyard_copy(world, 0, memory, memory, 16));
    code +=
        64 * (!is_refused(switchyard_allocate(world, 0, 64, &memory)) ||
              !is_refused(switchyard_deallocate(world, 0, memory)) || !is_refused(switchyard_ep_reset(ep)) ||
              !is_refused(switchyard_ep_create(world, &config, &ep)));
    static_cast<void>(switchyard_attention_run(attention, &tensors, SWITCHYARD_RANK_STREAM));
    switchyard_attention_destroy(attention);
    switchyard_ep_destroy(ep);
    switchyard_world_destroy(world);
    // A world of its own works.
    switchyard_world* own = make_world();
    code += 128 * (own == nullptr || switchyard_world_synchronize(own) != SWITCHYARD_OK);
    _exit(code);
  }
  int how = 0;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << how;
  // The parent's is as it was.
  ASSERT_EQ(switchyard_ep_dispatch(ep, 1, &input, &output, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
      << switchyard_last_error();
  EXPECT_EQ(switchyard_ep_synchronize(ep, 0, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
      << switchyard_last_error();
  switchyard_attention_destroy(attention);
  switchyard_ep_destroy(ep);
  switchyard_world_destroy(world);
}

// In C++ a world that is not joined may also be destroyed there.
TEST(CApiFork, AWorldOfTheParentMayBeDestroyed) {
  auto world = std::move(World::create({.target = TargetChoice::kHost, .n_ranks = 2})).value();
  auto ep =
      ExpertParallel::create(*world, {.n_experts = 4, .top_k = 1, .hidden = 8, .max_tokens_per_rank = 2})
          .value();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    const bool is_refused =
        world->capture([] { return Status(); }).status().code() == StatusCode::kFailedPrecondition &&
        world->all_gather({}).status().code() == StatusCode::kFailedPrecondition;
    ep.reset();
    world.reset();
    _exit(is_refused ? 0 : 1);
  }
  int how = 0;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << how;
  EXPECT_TRUE(ep->synchronize().ok());
}

}  // namespace
}  // namespace switchyard::c_api_test
