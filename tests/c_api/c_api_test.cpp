// The C functions: what they refuse, how structs of other versions are read, in which order handles may go.
// What they do is tested through C++; examples/c_step.c runs a step.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "c_api/c_api_harness.hpp"

namespace switchyard::c_api_test {
namespace {

TEST(CApi, ErrorsHaveACodeAndAMessageOfTheirThread) {
  switchyard_world_options options{};
  switchyard_world* world = nullptr;
  expect_error(switchyard_world_create(nullptr, &world), SWITCHYARD_INVALID_ARGUMENT, "options is NULL");
  expect_error(switchyard_world_create(&options, &world), SWITCHYARD_INVALID_ARGUMENT, "options->size is 0");
  options.size = sizeof(options);
  expect_error(switchyard_world_create(&options, nullptr), SWITCHYARD_INVALID_ARGUMENT, "world is NULL");
  options.n_ranks = 513;
  expect_error(switchyard_world_create(&options, &world), SWITCHYARD_INVALID_ARGUMENT, "n_ranks is 513");
  options.n_ranks = 1;
  options.target = 3;
  expect_error(switchyard_world_create(&options, &world), SWITCHYARD_INVALID_ARGUMENT, "target is 3");
  EXPECT_EQ(world, nullptr);
  std::thread([] { EXPECT_STREQ(switchyard_last_error(), ""); }).join();
  EXPECT_STREQ(switchyard_status_name(SWITCHYARD_DEADLINE_EXCEEDED), "deadline exceeded");
  EXPECT_STREQ(switchyard_status_name(SWITCHYARD_OK), "ok");
}

TEST(CApi, NullHandlesAndBadRanksAreErrors) {
  switchyard_world* world = make_world();
  void* memory = nullptr;
  switchyard_stream stream = nullptr;
  expect_error(switchyard_allocate(nullptr, 0, 8, &memory), SWITCHYARD_INVALID_ARGUMENT, "world is NULL");
  expect_error(switchyard_allocate(world, 1, 8, &memory), SWITCHYARD_INVALID_ARGUMENT, "index is 1");
  expect_error(switchyard_stream_create(world, -1, &stream), SWITCHYARD_INVALID_ARGUMENT, "index is -1");
  expect_error(switchyard_stream_synchronize(world, 0, nullptr), SWITCHYARD_INVALID_ARGUMENT, "stream is");
  expect_error(switchyard_deallocate(world, 0, &memory), SWITCHYARD_INVALID_ARGUMENT,
               "has not given to rank 0");
  expect_error(switchyard_copy(world, 0, nullptr, &memory, 8), SWITCHYARD_INVALID_ARGUMENT,
               "destination is NULL");
  expect_error(switchyard_ep_poll(nullptr, 0), SWITCHYARD_INVALID_ARGUMENT, "ep is NULL");
  expect_error(switchyard_attention_run(nullptr, nullptr, nullptr), SWITCHYARD_INVALID_ARGUMENT,
               "attention is NULL");
  expect_error(switchyard_matmul_run(nullptr, nullptr, nullptr), SWITCHYARD_INVALID_ARGUMENT,
               "matmul is NULL");
  ASSERT_EQ(switchyard_allocate(world, 0, 8, &memory), SWITCHYARD_OK);
  uint64_t value = 77;
  EXPECT_EQ(switchyard_copy(world, 0, &value, memory, 8), SWITCHYARD_OK);
  EXPECT_EQ(value, 0u);
  EXPECT_EQ(switchyard_deallocate(world, 0, memory), SWITCHYARD_OK);
  EXPECT_EQ(switchyard_deallocate(world, 0, nullptr), SWITCHYARD_OK);
  switchyard_world_destroy(world);
  switchyard_world_destroy(nullptr);
  switchyard_ep_destroy(nullptr);
  switchyard_attention_destroy(nullptr);
  switchyard_matmul_destroy(nullptr);
}

// A program that knows fewer fields, and one that knows more.
TEST(CApi, StructsOfOtherVersionsAreRead) {
  switchyard_world* world = make_world(2);
  switchyard_ep_config config = small_config();
  config.counts_experts = 1;
  config.size = offsetof(switchyard_ep_config, counts_experts);  // the field is beyond what the program knows
  switchyard_ep* ep = nullptr;
  ASSERT_EQ(switchyard_ep_create(world, &config, &ep), SWITCHYARD_OK) << switchyard_last_error();
  int64_t counts[4];
  expect_error(switchyard_ep_expert_counts(ep, 0, counts, 4), SWITCHYARD_FAILED_PRECONDITION,
               "counts_experts is false");
  switchyard_ep_info info{};
  info.size = offsetof(switchyard_ep_info, num_groups);
  info.num_groups = 99;
  ASSERT_EQ(switchyard_ep_get_info(ep, &info), SWITCHYARD_OK);
  EXPECT_EQ(info.n_local_experts, 2);
  EXPECT_EQ(info.num_groups, 99);  // not written
  switchyard_ep_destroy(ep);

  struct {
    switchyard_ep_config config;
    uint64_t new_field;
  } newer{small_config(), 0};
  newer.config.size = sizeof(newer);
  ASSERT_EQ(switchyard_ep_create(world, &newer.config, &ep), SWITCHYARD_OK) << switchyard_last_error();
  switchyard_ep_destroy(ep);
  newer.new_field = 1;
  expect_error(switchyard_ep_create(world, &newer.config, &ep), SWITCHYARD_INVALID_ARGUMENT, "does not know");
  config = small_config();
  config.reserved_end = 5;
  expect_error(switchyard_ep_create(world, &config, &ep), SWITCHYARD_INVALID_ARGUMENT,
               "config->reserved_end is 5; it must be 0");

  // Older programs have shorter structs, and whatever in their padding.
  config = small_config();
  config.size = 152;
  config.reserved = config.row_sets = config.reserved_end = -1;
  ASSERT_EQ(switchyard_ep_create(world, &config, &ep), SWITCHYARD_OK) << switchyard_last_error();
  info.size = 56;
  info.rows_per_set = 99;
  ASSERT_EQ(switchyard_ep_get_info(ep, &info), SWITCHYARD_OK);
  EXPECT_GT(info.bytes_per_rank, 0u);
  EXPECT_EQ(info.rows_per_set, 99u);  // not written
  switchyard_ep_destroy(ep);
  switchyard_world_destroy(world);
}

TEST(CApi, ConfigurationsAreReadFieldByField) {
  switchyard_world* world = make_world(2);
  const auto refusal = [&](auto change) {
    switchyard_ep_config config = small_config();
    change(config);
    switchyard_ep* ep = nullptr;
    EXPECT_NE(switchyard_ep_create(world, &config, &ep), SWITCHYARD_OK);
    return std::string(switchyard_last_error());
  };
  const auto contains = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(contains(refusal([](auto& c) { c.protocol = 3; }), "protocol is 3; it must be 0..2"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.row_layout = 3; }), "row_layout is 3; it must be 0..2"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.combine_format = 2; }), "combine_format is 2"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.dispatch_format = "fp5"; }), "dispatch_format is \"fp5\""));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.hidden = 7; }), "hidden is 7"));
  EXPECT_TRUE(
      contains(refusal([](auto& c) { c.num_expert_input_scales = 2; }), "expert_input_scales is NULL"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.first_timeout_ns = UINT64_MAX; }), "first_timeout_ns is"));
  const int32_t experts[] = {3, 0, 1, 2}, one_and_three[] = {1, 3}, too_many[] = {5, 0};
  EXPECT_TRUE(contains(refusal([&](auto& c) { c.placement = experts; }), "num_experts_of_rank is NULL"));
  EXPECT_TRUE(contains(refusal([&](auto& c) {
                         c.placement = experts;
                         c.num_experts_of_rank = too_many;
                       }),
                       "num_experts_of_rank[0] is 5"));
  switchyard_ep_config config = small_config();
  config.placement = experts;
  config.num_experts_of_rank = one_and_three;
  config.counts_experts = 1;
  config.protocol = SWITCHYARD_PROTOCOL_SLOTTED;
  uint64_t bytes = 0;
  ASSERT_EQ(switchyard_ep_memory_needed(&config, 2, &bytes), SWITCHYARD_OK) << switchyard_last_error();
  EXPECT_GT(bytes, 0u);
  switchyard_ep* ep = nullptr;
  ASSERT_EQ(switchyard_ep_create(world, &config, &ep), SWITCHYARD_OK) << switchyard_last_error();
  switchyard_ep_info info{};
  info.size = sizeof(info);
  ASSERT_EQ(switchyard_ep_get_info(ep, &info), SWITCHYARD_OK);
  EXPECT_EQ(info.n_local_experts, 3);
  EXPECT_EQ(info.protocol, SWITCHYARD_PROTOCOL_SLOTTED);
  int64_t counts[4];
  EXPECT_EQ(switchyard_ep_expert_counts(ep, 1, counts, 4), SWITCHYARD_OK);
  expect_error(switchyard_ep_expert_counts(ep, 1, counts, 3), SWITCHYARD_INVALID_ARGUMENT,
               "num_counts is 3; it must be 4 (n_experts)");
  EXPECT_EQ(switchyard_ep_set_placement(ep, experts, one_and_three), SWITCHYARD_OK)
      << switchyard_last_error();
  switchyard_ep_destroy(ep);
  switchyard_world_destroy(world);
}

