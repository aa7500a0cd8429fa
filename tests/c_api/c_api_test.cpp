// The C functions: what they refuse, how structs of other versions are read, in which order handles may go.
// What they do is tested through C++; examples/c_step.c runs a step.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "switchyard/switchyard.h"

namespace {

switchyard_world* make_world(int n_ranks = 1) {
  switchyard_world_options options{};
  options.size = sizeof(options);
  options.target = SWITCHYARD_TARGET_HOST;
  options.n_ranks = n_ranks;
  switchyard_world* world = nullptr;
  EXPECT_EQ(switchyard_world_create(&options, &world), SWITCHYARD_OK) << switchyard_last_error();
  return world;
}

switchyard_ep_config small_config() {
  switchyard_ep_config config{};
  config.size = sizeof(config);
  config.n_experts = 4;
  config.top_k = 1;
  config.hidden = 8;
  config.max_tokens_per_rank = 2;
  config.n_sms = 1;
  return config;
}

void expect_error(switchyard_status status, switchyard_status code, const char* text) {
  EXPECT_EQ(status, code) << switchyard_status_name(status);
  EXPECT_NE(std::string(switchyard_last_error()).find(text), std::string::npos) << switchyard_last_error();
}

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
  expect_error(switchyard_ep_expert_counts(ep, 1, counts, 3), SWITCHYARD_INVALID_ARGUMENT, "num_counts is 3");
  EXPECT_EQ(switchyard_ep_set_placement(ep, experts, one_and_three), SWITCHYARD_OK)
      << switchyard_last_error();
  switchyard_ep_destroy(ep);
  switchyard_world_destroy(world);
}

