// A user's own instantiations of the expert-parallel kernels: a shape fixed at compile time, in whole or in
// part, and an epilogue of their own. One rank, launched without the runtime; compiled for the host and,
// through own_kernels_test.cu, for CUDA.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <span>

#include "ep_harness.hpp"
#include "switchyard/detail/ep/kernels.hpp"
#include "switchyard/detail/format/bf16.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "target/target_fixture.hpp"

#define FixedShapeKernels SWITCHYARD_SUITE(FixedShapeKernels)

namespace switchyard::inline SWITCHYARD_TARGET {

constexpr EpShape kTestedShape{
    .n_ranks = 1, .n_experts = 6, .top_k = 3, .hidden = 72, .max_tokens_per_rank = 10, .p2p_world_size = 1};

struct WholeShape {
  static constexpr EpShape kShape = kTestedShape;
};
struct HiddenAndTopK {
  static constexpr EpShape kShape{.top_k = kTestedShape.top_k, .hidden = kTestedShape.hidden};
};
struct ExpertsAndRanks {
  static constexpr EpShape kShape{.n_ranks = kTestedShape.n_ranks, .n_experts = kTestedShape.n_experts};
};

// Experts that are some of the model's: ids 2 to 7 of 10.
struct SomeOfTheExperts {
  static constexpr EpShape kShape{.first_expert = 2, .num_ids = 10};
};

// What a launch gives at run time: only what `Fixed` leaves open. A kernel that reads a fixed field from its
// arguments finds another number there.
template <FixedShape Fixed>
constexpr EpShape open_fields() {
  constexpr EpShape fixed = Fixed::kShape;
  EpShape given = kTestedShape;
  if (fixed.n_ranks != 0) given.n_ranks = 2;
  if (fixed.n_experts != 0) given.n_experts = 1;
  if (fixed.top_k != 0) given.top_k = 1;
  if (fixed.hidden != 0) given.hidden = 8;
  if (fixed.max_tokens_per_rank != 0) given.max_tokens_per_rank = 1;
  if (fixed.first_expert != 0) given.first_expert = 1;
  if (fixed.num_ids != 0) given.num_ids = 3;
  return given;
}

// An epilogue that keeps fp32 and adds a residual of the same type.
struct ResidualEpilogue {
  const float* residual;  // [num_tokens][hidden]
  float* output;          // [num_tokens][hidden]
  int32_t hidden;

  SWITCHYARD_DEVICE void operator()(int token_idx, int column,
                                    const float (&values)[kColumnsPerThread]) const {
    for (int i = 0; i < kColumnsPerThread; ++i) {
      const int64_t place = static_cast<int64_t>(token_idx) * hidden + column + i;
      output[place] = values[i] + residual[place];
    }
  }
};
static_assert(CombineEpilogue<ResidualEpilogue>);

// The buffers of one rank that owns all experts, and a step through them. The experts work in place.
template <EpProtocol P>
class OneRankStep {
 public:
  // The ids it is given are those of the model's experts, of which its own begin at first_expert: where that
  // is not 0, somebody else's expert stands where padding was.
  OneRankStep(Rank& rank, const reference::Step& step, int first_expert = 0)
      : rank_(rank),
        step_(step),
        tokens_(must(rank.upload(step.tokens[0]))),
        topk_ids_(must(rank.upload(ids_from(step.topk_ids[0], first_expert)))),
        topk_weights_(must(rank.upload(step.topk_weights[0]))) {
    // Cells say that nothing has arrived; counters start at 0. Direct, cells of zeros are of no step.
    if (!kIsDirect) {
      EXPECT_TRUE(dispatch_counts_.fill_bytes(0xff).ok());
      EXPECT_TRUE(combine_counts_.fill_bytes(0xff).ok());
    }
    EXPECT_TRUE(rows_.fill_bytes(0xee).ok());
  }