// A world of one process, and one whose gathering fails.
TEST(CApi, AWorldIsJoinedByTheCallersAllGather) {
  struct Gather {
    int num_calls = 0;
    int32_t result = 0;
    static int32_t call(void* context, const void* mine, uint64_t bytes, void* gathered) {
      auto& self = *static_cast<Gather*>(context);
      ++self.num_calls;
      std::memcpy(gathered, mine, bytes);
      return self.result;
    }
  } gather;
  switchyard_join_options options{};
  options.size = sizeof(options);
  options.target = SWITCHYARD_TARGET_HOST;
  options.all_gather = &Gather::call;
  options.context = &gather;
  switchyard_world* world = nullptr;
  expect_error(switchyard_world_join(&options, &world), SWITCHYARD_INVALID_ARGUMENT, "num_processes is 0");
  options.num_processes = 1;
  ASSERT_EQ(switchyard_world_join(&options, &world), SWITCHYARD_OK) << switchyard_last_error();
  EXPECT_EQ(gather.num_calls, 2);
  switchyard_world_info info{};
  info.size = sizeof(info);
  ASSERT_EQ(switchyard_world_get_info(world, &info), SWITCHYARD_OK);
  EXPECT_EQ(info.n_ranks, 1);
  EXPECT_EQ(info.target, SWITCHYARD_TARGET_HOST);
  switchyard_world_destroy(world);
  gather.result = 5;
  expect_error(switchyard_world_join(&options, &world), SWITCHYARD_UNAVAILABLE, "all_gather returned 5");
}

