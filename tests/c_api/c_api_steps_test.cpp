// Dispatch and combine through the C functions.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "c_api/c_api_harness.hpp"

namespace switchyard::c_api_test {
namespace {

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

// One rank, whose steps leave their rows side by side.
TEST(CApi, RowsGoToTheSetThatADispatchNames) {
  switchyard_world* world = make_world();
  switchyard_ep_config config = small_config();
  config.protocol = SWITCHYARD_PROTOCOL_DIRECT;
  config.row_layout = SWITCHYARD_ROWS_PER_RANK;
  config.row_sets = 2;
  switchyard_ep* ep = nullptr;
  ASSERT_EQ(switchyard_ep_create(world, &config, &ep), SWITCHYARD_OK) << switchyard_last_error();
  switchyard_ep_info info{.size = sizeof(info)};
  switchyard_row_buffers buffers{.size = sizeof(buffers)};
  ASSERT_EQ(switchyard_ep_get_info(ep, &info), SWITCHYARD_OK);
  ASSERT_EQ(switchyard_ep_row_buffers(ep, 0, &buffers), SWITCHYARD_OK);
  ASSERT_EQ(buffers.max_rows, 2 * info.rows_per_set);
  alignas(16) static uint16_t tokens[2][2 * 8];
  alignas(16) static const int32_t topk_ids[] = {3, 1};
  alignas(16) static const float topk_weights[] = {1, 1};
  alignas(16) static uint32_t row_offsets[3];
  alignas(16) static int32_t expert_ids[2], expert_totals[1 + 4] = {10};
  for (int set = 0; set < 2; ++set) {
    for (int i = 0; i < 2 * 8; ++i) tokens[set][i] = static_cast<uint16_t>(0x3f80 + i + 64 * set);
    const switchyard_dispatch_input input = {.size = sizeof(input),
                                             .tokens = tokens[set],
                                             .topk_ids = topk_ids,
                                             .num_tokens = 2,
                                             .topk_weights = topk_weights,
                                             .row_set = set};
    const switchyard_dispatch_output output = {.size = sizeof(output),
                                               .row_offsets = row_offsets,
                                               .expert_ids = expert_ids,
                                               .max_rows = buffers.max_rows,
                                               .expert_totals = expert_totals};
    ASSERT_EQ(switchyard_ep_dispatch(ep, 0, &input, &output, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
        << switchyard_last_error();
    ASSERT_EQ(switchyard_ep_abandon_step(ep, 0), SWITCHYARD_OK) << switchyard_last_error();
  }
  ASSERT_EQ(switchyard_ep_synchronize(ep, 0, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK);
  const auto* rows = static_cast<const uint16_t*>(buffers.rows);
  for (int set = 0; set < 2; ++set)
    EXPECT_EQ(std::memcmp(rows + set * info.rows_per_set * 8, tokens[set], sizeof(tokens[set])), 0) << set;
  EXPECT_EQ(row_offsets[1], info.rows_per_set);
  EXPECT_EQ(row_offsets[2], info.rows_per_set + 2);
  EXPECT_EQ(std::vector<int32_t>(expert_totals, expert_totals + 5), (std::vector<int32_t>{14, 0, 2, 0, 2}));
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
  size_t input_size = sizeof(switchyard_dispatch_input), output_size = sizeof(switchyard_dispatch_output);
  int32_t beyond = 0;  // what fields have that older programs do not know
  const float* dispatched_weights = nullptr;

  explicit Flight(switchyard_ep* ep_in, uint16_t first) : ep(ep_in) {
    for (int i = 0; i < 8; ++i) tokens[i] = static_cast<uint16_t>(first + i);
  }
  switchyard_status dispatch() {
    if (const switchyard_status status = switchyard_ep_row_buffers(ep, 0, &buffers); status != SWITCHYARD_OK)
      return status;
    const switchyard_dispatch_input input = {.size = input_size,
                                             .tokens = tokens,
                                             .num_tokens = 1,
                                             .topk_weights = dispatched_weights,
                                             .topk_ids_64 = topk_ids,
                                             .token_stride_bytes = sizeof(tokens),
                                             .row_set = beyond};
    const switchyard_dispatch_output output = {
        .size = output_size,
        .rows = buffers.rows,
        .src_info = buffers.src_info,
        .row_offsets = row_offsets,
        .expert_ids = expert_ids,
        .max_rows = buffers.max_rows,
        .expert_totals = reinterpret_cast<int32_t*>(static_cast<intptr_t>(beyond))};
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

// Structs as older programs have them, with something else behind them.
TEST(CApi, StructsOfAStepMayBeOlder) {
  switchyard_world* world = make_world();
  switchyard_ep_config config = small_config();
  config.top_k = 2;
  switchyard_ep* ep = nullptr;
  ASSERT_EQ(switchyard_ep_create(world, &config, &ep), SWITCHYARD_OK) << switchyard_last_error();
  Flight flight(ep, 0x3f80);
  flight.beyond = 99;
  expect_error(flight.dispatch(), SWITCHYARD_INVALID_ARGUMENT, "row_set is 99");
  flight.input_size = 96;
  expect_error(flight.dispatch(), SWITCHYARD_INVALID_ARGUMENT, "expert_totals");
  flight.output_size = 104;
  ASSERT_EQ(flight.dispatch(), SWITCHYARD_OK) << switchyard_last_error();
  ASSERT_EQ(flight.combine(), SWITCHYARD_OK) << switchyard_last_error();
  ASSERT_EQ(switchyard_ep_synchronize(ep, 0, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
      << switchyard_last_error();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(flight.outputs[i], flight.tokens[i]) << i;
  switchyard_ep_destroy(ep);
  switchyard_world_destroy(world);
}

TEST(CApi, SumsAtTheOwnerTakeWeightsInDispatch) {
  switchyard_world* world = make_world();
  switchyard_ep_config config = small_config();
  config.top_k = 2;
  config.protocol = SWITCHYARD_PROTOCOL_DIRECT;
  config.reduce_at_owner = 1;
  switchyard_ep* ep = nullptr;
  ASSERT_EQ(switchyard_ep_create(world, &config, &ep), SWITCHYARD_OK) << switchyard_last_error();
  Flight flight(ep, 0x3f80);
  expect_error(flight.dispatch(), SWITCHYARD_INVALID_ARGUMENT, "topk_weights");
  flight.dispatched_weights = flight.topk_weights;
  ASSERT_EQ(flight.dispatch(), SWITCHYARD_OK) << switchyard_last_error();
  ASSERT_EQ(flight.combine(), SWITCHYARD_OK) << switchyard_last_error();
  ASSERT_EQ(switchyard_ep_synchronize(ep, 0, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
      << switchyard_last_error();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(flight.outputs[i], flight.tokens[i]) << i;
  switchyard_ep_destroy(ep);
  switchyard_world_destroy(world);
}

// Two ranks, each with a token for each expert, of which it has two.
class CApiSteps : public testing::Test {
 protected:
  void SetUp() override {
    switchyard_ep_config config = small_config();
    config.protocol = SWITCHYARD_PROTOCOL_DIRECT;
    config.row_delivery = SWITCHYARD_DELIVERY_RECEIVER;
    config.max_tokens_per_rank = 4;
    config.counts_experts = 1;
    ASSERT_EQ(switchyard_ep_create(world_, &config, &ep_), SWITCHYARD_OK) << switchyard_last_error();
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(switchyard_ep_row_buffers(ep_, rank, &buffers_[rank]), SWITCHYARD_OK);
      for (int i = 0; i < 4 * 8; ++i) at_[rank].tokens[i] = static_cast<uint16_t>(0x3f80 + i + 64 * rank);
    }
  }
  void TearDown() override {
    switchyard_ep_destroy(ep_);
    switchyard_world_destroy(world_);
  }

  switchyard_dispatch_input given(int rank) const {
    return {.size = sizeof(switchyard_dispatch_input),
            .tokens = at_[rank].tokens,
            .topk_ids = kIds,
            .num_tokens = 4};
  }
  switchyard_dispatch_output dispatched(int rank) {
    At& at = at_[rank];
    return {.size = sizeof(switchyard_dispatch_output),
            .row_offsets = at.row_offsets,
            .expert_ids = at.expert_ids,
            .row_counts = at.row_counts,
            .max_rows = buffers_[rank].max_rows,
            .source_ranges = at.source_ranges,
            .row_totals = at.row_totals};
  }
  switchyard_combine_output combined(int rank) {
    return {.size = sizeof(switchyard_combine_output),
            .topk_ids = kIds,
            .topk_weights = kWeights,
            .output = at_[rank].outputs,
            .num_tokens = 4};
  }
  void dispatch(int rank) {
    const switchyard_dispatch_input input = given(rank);
    const switchyard_dispatch_output output = dispatched(rank);
    ASSERT_EQ(switchyard_ep_dispatch(ep_, rank, &input, &output, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
        << switchyard_last_error();
  }
  void combine(int rank, const void* rows, int32_t awaits_readers = 0) {
    const switchyard_combine_input input = {
        .size = sizeof(input), .expert_rows = rows, .awaits_readers = awaits_readers};
    const switchyard_combine_output output = combined(rank);
    ASSERT_EQ(switchyard_ep_combine(ep_, rank, &input, &output, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
        << switchyard_last_error();
  }
  void synchronize() {
    for (int rank = 0; rank < 2; ++rank)
      ASSERT_EQ(switchyard_ep_synchronize(ep_, rank, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
          << switchyard_last_error();
  }
  void expect_tokens_back() {
    synchronize();
    for (At& at : at_) {
      EXPECT_EQ(std::memcmp(at.outputs, at.tokens, sizeof(at.tokens)), 0);
      std::memset(at.outputs, 0, sizeof(at.outputs));
    }
  }

  struct At {
    alignas(16) uint16_t tokens[4 * 8] = {};
    alignas(16) uint16_t outputs[4 * 8] = {};
    alignas(16) uint32_t row_offsets[3] = {};
    alignas(16) uint32_t row_counts[2] = {};
    alignas(16) int32_t expert_ids[2] = {};
    alignas(16) uint64_t source_ranges[2 * 2] = {};
    alignas(16) int32_t row_totals[2] = {100, 100};
  };
  alignas(16) static constexpr int32_t kIds[] = {0, 1, 2, 3};
  alignas(16) static constexpr float kWeights[] = {1, 1, 1, 1};
  switchyard_world* world_ = make_world(2);
  switchyard_ep* ep_ = nullptr;
  switchyard_row_buffers buffers_[2] = {{.size = sizeof(switchyard_row_buffers)},
                                        {.size = sizeof(switchyard_row_buffers)}};
  At at_[2];
};

TEST_F(CApiSteps, AreAbandonedAndReopened) {
  switchyard_ep_info info{.size = sizeof(info)};
  ASSERT_EQ(switchyard_ep_get_info(ep_, &info), SWITCHYARD_OK);
  EXPECT_EQ(info.row_delivery, SWITCHYARD_DELIVERY_RECEIVER);
  EXPECT_EQ(info.rows_per_set, buffers_[0].max_rows);
  for (int rank = 0; rank < 2; ++rank) dispatch(rank);
  for (int rank = 0; rank < 2; ++rank) ASSERT_EQ(switchyard_ep_abandon_step(ep_, rank), SWITCHYARD_OK);
  expect_error(switchyard_ep_abandon_step(ep_, 0), SWITCHYARD_FAILED_PRECONDITION, "abandon_step");
  synchronize();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(at_[rank].row_totals[1], 102);
    EXPECT_EQ(at_[rank].source_ranges[1], uint64_t{1} << 32 | 1);  // rank 1's row, behind that of rank 0
    uint32_t offsets[4] = {};
    expect_error(switchyard_ep_source_row_offsets(ep_, rank, offsets, 3), SWITCHYARD_INVALID_ARGUMENT,
                 "num_offsets is 3; it must be 4 (n_local_experts x n_ranks)");
    ASSERT_EQ(switchyard_ep_source_row_offsets(ep_, rank, offsets, 4), SWITCHYARD_OK);
    EXPECT_EQ(std::vector<uint32_t>(offsets, offsets + 4), (std::vector<uint32_t>{0, 1, 2, 3}));
  }
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_EQ(switchyard_ep_reopen_step(ep_, rank, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
        << switchyard_last_error();
  for (int rank = 0; rank < 2; ++rank) combine(rank, buffers_[rank].rows);
  expect_tokens_back();
}

TEST_F(CApiSteps, AreSplitAndCounted) {
  const auto expect_ok = [](switchyard_status status) {
    EXPECT_EQ(status, SWITCHYARD_OK) << switchyard_last_error();
  };
  for (int rank = 0; rank < 2; ++rank) {
    const switchyard_dispatch_input input = given(rank);
    const switchyard_dispatch_output output = dispatched(rank);
    expect_ok(switchyard_ep_dispatch_async(ep_, rank, &input, SWITCHYARD_RANK_STREAM));
    expect_ok(switchyard_ep_dispatch_wait(ep_, rank, &output, SWITCHYARD_RANK_STREAM));
  }
  for (int rank = 0; rank < 2; ++rank) {
    switchyard_combine_input input = {
        .size = sizeof(input), .expert_rows = buffers_[rank].rows, .awaits_readers = 1};
    expect_error(switchyard_ep_combine_async(ep_, rank, &input, SWITCHYARD_RANK_STREAM),
                 SWITCHYARD_INVALID_ARGUMENT, "awaits_readers must be false");
    input.reserved = input.awaits_readers--;
    expect_error(switchyard_ep_combine_async(ep_, rank, &input, SWITCHYARD_RANK_STREAM),
                 SWITCHYARD_INVALID_ARGUMENT, "input->reserved is 1");
    input.reserved = 0;
    const switchyard_combine_output output = combined(rank);
    expect_ok(switchyard_ep_combine_async(ep_, rank, &input, SWITCHYARD_RANK_STREAM));
    expect_ok(switchyard_ep_combine_wait(ep_, rank, &output, SWITCHYARD_RANK_STREAM));
  }
  expect_tokens_back();
  expect_error(switchyard_ep_all_reduce(ep_, 0, at_[0].outputs, 4, SWITCHYARD_RANK_STREAM),
               SWITCHYARD_FAILED_PRECONDITION, "outputs are whole");
  for (const int64_t expected : {1, 0}) {
    int64_t counts[4] = {-1, -1, -1, -1};
    expect_ok(switchyard_ep_expert_counts(ep_, 1, counts, 4));
    EXPECT_EQ(std::vector<int64_t>(counts, counts + 4), std::vector<int64_t>(4, expected));
    expect_ok(switchyard_ep_clear_expert_counts(ep_, 1));
  }
}

TEST_F(CApiSteps, TakeExpertRowsOfTheCallers) {
  alignas(16) static uint16_t memory[2][2 * 4 * 8];  // [rank][group][4 rows]
  for (int rank = 0; rank < 2; ++rank) dispatch(rank);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(switchyard_ep_synchronize(ep_, rank, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK);
    const uint16_t* rows = static_cast<const uint16_t*>(buffers_[rank].rows);
    for (int group = 0; group < 2; ++group)
      std::memcpy(memory[rank] + group * 4 * 8, rows + group * 2 * 8, 2 * 8 * sizeof(uint16_t));
    const switchyard_expert_rows given = {.size = sizeof(given),
                                          .rows = memory[rank],
                                          .num_rows = 8,
                                          .row_offsets = at_[rank].row_offsets,
                                          .row_counts = at_[rank].row_counts,
                                          .rows_per_group = 4};
    ASSERT_EQ(switchyard_ep_store_expert_rows(ep_, rank, &given, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
        << switchyard_last_error();
  }
  for (int rank = 0; rank < 2; ++rank) combine(rank, buffers_[rank].expert_outputs);
  expect_tokens_back();

  for (At& at : at_)  // else a combine of the rows that were copied would do
    for (uint16_t& element : at.tokens) element ^= 0x100;
  for (int rank = 0; rank < 2; ++rank) dispatch(rank);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(switchyard_ep_synchronize(ep_, rank, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK);
    std::memcpy(memory[rank], buffers_[rank].rows, 4 * 8 * sizeof(uint16_t));
    int32_t can_be_read = 0;
    expect_error(switchyard_ep_offer_expert_rows(ep_, rank, memory[rank], SWITCHYARD_RANK_STREAM, nullptr),
                 SWITCHYARD_INVALID_ARGUMENT, "can_be_read is NULL");
    ASSERT_EQ(switchyard_ep_offer_expert_rows(ep_, rank, memory[rank], SWITCHYARD_RANK_STREAM, &can_be_read),
              SWITCHYARD_OK)
        << switchyard_last_error();
    EXPECT_EQ(can_be_read, 1);
  }
  for (int rank = 0; rank < 2; ++rank) combine(rank, memory[rank], 1);
  expect_tokens_back();
}

TEST_F(CApiSteps, AreCalledOffByOneRank) {
  dispatch(0);
  ASSERT_EQ(switchyard_ep_call_off_step(ep_, 1, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
      << switchyard_last_error();
  for (int rank = 0; rank < 2; ++rank) {
    expect_error(switchyard_ep_synchronize(ep_, rank, SWITCHYARD_RANK_STREAM), SWITCHYARD_RESOURCE_EXHAUSTED,
                 "rank 1");
    switchyard_fault fault{.size = sizeof(fault)};
    ASSERT_EQ(switchyard_ep_fault(ep_, rank, &fault), SWITCHYARD_OK);
    EXPECT_EQ(fault.kind, SWITCHYARD_FAULT_CALLED_OFF);
  }
  for (int rank = 0; rank < 2; ++rank) dispatch(rank);
  for (int rank = 0; rank < 2; ++rank) combine(rank, buffers_[rank].rows);
  expect_tokens_back();
}

TEST_F(CApiSteps, AreCountedInAdvance) {
  alignas(16) const int64_t ids[] = {0, 1, 3, -1};
  alignas(16) int32_t tokens_of_rank[2] = {}, choices_of_expert[4] = {};
  alignas(16) uint8_t is_token_in_rank[4] = {};
  const switchyard_routing_input input = {
      .size = sizeof(input), .topk_ids = ids, .num_tokens = 2, .top_k = 2, .n_experts = 4};
  const switchyard_routing_counts counts = {.size = sizeof(counts),
                                            .tokens_of_rank = tokens_of_rank,
                                            .choices_of_expert = choices_of_expert,
                                            .is_token_in_rank = is_token_in_rank};
  expect_error(switchyard_count_routing(world_, 0, nullptr, &counts, SWITCHYARD_RANK_STREAM),
               SWITCHYARD_INVALID_ARGUMENT, "input is NULL");
  ASSERT_EQ(switchyard_count_routing(world_, 0, &input, &counts, SWITCHYARD_RANK_STREAM), SWITCHYARD_OK)
      << switchyard_last_error();
  ASSERT_EQ(switchyard_world_synchronize(world_), SWITCHYARD_OK);
  EXPECT_EQ(std::vector<int32_t>(tokens_of_rank, tokens_of_rank + 2), (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(std::vector<int32_t>(choices_of_expert, choices_of_expert + 4),
            (std::vector<int32_t>{1, 1, 0, 1}));
  EXPECT_EQ(std::vector<uint8_t>(is_token_in_rank, is_token_in_rank + 4), (std::vector<uint8_t>{1, 0, 0, 1}));
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

}  // namespace
}  // namespace switchyard::c_api_test