  // All waits of these kernels are fulfilled by the rank itself: each launch ends before the next.
  template <FixedShape Fixed>
  void dispatch(testing_support::StepMode mode) {
    const DispatchParamsOf<P, BF16TokenFormat> params{
        dispatch_step(open_fields<Fixed>()),
        std::get<typename P::DispatchPart>(std::tuple(slotted_part(), direct_part())), format()};
    if (mode == testing_support::StepMode::kFused) {
      run(&dispatch_kernel<P, Fixed, BF16TokenFormat>, params);
    } else {
      run(&dispatch_async_kernel<P, Fixed, BF16TokenFormat>, params);
      run(&receive_rows_kernel<P, Fixed, BF16TokenFormat>, params);
    }
  }

  // What dispatch left, checked; the experts' work is done on the way.
  void check_dispatch_and_run_experts() {
    reference::DispatchResult result;
    result.row_offsets = must(row_offsets_.download());
    result.expert_ids = must(expert_ids_.download());
    const size_t num_rows = result.row_offsets.back();
    ASSERT_LE(num_rows, static_cast<size_t>(kMaxRows));
    result.src_info = must(src_info_.download(2 * num_rows));
    result.rows = must(rows_.download(num_rows * kTestedShape.hidden));
    ASSERT_EQ(reference::check_dispatch(step_, 0, result), "");
    std::vector<bf16> expert_rows;
    for (int expert = 0; expert < kTestedShape.n_experts; ++expert)
      for (size_t row = result.row_offsets[expert]; row < result.row_offsets[expert + 1]; ++row) {
        const std::vector<bf16> made =
            testing_support::scaling_expert(nullptr, step_, 0, result.src_info[2 * row], expert);
        expert_rows.insert(expert_rows.end(), made.begin(), made.end());
      }
    ASSERT_TRUE(rows_.upload(expert_rows).ok());
  }

  template <FixedShape Fixed, typename Epilogue>
  void combine(testing_support::StepMode mode, const Epilogue& epilogue) {
    const CombineParamsOf<P, Epilogue> params{combine_step(open_fields<Fixed>()),
                                              std::get<typename P::CombinePart>(std::tuple(
                                                  SlottedCombinePart{}, DirectCombinePart{row_of_.data()})),
                                              epilogue};
    if (mode == testing_support::StepMode::kFused) {
      run(&combine_kernel<P, Fixed, Epilogue>, params);
    } else {
      run(&return_rows_kernel<P, Fixed, Epilogue>, params);
      run(&combine_wait_kernel<P, Fixed, Epilogue>, params);
    }
  }

  // What a protocol does not use stays 0, and so does what it puts back.
  void check_counters() const {
    std::vector<int32_t> words = must(counters_.download());
    const Counters counters(std::span<int32_t>{words});
    const auto expect_zeros = [&](const int32_t* begin, const int32_t* end, const char* region) {
      EXPECT_TRUE(std::all_of(begin, end, [](int32_t word) { return word == 0; })) << region;
    };
    const int32_t* end = words.data() + words.size();
    if constexpr (kIsDirect) {
      const DirectCounters direct(counters);
      expect_zeros(direct.row_offset(kS.n_experts + 1), end, "behind what the direct protocol keeps");
      EXPECT_GT(*direct.num_steps(), 0);
      EXPECT_EQ(*direct.blocks_done(), 0);
      EXPECT_EQ(*direct.blocks_waited(), 0);
    } else {
      expect_zeros(counters.get_dispatch_async_ptr(), counters.get_dispatch_wait_ptr(), "dispatch_async");
      expect_zeros(counters.extra_rows(0), end, "regions C to G and combine_wait");
      int32_t num_rows = 0;
      for (int pair_idx = 0; pair_idx < kS.n_experts; ++pair_idx) num_rows += *counters.row_count(pair_idx);
      EXPECT_GT(num_rows, 0) << "region A";
    }
  }