TEST(CApi, MemoryComesFromTheCallersFunctions) {
  int num_live = 0;
  switchyard_memory_functions memory{};
  memory.size = sizeof(memory);
  memory.context = &num_live;
  memory.allocate = [](void* context, uint64_t bytes, int32_t, switchyard_stream) {
    ++*static_cast<int*>(context);
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  };
  memory.deallocate = [](void* context, void* pointer, uint64_t, int32_t, switchyard_stream) {
    --*static_cast<int*>(context);
    std::free(pointer);
  };
  switchyard_world_options options{};
  options.size = sizeof(options);
  options.target = SWITCHYARD_TARGET_HOST;
  options.memory = &memory;
  switchyard_world* world = nullptr;
  ASSERT_EQ(switchyard_world_create(&options, &world), SWITCHYARD_OK) << switchyard_last_error();
  void* pointer = nullptr;
  ASSERT_EQ(switchyard_allocate(world, 0, 100, &pointer), SWITCHYARD_OK);
  EXPECT_EQ(num_live, 1);
  switchyard_world_destroy(world);  // and with it what was allocated
  EXPECT_EQ(num_live, 0);
}

// Of 5 rows, by hand: docs/formats.md.
TEST(CApi, FormatsSayHowTheirRowsLie) {
  const auto info_of = [](const char* format, int32_t hidden) {
    switchyard_format_info info{.size = sizeof(info)};
    EXPECT_EQ(switchyard_format_get_info(format, hidden, 5, &info), SWITCHYARD_OK) << switchyard_last_error();
    return info;
  };
  const switchyard_format_info bf16 = info_of("bf16", 24);
  EXPECT_EQ(bf16.row_bytes, 48u);
  EXPECT_EQ(bf16.num_scale_dimensions, 0);
  EXPECT_EQ(bf16.scales_bytes, 0u);
  const switchyard_format_info fp8 = info_of("fp8", 256);
  EXPECT_EQ(fp8.row_bytes, 256u);
  EXPECT_EQ(fp8.scale_element, SWITCHYARD_SCALES_FLOAT);
  EXPECT_EQ(fp8.num_scales, 2);
  EXPECT_EQ(fp8.scale_shape[0], 2u);
  EXPECT_EQ(fp8.scale_shape[1], 8u) << "rows, rounded up to 4";
  EXPECT_EQ(fp8.scales_bytes, 64u);
  const switchyard_format_info mxfp4 = info_of("mxfp4", 64);
  EXPECT_EQ(mxfp4.element_bits, 4);
  EXPECT_EQ(mxfp4.group_size, 32);
  EXPECT_EQ(mxfp4.row_bytes, 32u);
  EXPECT_EQ(mxfp4.scale_element, SWITCHYARD_SCALES_BYTE);
  EXPECT_EQ(mxfp4.scales_bytes, 10u);
  EXPECT_EQ(info_of("fp8-ue8m0", 256).scale_element, SWITCHYARD_SCALES_WORD);
  const switchyard_format_info tiled = info_of("mxfp8-tiled", 64);
  EXPECT_EQ(tiled.scale_element, SWITCHYARD_SCALES_TILED);
  EXPECT_EQ(tiled.num_scale_dimensions, 1);
  EXPECT_EQ(tiled.scales_bytes, 512u) << "one tile";
  switchyard_format_info info{.size = sizeof(info)};
  expect_error(switchyard_format_get_info("fp7", 64, 5, &info), SWITCHYARD_INVALID_ARGUMENT,
               "there is no such");
  expect_error(switchyard_format_get_info("fp8", 100, 5, &info), SWITCHYARD_INVALID_ARGUMENT,
               "hidden is 100; format fp8 needs a positive multiple of 128");
  expect_error(switchyard_format_get_info(nullptr, 64, 5, &info), SWITCHYARD_INVALID_ARGUMENT,
               "format is NULL");
  expect_error(switchyard_format_get_info("fp8", 128, 5, nullptr), SWITCHYARD_INVALID_ARGUMENT,
               "info is NULL");
}

}  // namespace
}  // namespace switchyard::c_api_test
