// The caller's own CUDA streams, kernels, copies and captures around steps: nothing here goes through
// World::capture().
#include <cuda_runtime.h>

#include "ep/step_runner.hpp"
#include "switchyard/attention.hpp"
#include "switchyard/grouped_matmul.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

const Shape kShape{.n_ranks = 2, .n_experts = 8, .top_k = 4, .hidden = 256, .tokens_per_rank = {16, 16}};
constexpr int kNumReplays = 1000;

#define ASSERT_CUDA(call)                                         \
  do {                                                            \
    const cudaError_t error_ = (call);                            \
    ASSERT_EQ(error_, cudaSuccess) << cudaGetErrorString(error_); \
  } while (false)

// A kernel of the caller's: doubles what it finds. It takes its time, so that a missing order shows.
__global__ void double_values(bf16* values, int num_values) {
  const long long begin = clock64();
  while (clock64() - begin < 2'000'000) {
  }
  for (int i = threadIdx.x; i < num_values; i += blockDim.x) values[i] = to_bf16(2 * to_float(values[i]));
}

// Two streams that fork from the first and join it again, as one capture needs them.
class CallersStreams {
 public:
  CallersStreams() {
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
      EXPECT_EQ(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming), cudaSuccess);
    }
  }
  ~CallersStreams() {
    for (int i = 0; i < 2; ++i) {
      (void)cudaStreamSynchronize(streams[i]);
      (void)cudaStreamDestroy(streams[i]);
      (void)cudaEventDestroy(events[i]);
    }
  }
  void fork() {
    EXPECT_EQ(cudaEventRecord(events[0], streams[0]), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(streams[1], events[0], 0), cudaSuccess);
  }
  void join() {
    EXPECT_EQ(cudaEventRecord(events[1], streams[1]), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(streams[0], events[1], 0), cudaSuccess);
  }

  cudaStream_t streams[2] = {};
  cudaEvent_t events[2] = {};
};

class CallersCapture : public testing::TestWithParam<std::tuple<Protocol, StepMode, bool>> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(TargetChoice::kCuda); }
};

INSTANTIATE_TEST_SUITE_P(Steps, CallersCapture,
                         testing::Combine(both_protocols(),
                                          testing::Values(StepMode::kSplit, StepMode::kFused),
                                          testing::Bool()),
                         [](const auto& info) {
                           return protocol_name(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) == StepMode::kFused ? "Fused" : "Split") +
                                  (std::get<2>(info.param) ? "Dependent" : "");
                         });

// In global mode CUDA refuses whatever could wait or allocate, in any thread.
TEST_P(CallersCapture, AThousandReplaysGiveTheSameBits) {
  const auto [protocol, mode, dependent] = GetParam();
  StepRunner runner(kShape, {TargetChoice::kCuda, protocol}, StepRunner::Launch{.dependent = dependent});
  CallersStreams callers;
  runner.streams = {Stream(callers.streams[0]), Stream(callers.streams[1])};
  const reference::Step step = make_step(kShape, 60);
  runner.upload(step);
  int device = -1;
  ASSERT_CUDA(cudaGetDevice(&device));
  ASSERT_CUDA(cudaStreamBeginCapture(callers.streams[0], cudaStreamCaptureModeGlobal));
  callers.fork();
  const Status enqueued = runner.enqueue_step(mode);
  callers.join();
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(callers.streams[0], &graph));
  ASSERT_TRUE(enqueued.ok()) << enqueued.to_string();
  int device_after = -1;
  ASSERT_CUDA(cudaGetDevice(&device_after));
  EXPECT_EQ(device_after, device);
  cudaGraphExec_t executable = nullptr;
  ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));

  for (int replay = 0; replay < kNumReplays; ++replay) {
    ASSERT_CUDA(cudaGraphLaunch(executable, callers.streams[0]));
    if (replay % 100 != 0) continue;
    for (int rank = 0; rank < kShape.n_ranks; ++rank) {
      const Status polled = runner.ep->poll(rank);  // while they replay
      ASSERT_TRUE(polled.ok()) << polled.to_string();
    }
    ASSERT_CUDA(cudaStreamSynchronize(callers.streams[0]));
    runner.check(step);
    runner.upload(step);  // and poisons the outputs
  }
  const Status status = runner.ep->synchronize(0, runner.stream_of(0));
  ASSERT_TRUE(status.ok()) << status.to_string();
  runner.check(step);
  ASSERT_CUDA(cudaGraphExecDestroy(executable));
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