 private:
  template <typename T>
  static T must(Result<T> result) {
    return testing_support::must(std::move(result));
  }
  static std::vector<int32_t> ids_from(std::vector<int32_t> ids, int first_expert) {
    for (int32_t& id : ids) id = id != -1 ? id + first_expert : first_expert - 1;
    return ids;
  }

  static uint64_t shared_bytes(const DispatchStep&) {
    return P::dispatch_shared_bytes(BF16TokenFormat{kS.hidden, nullptr}, kS, {});
  }
  static uint64_t shared_bytes(const CombineStep&) {
    return P::template combine_shared_bytes<RunTimeShape, BF16CombineRows>(/*num_warps=*/1);
  }

  template <typename Params>
  void run(void (*kernel)(Params), const Params& params) {
    const LaunchShape shape{.num_blocks = 3, .num_threads = 32, .shared_bytes = shared_bytes(params)};
    const Status launched = target::launch("kernel under test", kernel, shape, rank_.stream(), params);
    ASSERT_TRUE(launched.ok()) << launched.to_string();
    const Status ended = rank_.synchronize();
    ASSERT_TRUE(ended.ok()) << ended.to_string();
    ASSERT_EQ(must(poison_.download()).front(), 0u) << "a wait ran out of time";
  }

  WaitContext wait_context() const {
    WaitContext context{};
    context.record = fault_.as<FaultRecord>();
    context.skipped = context.record + 1;
    context.my_poison = poison_.data();
    context.poison_of_rank = poison_table_.data();
    context.n_ranks = 1;
    context.timeout_ns = 20'000'000'000;
    return context;
  }

  DispatchStep dispatch_step(const EpShape& shape) const {
    DispatchStep step{};
    step.shape = shape;
    step.num_tokens = step_.num_tokens(0);
    step.input_tokens = tokens_.data();
    step.token_stride = kRowBytes;
    step.topk_ids = topk_ids_.data();
    step.row_offsets = row_offsets_.data();
    step.expert_ids = expert_ids_.data();
    step.src_info = src_info_.data();
    step.max_rows = kMaxRows;
    step.recv_bufs.mine = step.recv_bufs.of_rank[0] = kIsDirect ? row_memory() : dispatch_recv_.data();
    step.recv_counts.mine = step.recv_counts.of_rank[0] = dispatch_counts_.data();
    step.ep_counters = Counters(counters_);
    step.wait_context = wait_context();
    return step;
  }
  SlottedDispatchPart slotted_part() const { return {send_buf_.data()}; }
  DirectDispatchPart direct_part() const {
    DirectDispatchPart part{};
    part.count_tables.mine = part.count_tables.of_rank[0] = count_table_.data();
    part.src_infos.mine = part.src_infos.of_rank[0] = src_info_.data();
    part.row_of = row_of_.data();
    return part;
  }
  BF16TokenFormat format() const { return {kS.hidden, rows_.data()}; }

  CombineStep combine_step(const EpShape& shape) const {
    CombineStep step{};
    step.shape = shape;
    step.expert_rows = rows_.data();
    step.src_info = src_info_.data();
    step.num_tokens = step_.num_tokens(0);
    step.topk_ids = topk_ids_.data();
    step.topk_weights = topk_weights_.data();
    step.recv_bufs.mine = step.recv_bufs.of_rank[0] = kIsDirect ? row_memory() : combine_recv_.data();
    step.recv_counts.mine = step.recv_counts.of_rank[0] = combine_counts_.data();
    step.ep_counters = Counters(counters_);
    step.wait_context = wait_context();
    return step;
  }

  std::byte* row_memory() const { return reinterpret_cast<std::byte*>(rows_.data()); }

  template <typename T>
  Buffer<T> zeros(uint64_t size) const {
    return must(rank_.allocate<T>(size));
  }