// One rank, whose two tokens come once each, with both of their choices.
TEST(CApi, RowsPerRankSayTheirExperts) {
  switchyard_world* world = make_world();
  switchyard_ep_config config = small_config();
  config.top_k = 2;
  config.protocol = SWITCHYARD_PROTOCOL_DIRECT;
  config.row_layout = SWITCHYARD_ROWS_PER_RANK;
  switchyard_ep* ep = nullptr;
  ASSERT_EQ(switchyard_ep_create(world, &config, &ep), SWITCHYARD_OK) << switchyard_last_error();
  switchyard_row_buffers buffers{};
  buffers.size = sizeof(buffers);
  ASSERT_EQ(switchyard_ep_row_buffers(ep, 0, &buffers), SWITCHYARD_OK) << switchyard_last_error();
  alignas(16) static const uint16_t tokens[2 * 8] = {};
  alignas(16) static const int32_t topk_ids[] = {3, 1, -1, 2};
  alignas(16) static const float topk_weights[] = {0.25f, 0.75f, 9, 0.5f};
  alignas(16) static uint32_t row_offsets[2];
  alignas(16) static int32_t expert_ids[1], row_experts[8];
  alignas(16) static float row_weights[8];
  ASSERT_LE(buffers.max_rows * 2, 8u);
  switchyard_dispatch_input input{};
  input.size = sizeof(input);
  input.tokens = tokens;
  input.topk_ids = topk_ids;
  input.num_tokens = 2;
  switchyard_dispatch_output output{};
  output.size = sizeof(output);
  output.rows = buffers.rows;
  output.src_info = buffers.src_info;
  output.max_rows = buffers.max_rows;
  output.row_offsets = row_offsets;
  output.expert_ids = expert_ids;
  output.row_experts = row_experts;
  output.row_weights = row_weights;
  expect_error(switchyard_ep_dispatch(ep, 0, &input, &output, SWITCHYARD_RANK_STREAM),
               SWITCHYARD_INVALID_ARGUMENT, "topk_weights");
  input.topk_weights = topk_weights;
  alignas(16) static uint64_t waits[2] = {7, 7};
  output.rank_wait_ns = waits + 1;
  expect_error(switchyard_ep_dispatch(ep, 0, &input, &output, SWITCHYARD_RANK_STREAM),
               SWITCHYARD_INVALID_ARGUMENT, "dispatch: rank_wait_ns is");
  input.rank_wait_ns = waits + 1;
  expect_error(switchyard_ep_dispatch_async(ep, 0, &input, SWITCHYARD_RANK_STREAM),
               SWITCHYARD_INVALID_ARGUMENT, "dispatch_async: rank_wait_ns is");
  input.rank_wait_ns = nullptr;
  output.rank_wait_ns = waits;
  ASSERT_EQ(switchyard_ep_dispatch(ep, 0, &input, &output, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
      << switchyard_last_error();
  ASSERT_EQ(switchyard_ep_synchronize(ep, 0, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
      << switchyard_last_error();
  EXPECT_EQ(row_offsets[1], 2u);
  EXPECT_EQ(waits[0], 7u) << "a rank does not wait for itself";
  switchyard_combine_output sums{};
  sums.size = sizeof(sums);
  sums.rank_wait_ns = waits + 1;
  const switchyard_combine_input returned{.size = sizeof(returned)};
  expect_error(switchyard_ep_combine(ep, 0, &returned, &sums, SWITCHYARD_RANK_STREAM),
               SWITCHYARD_INVALID_ARGUMENT, "combine: rank_wait_ns is");
  EXPECT_EQ(std::vector<int32_t>(row_experts, row_experts + 4), (std::vector<int32_t>{3, 1, -1, 2}));
  EXPECT_EQ(std::vector<float>(row_weights, row_weights + 4), (std::vector<float>{0.25f, 0.75f, 0, 0.5f}));
  switchyard_ep_destroy(ep);
  switchyard_world_destroy(world);
}

// One rank and one token, whose row goes through the "experts" unchanged.
struct Flight {
  switchyard_ep* ep = nullptr;
  alignas(16) uint16_t tokens[16] = {};  // the second half is what a stride skips
  alignas(16) int64_t topk_ids[2] = {2, -1};
  alignas(16) float topk_weights[2] = {1, 0};
  alignas(16) uint32_t row_offsets[5] = {};
  alignas(16) int32_t expert_ids[4] = {};
  alignas(16) uint16_t outputs[16] = {};
  switchyard_row_buffers buffers = {.size = sizeof(switchyard_row_buffers)};

  explicit Flight(switchyard_ep* ep_in, uint16_t first) : ep(ep_in) {
    for (int i = 0; i < 8; ++i) tokens[i] = static_cast<uint16_t>(first + i);
  }
  switchyard_status dispatch() {
    if (const switchyard_status status = switchyard_ep_row_buffers(ep, 0, &buffers); status != SWITCHYARD_OK)
      return status;
    const switchyard_dispatch_input input = {.size = sizeof(input),
                                             .tokens = tokens,
                                             .num_tokens = 1,
                                             .topk_ids_64 = topk_ids,
                                             .token_stride_bytes = sizeof(tokens)};
    const switchyard_dispatch_output output = {.size = sizeof(output),
                                               .rows = buffers.rows,
                                               .src_info = buffers.src_info,
                                               .row_offsets = row_offsets,
                                               .expert_ids = expert_ids,
                                               .max_rows = buffers.max_rows};
    return switchyard_ep_dispatch(ep, 0, &input, &output, SWITCHYARD_RANK_STREAM);
  }
  switchyard_status combine() {
    const switchyard_combine_input input = {
        .size = sizeof(input), .expert_rows = buffers.rows, .src_info = buffers.src_info};
    const switchyard_combine_output output = {.size = sizeof(output),
                                              .topk_weights = topk_weights,
                                              .output = outputs,
                                              .num_tokens = 1,
                                              .output_stride_bytes = sizeof(outputs)};
    return switchyard_ep_combine(ep, 0, &input, &output, SWITCHYARD_RANK_STREAM);
  }
};

TEST(CApi, TwoStepsAreInFlightWithTensorsOfAnEngine) {
  switchyard_world* world = make_world();
  switchyard_ep_config config = small_config();
  config.top_k = 2;
  config.steps_in_flight = 2;
  switchyard_ep *ep = nullptr, *second = nullptr;
  ASSERT_EQ(switchyard_ep_create(world, &config, &ep), SWITCHYARD_OK) << switchyard_last_error();
  expect_error(switchyard_ep_flight(ep, 2, &second), SWITCHYARD_INVALID_ARGUMENT, "flight_idx is 2");
  ASSERT_EQ(switchyard_ep_flight(ep, 1, &second), SWITCHYARD_OK) << switchyard_last_error();
  Flight flights[] = {Flight(ep, 0x3f80), Flight(second, 0x4000)};
  for (Flight& flight : flights) ASSERT_EQ(flight.dispatch(), SWITCHYARD_OK) << switchyard_last_error();
  for (Flight& flight : flights) ASSERT_EQ(flight.combine(), SWITCHYARD_OK) << switchyard_last_error();
  ASSERT_EQ(switchyard_ep_synchronize(second, 0, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
      << switchyard_last_error();
  for (const Flight& flight : flights)
    for (int i = 0; i < 8; ++i) EXPECT_EQ(flight.outputs[i], flight.tokens[i]) << i;
  switchyard_ep_destroy(ep);  // the object lives on behind its other handle
  EXPECT_EQ(switchyard_ep_warm_up(second), SWITCHYARD_OK) << switchyard_last_error();
  switchyard_ep_destroy(second);
  switchyard_world_destroy(world);
}

// Rank 1 never comes.
TEST(CApi, FaultsAreRecordsAndThePollSaysThem) {
  switchyard_world* world = make_world(2);
  switchyard_ep_config config = small_config();
  config.timeout_ns = 30'000'000;
  switchyard_ep* ep = nullptr;
  ASSERT_EQ(switchyard_ep_create(world, &config, &ep), SWITCHYARD_OK) << switchyard_last_error();
  switchyard_world_destroy(world);  // it lives on behind the other handle
  switchyard_fault fault{};
  fault.size = sizeof(fault);
  ASSERT_EQ(switchyard_ep_fault(ep, 0, &fault), SWITCHYARD_OK);
  EXPECT_EQ(fault.kind, SWITCHYARD_FAULT_NONE);
  EXPECT_EQ(switchyard_ep_poll(ep, 0), SWITCHYARD_OK);
  alignas(16) static uint32_t row_offsets[4];
  alignas(16) static int32_t expert_ids[4];
  switchyard_dispatch_input input{};
  input.size = sizeof(input);
  switchyard_dispatch_output output{};
  output.size = sizeof(output);
  output.row_offsets = row_offsets;
  output.expert_ids = expert_ids;
  expect_error(switchyard_ep_dispatch(ep, 0, &input, &output, nullptr), SWITCHYARD_INVALID_ARGUMENT,
               "stream is");
  ASSERT_EQ(switchyard_ep_dispatch(ep, 0, &input, &output, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
      << switchyard_last_error();
  expect_error(switchyard_ep_synchronize(ep, 0, SWITCHYARD_RANK_STREAM), SWITCHYARD_DEADLINE_EXCEEDED,
               "rank 1");
  expect_error(switchyard_ep_poll(ep, 1), SWITCHYARD_DEADLINE_EXCEEDED, "rank 1");
  ASSERT_EQ(switchyard_ep_fault(ep, 0, &fault), SWITCHYARD_OK);
  EXPECT_EQ(fault.kind, SWITCHYARD_FAULT_TIMEOUT);
  EXPECT_EQ(fault.waiting_rank, 0);
  EXPECT_EQ(fault.late_rank, 1);
  EXPECT_GE(fault.elapsed_ns, 30'000'000u);
  EXPECT_EQ(switchyard_ep_reset(ep), SWITCHYARD_OK);
  EXPECT_EQ(switchyard_ep_poll(ep, 0), SWITCHYARD_OK);
  const int32_t survivor = 0;
  EXPECT_EQ(switchyard_ep_reset_to(ep, &survivor, 1), SWITCHYARD_OK) << switchyard_last_error();
  EXPECT_EQ(switchyard_ep_warm_up(ep), SWITCHYARD_OK) << switchyard_last_error();
  switchyard_ep_destroy(ep);
}

TEST(CApi, AttentionAndMatmulRun) {
  switchyard_world* world = make_world();
  switchyard_stream stream = nullptr;
  ASSERT_EQ(switchyard_stream_create(world, 0, &stream), SWITCHYARD_OK);
  constexpr size_t kRows = 16, kColumns = 64;
  const std::vector<uint16_t> ones(kRows * kColumns, 0x3f80), weights(kColumns * kColumns, 0x3f80);
  const auto upload = [&](const void* values, size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(switchyard_allocate(world, 0, bytes, &memory), SWITCHYARD_OK);
    if (values != nullptr) {
      EXPECT_EQ(switchyard_copy(world, 0, memory, values, bytes), SWITCHYARD_OK);
    }
    return memory;
  };
  const auto first_of = [&](const void* memory) {
    uint16_t value = 0;
    EXPECT_EQ(switchyard_copy(world, 0, &value, memory, sizeof(value)), SWITCHYARD_OK);
    return value;
  };
  void* const rows = upload(ones.data(), ones.size() * 2);
  void* const weight = upload(weights.data(), weights.size() * 2);
  void* const output = upload(nullptr, ones.size() * 2);
  const uint32_t ends[] = {0, kRows};
  switchyard_attention_shape shape{};
  shape.size = sizeof(shape);
  shape.head_dim = kColumns;
  shape.max_query_len = shape.max_key_len = kRows;
  shape.num_query_rows = shape.num_key_rows = kRows;
  switchyard_attention* attention = nullptr;
  ASSERT_EQ(switchyard_attention_create(world, 0, &shape, &attention), SWITCHYARD_OK)
      << switchyard_last_error();
  switchyard_attention_tensors tensors{};
  tensors.size = sizeof(tensors);
  tensors.queries = tensors.keys = tensors.values = rows;
  expect_error(switchyard_attention_run(attention, &tensors, stream), SWITCHYARD_INVALID_ARGUMENT, "output");
  tensors.output = output;
  ASSERT_EQ(switchyard_attention_run(attention, &tensors, stream), SWITCHYARD_OK) << switchyard_last_error();
  ASSERT_EQ(switchyard_stream_synchronize(world, 0, stream), SWITCHYARD_OK);
  EXPECT_EQ(first_of(output), 0x3f80);  // the mean of ones
  switchyard_attention_destroy(attention);

  switchyard_matmul_shape sizes{};
  sizes.size = sizeof(sizes);
  sizes.inner = sizes.columns = kColumns;
  sizes.max_rows = kRows;
  switchyard_matmul* matmul = nullptr;
  ASSERT_EQ(switchyard_matmul_create(world, 0, &sizes, &matmul), SWITCHYARD_OK) << switchyard_last_error();
  switchyard_matmul_tensors operands{};
  operands.size = sizeof(operands);
  operands.rows = rows;
  operands.weights = weight;
  operands.output = output;
  operands.row_offsets = static_cast<const uint32_t*>(upload(ends, sizeof(ends)));
  ASSERT_EQ(switchyard_matmul_run(matmul, &operands, stream), SWITCHYARD_OK) << switchyard_last_error();
  ASSERT_EQ(switchyard_stream_synchronize(world, 0, stream), SWITCHYARD_OK);
  EXPECT_EQ(first_of(output), 0x4280);  // 64
  switchyard_matmul_destroy(matmul);
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

}  // namespace