class CallersOrder : public testing::TestWithParam<Protocol> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(TargetChoice::kCuda); }
};

INSTANTIATE_TEST_SUITE_P(Protocols, CallersOrder, both_protocols(),
                         [](const auto& info) { return protocol_name(info.param); });

// A copy of the caller's, then a kernel of its own, then the step, then another kernel and a copy: on one
// stream per rank, and with no wait of the host in between.
TEST_P(CallersOrder, AStepComesBehindAndBeforeTheCallersOwnWork) {
  StepRunner runner(kShape, {TargetChoice::kCuda, GetParam()});
  CallersStreams callers;
  runner.streams = {Stream(callers.streams[0]), Stream(callers.streams[1])};
  const reference::Step step = make_step(kShape, 61);
  runner.upload(step);
  reference::Step doubled = step;
  const size_t num_values = step.tokens[0].size();
  bf16* outputs[2] = {};
  for (int rank = 0; rank < 2; ++rank) {
    for (bf16& value : doubled.tokens[rank]) value = to_bf16(2 * to_float(value));
    ASSERT_CUDA(cudaMallocHost(&outputs[rank], num_values * sizeof(bf16)));
    bf16* const tokens = runner.tokens_of(rank).data();
    ASSERT_CUDA(cudaMemsetAsync(tokens, 0, num_values * sizeof(bf16), callers.streams[rank]));
    ASSERT_CUDA(cudaMemcpyAsync(tokens, step.tokens[rank].data(), num_values * sizeof(bf16),
                                cudaMemcpyHostToDevice, callers.streams[rank]));
    double_values<<<1, 128, 0, callers.streams[rank]>>>(tokens, static_cast<int>(num_values));
    ASSERT_CUDA(cudaGetLastError());
  }
  const Status enqueued = runner.enqueue_step(StepMode::kFused);
  ASSERT_TRUE(enqueued.ok()) << enqueued.to_string();
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_CUDA(cudaMemcpyAsync(outputs[rank], runner.output_of(rank).data(), num_values * sizeof(bf16),
                                cudaMemcpyDeviceToHost, callers.streams[rank]));
    double_values<<<1, 128, 0, callers.streams[rank]>>>(runner.output_of(rank).data(),
                                                        static_cast<int>(num_values));
    ASSERT_CUDA(cudaGetLastError());
  }
  for (int rank = 0; rank < 2; ++rank) {
    const Status status = runner.ep->synchronize(rank, runner.stream_of(rank));
    ASSERT_TRUE(status.ok()) << status.to_string();
    std::vector<bf16> expected = reference::combine_weighted(doubled, rank, &same_row, nullptr);
    EXPECT_EQ(std::vector<bf16>(outputs[rank], outputs[rank] + num_values), expected) << "rank " << rank;
    for (bf16& value : expected) value = to_bf16(2 * to_float(value));
    EXPECT_EQ(must(runner.output_of(rank).download()), expected) << "rank " << rank;
    ASSERT_CUDA(cudaFreeHost(outputs[rank]));
  }
}

TEST(CallersNullStream, ARankMayUseIt) {
  SWITCHYARD_SKIP_IF_ABSENT(TargetChoice::kCuda);
  const Shape alone{.n_ranks = 1, .n_experts = 4, .top_k = 2, .hidden = 64, .tokens_per_rank = {5}};
  StepRunner runner(alone, {TargetChoice::kCuda, Protocol::kDirect});
  runner.streams = {Stream(nullptr)};
  const reference::Step step = make_step(alone, 62);
  runner.upload(step);
  ASSERT_TRUE(runner.enqueue_step(StepMode::kFused).ok());
  const Status status = runner.ep->synchronize(0, Stream(nullptr));
  ASSERT_TRUE(status.ok()) << status.to_string();
  runner.check(step);
}