  static constexpr bool kIsDirect = std::is_same_v<P, Direct>;
  static constexpr EpShape kS = kTestedShape;
  using Counters = EPLocalSyncCounters<kS.n_experts>;
  static constexpr uint32_t kMaxRows = static_cast<uint32_t>(kS.max_tokens_per_rank * kS.top_k);
  static constexpr uint32_t kRowBytes = static_cast<uint32_t>(kS.hidden * sizeof(bf16));
  static constexpr uint32_t kMessageBytes = MessageLayout{kRowBytes, kS.top_k}.bytes();

  Rank& rank_;
  const reference::Step& step_;
  Buffer<bf16> tokens_;
  Buffer<int32_t> topk_ids_;
  Buffer<float> topk_weights_;
  Buffer<std::byte> send_buf_ =
      zeros<std::byte>(DispatchSendLayout{kS.max_tokens_per_rank, 1, kMessageBytes}.bytes().value());
  Buffer<std::byte> dispatch_recv_ = zeros<std::byte>(
      DispatchRecvLayout{kS.n_experts, kS.n_ranks, kS.max_tokens_per_rank, kMessageBytes}.bytes().value());
  Buffer<std::byte> combine_recv_ =
      zeros<std::byte>(CombineRecvLayout{kS.max_tokens_per_rank, kS.top_k, kRowBytes}.bytes().value());
  Buffer<uint64_t> dispatch_counts_ = zeros<uint64_t>(kS.n_experts),
                   combine_counts_ = zeros<uint64_t>(kS.n_experts);
  Buffer<int32_t> counters_ = zeros<int32_t>(Counters::total_size());
  Buffer<uint64_t> poison_ = zeros<uint64_t>(1);
  Buffer<uint64_t*> poison_table_ = must(rank_.upload(std::vector<uint64_t*>{poison_.data()}));
  DeviceMemory fault_ = must(DeviceMemory::allocate_host_visible(device_of(rank_), 2 * sizeof(FaultRecord)));
  Buffer<uint32_t> row_offsets_ = zeros<uint32_t>(kS.n_experts + 1);
  Buffer<int32_t> expert_ids_ = zeros<int32_t>(kS.n_experts), src_info_ = zeros<int32_t>(2 * kMaxRows);
  Buffer<bf16> rows_ = zeros<bf16>(kMaxRows * kS.hidden);
  // Direct protocol only.
  Buffer<uint64_t> count_table_ = zeros<uint64_t>(kS.n_experts);
  Buffer<uint32_t> row_of_ = zeros<uint32_t>(kMaxRows);
};

class FixedShapeKernels : public testing_support::OneRankTest {
 protected:
  // Fewer tokens than promised, a padding id and a repeated one.
  static reference::Step make_step(uint64_t seed) {
    reference::Step step = testing_support::make_step({.n_ranks = kTestedShape.n_ranks,
                                                       .n_experts = kTestedShape.n_experts,
                                                       .top_k = kTestedShape.top_k,
                                                       .hidden = kTestedShape.hidden,
                                                       .tokens_per_rank = {9}},
                                                      seed);
    step.topk_ids[0][4] = -1;
    step.topk_ids[0][7] = step.topk_ids[0][6];
    return step;
  }

  // The weighted output of a step that finds in the buffers and counters what an earlier one left.
  template <EpProtocol P, FixedShape Fixed>
  std::vector<uint16_t> run_second_step(testing_support::StepMode mode) {
    const reference::Step step = make_step(1);
    auto output = zeros<bf16>(step.tokens[0].size());
    OneRankStep<P> kernels(rank(), step, Fixed::kShape.first_expert);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(output.fill_bytes(0xee).ok());
      kernels.template dispatch<Fixed>(mode);
      kernels.check_dispatch_and_run_experts();
      kernels.template combine<Fixed>(mode, StoreWeighted{output.data(), kTestedShape.hidden});
      kernels.check_counters();
    }
    std::vector<uint16_t> output_bits;
    for (const bf16 value : download(output)) output_bits.push_back(value.bits);
    return output_bits;
  }