// A replay that breaks is found without a wait, and the graph works again after reset().
TEST(CallersFault, ABrokenReplayIsFoundByPoll) {
  SWITCHYARD_SKIP_IF_ABSENT(TargetChoice::kCuda);
  SWITCHYARD_SKIP_IF_UNCHECKED();
  StepRunner runner(kShape, {TargetChoice::kCuda, Protocol::kDirect});
  CallersStreams callers;
  runner.streams = {Stream(callers.streams[0]), Stream(callers.streams[1])};
  const reference::Step step = make_step(kShape, 63);
  ASSERT_CUDA(cudaStreamBeginCapture(callers.streams[0], cudaStreamCaptureModeGlobal));
  callers.fork();
  const Status enqueued = runner.enqueue_step(StepMode::kFused);
  callers.join();
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(callers.streams[0], &graph));
  ASSERT_TRUE(enqueued.ok()) << enqueued.to_string();
  cudaGraphExec_t executable = nullptr;
  ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  reference::Step broken = step;
  broken.topk_ids[1][0] = 77;
  runner.upload(broken);
  for (int i = 0; i < 3; ++i) ASSERT_CUDA(cudaGraphLaunch(executable, callers.streams[0]));
  ASSERT_CUDA(cudaStreamSynchronize(callers.streams[0]));
  for (int rank = 0; rank < 2; ++rank) {
    const Status status = runner.ep->poll(rank);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find("77"), std::string::npos) << status.message();
  }
  ASSERT_TRUE(runner.ep->reset().ok());
  runner.upload(step);
  ASSERT_CUDA(cudaGraphLaunch(executable, callers.streams[0]));
  ASSERT_CUDA(cudaStreamSynchronize(callers.streams[0]));
  EXPECT_TRUE(runner.ep->poll(0).ok());
  runner.check(step);
  ASSERT_CUDA(cudaGraphExecDestroy(executable));
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

// Attention and matmul under the caller's capture, several times.
TEST(CallersCaptureOfKernels, AttentionAndMatmulReplay) {
  SWITCHYARD_SKIP_IF_ABSENT(TargetChoice::kCuda);
  const auto world = must(World::create({.target = TargetChoice::kCuda, .num_gpus = 1}));
  Rank& rank = world->rank(0);
  constexpr size_t kTokens = 64, kHeadDim = 64;
  std::vector<bf16> values;
  for (size_t i = 0; i < kTokens * kHeadDim; ++i)
    values.push_back(to_bf16(static_cast<float>(i % 11) / 8 - 0.5f));
  const auto input = must(rank.upload(values)), attended = must(rank.allocate<bf16>(values.size())),
             output = must(rank.allocate<bf16>(values.size()));
  const auto offsets = must(rank.upload(std::vector<uint32_t>{0, kTokens}));
  const auto attention = must(Attention::create(rank, {.head_dim = kHeadDim,
                                                       .max_query_len = kTokens,
                                                       .max_key_len = kTokens,
                                                       .num_query_rows = kTokens,
                                                       .num_key_rows = kTokens,
                                                       .causal = true}));
  const auto matmul =
      must(GroupedMatmul::create(rank, {.inner = kHeadDim, .columns = kHeadDim, .max_rows = kTokens}));
  const auto enqueue = [&](Stream stream) {
    SWITCHYARD_RETURN_IF_ERROR(
        attention->run({input.data(), input.data(), input.data(), attended.data()}, stream));
    return matmul->run({.rows = attended.data(),
                        .weights = input.data(),
                        .output = output.data(),
                        .row_offsets = offsets.data()},
                       stream);
  };
  ASSERT_TRUE(enqueue({}).ok());
  const std::vector<bf16> expected = must(output.download());
  CallersStreams callers;
  ASSERT_CUDA(cudaStreamBeginCapture(callers.streams[0], cudaStreamCaptureModeGlobal));
  const Status enqueued = enqueue(Stream(callers.streams[0]));
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(callers.streams[0], &graph));
  ASSERT_TRUE(enqueued.ok()) << enqueued.to_string();
  cudaGraphExec_t executable = nullptr;
  ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int replay = 0; replay < kNumReplays; ++replay) {
    if (replay % 100 == 0) {
      ASSERT_CUDA(cudaMemsetAsync(output.data(), 0xee, values.size() * sizeof(bf16), callers.streams[0]));
    }
    ASSERT_CUDA(cudaGraphLaunch(executable, callers.streams[0]));
    if (replay % 100 != 0) continue;
    ASSERT_CUDA(cudaStreamSynchronize(callers.streams[0]));
    ASSERT_EQ(must(output.download()), expected) << "replay " << replay;
  }
  ASSERT_CUDA(cudaStreamSynchronize(callers.streams[0]));
  EXPECT_EQ(must(output.download()), expected);
  ASSERT_CUDA(cudaGraphExecDestroy(executable));
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace switchyard