  template <FixedShape Fixed>
  void check_against_run_time_shape() {
    std::vector<uint16_t> expected;
    for (const bf16 value :
         reference::combine_weighted(make_step(1), 0, &testing_support::scaling_expert, nullptr))
      expected.push_back(value.bits);
    for (const auto mode : {testing_support::StepMode::kSplit, testing_support::StepMode::kFused}) {
      EXPECT_EQ((run_second_step<Slotted, RunTimeShape>(mode)), expected);
      EXPECT_EQ((run_second_step<Slotted, Fixed>(mode)), expected);
      EXPECT_EQ((run_second_step<Direct, RunTimeShape>(mode)), expected);
      EXPECT_EQ((run_second_step<Direct, Fixed>(mode)), expected);
    }
  }

  template <EpProtocol P>
  void check_epilogue();
};

INSTANTIATE_TEST_SUITE_P(Modes, FixedShapeKernels, testing_support::modes_of_target(),
                         testing_support::mode_name);

TEST_P(FixedShapeKernels, AShapeFixedInWholeGivesWhatTheRunTimeShapeGives) {
  check_against_run_time_shape<WholeShape>();
}

TEST_P(FixedShapeKernels, AShapeFixedInPartGivesWhatTheRunTimeShapeGives) {
  check_against_run_time_shape<HiddenAndTopK>();
  check_against_run_time_shape<ExpertsAndRanks>();
}

TEST_P(FixedShapeKernels, IdsFixedAtCompileTimeAreThoseOfTheModel) {
  const ShapeOf<SomeOfTheExperts> fixed{open_fields<SomeOfTheExperts>()};
  EXPECT_EQ(fixed.num_ids(), 10);
  EXPECT_TRUE(fixed.is_id(9));
  EXPECT_EQ(fixed.expert_of_id(1), -1);
  EXPECT_EQ(fixed.expert_of_id(2), 0);
  EXPECT_EQ(fixed.id_of_expert(5), 7);
  // What is not fixed is read at run time, and by default the ids are the experts.
  const ShapeOf<RunTimeShape> open{SomeOfTheExperts::kShape, 1};
  EXPECT_EQ(open.num_ids(), 10);
  EXPECT_EQ(open.id_of_expert(5), 7);
  EXPECT_EQ(ShapeOf<WholeShape>{EpShape{}}.num_ids(), kTestedShape.n_experts);
  check_against_run_time_shape<SomeOfTheExperts>();
}

template <EpProtocol P>
void FixedShapeKernels::check_epilogue() {
  const reference::Step step = make_step(3);
  const std::vector<float> sums = reference::combine_sums(step, 0, &testing_support::scaling_expert, nullptr);
  std::vector<float> residual_values(sums.size()), expected(sums.size());
  size_t num_unlike_bf16 = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    residual_values[i] = static_cast<float>(i) / 64.0f;
    expected[i] = sums[i] + residual_values[i];
    if (to_float(to_bf16(sums[i])) != sums[i]) ++num_unlike_bf16;
  }
  ASSERT_GT(num_unlike_bf16, sums.size() / 2) << "the test could not tell a rounded sum";
  const auto residual = upload(residual_values);
  for (const auto mode : {testing_support::StepMode::kSplit, testing_support::StepMode::kFused}) {
    const auto output = zeros<float>(sums.size());
    OneRankStep<P> kernels(rank(), step);
    kernels.template dispatch<WholeShape>(mode);
    kernels.check_dispatch_and_run_experts();
    kernels.template combine<WholeShape>(
        mode, ResidualEpilogue{residual.data(), output.data(), kTestedShape.hidden});
    const std::vector<float> seen = download(output);
    for (size_t i = 0; i < seen.size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(seen[i]), std::bit_cast<uint32_t>(expected[i])) << "value " << i;
  }
}

TEST_P(FixedShapeKernels, AnEpilogueReceivesTheSumsInFp32BeforeAnyRounding) {
  check_epilogue<Slotted>();
  check_epilogue<Direct>();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET

#undef FixedShapeKernels
