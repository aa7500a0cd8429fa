// What kernels leave in a trace buffer, in kernels that are compiled for the host and, through trace_test.cu,
// for CUDA. What the expert-parallel kernels leave there is in ep_trace_test.cpp.
#include <gtest/gtest.h>

#include <set>

#include "switchyard/detail/runtime/trace_recorder.hpp"
#include "switchyard/detail/sync/wait.hpp"
#include "target/target_fixture.hpp"

#define TraceBuffers SWITCHYARD_SUITE(TraceBuffers)

namespace switchyard {
namespace {

using testing_support::must;

class TraceBuffers : public testing_support::OneRankTest {};

INSTANTIATE_TEST_SUITE_P(Modes, TraceBuffers, testing_support::modes_of_target(), testing_support::mode_name);

SWITCHYARD_KERNEL void record_thread_idx(TraceBuffer trace) {
  const uint64_t thread_idx = static_cast<uint64_t>(target::thread_idx());
  record(trace,
         {thread_idx, thread_idx + 1, TraceName::kSend, Phase::kDispatchAsync, target::block_idx(), -1});
}

TEST_P(TraceBuffers, EventsThatDoNotFitAreCountedAndTheOthersAreWhole) {
  TraceRecorder recorder = must(TraceRecorder::create(rank(), 3, 40));
  run(record_thread_idx, {.num_blocks = 2, .num_threads = 64}, recorder.buffer());
  const RankTrace trace = must(recorder.take());
  ASSERT_EQ(trace.blocks.size(), 3u);
  for (int block_idx = 0; block_idx < 2; ++block_idx) {
    const BlockTrace& block = trace.blocks[static_cast<size_t>(block_idx)];
    EXPECT_EQ(block.num_dropped, 24u);
    ASSERT_EQ(block.events.size(), 40u);
    std::set<uint64_t> threads;
    for (const TraceEvent& event : block.events) {
      threads.insert(event.begin_ns);
      EXPECT_EQ(event.end_ns, event.begin_ns + 1);
      EXPECT_EQ(event.late_rank, block_idx);
    }
    EXPECT_EQ(threads.size(), 40u);
    EXPECT_LT(*threads.rbegin(), 64u);
  }
  EXPECT_TRUE(trace.blocks[2].events.empty()) << "it was not launched";

  run(record_thread_idx, {.num_blocks = 1, .num_threads = 32}, recorder.buffer());
  const RankTrace next = must(recorder.take());
  EXPECT_EQ(next.blocks[0].events.size(), 32u);
  EXPECT_EQ(next.blocks[0].num_dropped, 0u);
  EXPECT_TRUE(next.blocks[1].events.empty());
}

SWITCHYARD_KERNEL void two_slices(TraceBuffer trace) {
  const TraceSlice outer(trace, Phase::kDispatchAsync, TraceName::kWatch);
  target::sync_block();
  const TraceSlice inner(trace, Phase::kDispatchAsync, TraceName::kCountMessages);
  target::sync_block();
}

TEST_P(TraceBuffers, ASliceIsThreadZerosAndNests) {
  TraceRecorder recorder = must(TraceRecorder::create(rank(), 2, 8));
  run(two_slices, {.num_blocks = 2, .num_threads = 64}, recorder.buffer());
  for (const BlockTrace& block : must(recorder.take()).blocks) {
    ASSERT_EQ(block.events.size(), 2u);
    const auto& [outer, inner] = std::pair(block.events[0], block.events[1]);
    EXPECT_EQ(inner.name, TraceName::kCountMessages);
    EXPECT_EQ(outer.name, TraceName::kWatch);
    EXPECT_LE(outer.begin_ns, inner.begin_ns);
    EXPECT_LE(inner.begin_ns, inner.end_ns);
    EXPECT_LE(inner.end_ns, outer.end_ns);
  }

  TraceRecorder small = must(TraceRecorder::create(rank(), 1, 2));  // the ends find no room
  run(two_slices, {.num_threads = 64}, small.buffer());
  const BlockTrace cut = must(small.take()).blocks[0];
  EXPECT_EQ(cut.num_dropped, 2u);
  ASSERT_EQ(cut.events.size(), 2u);
  for (const TraceEvent& event : cut.events) EXPECT_EQ(event.end_ns, cut.events[1].begin_ns);

  run(two_slices, {.num_threads = 64}, TraceBuffer{});  // not traced: nothing to write to
  EXPECT_TRUE(must(recorder.take()).blocks[0].events.empty());
}

struct WaitParams {
  WaitContext context;
  uint32_t* word;
};

// Of something that is there, and of something that never comes.
SWITCHYARD_KERNEL void wait_twice(WaitParams params) {
  if (target::thread_idx() != 0) return;
  uint32_t seen = 0;
  for (const uint32_t wanted : {0u, 1u})
    wait_for(
        params.context, {Phase::kCombineWait, 5, 7, wanted}, seen,
        [&] { return target::ld_acquire_system(params.word); },
        [&](uint32_t value) { return value == wanted; });
}

TEST_P(TraceBuffers, OnlyAWaitThatWaitedIsTracedAndSaysForWhom) {
  const Buffer<uint32_t> word = zeros<uint32_t>(1);
  const Buffer<uint64_t> poison = zeros<uint64_t>(1);
  const Buffer<uint64_t*> poison_of_rank = must(rank().upload(std::vector<uint64_t*>{poison.data()}));
  const Buffer<FaultRecord> fault = zeros<FaultRecord>(1);
  TraceRecorder recorder = must(TraceRecorder::create(rank(), 1, 8));
  WaitContext context{};
  context.record = fault.data();
  context.my_poison = poison.data();
  context.poison_of_rank = poison_of_rank.data();
  context.n_ranks = 1;
  context.first_rank = 20;
  context.first_expert = 100;
  context.timeout_ns = 2'000'000;
  context.trace = recorder.buffer();
  run(wait_twice, {}, WaitParams{context, word.data()});
  const RankTrace trace = must(recorder.take());
  ASSERT_EQ(trace.blocks[0].events.size(), 1u);
  const TraceEvent& wait = trace.blocks[0].events[0];
  EXPECT_EQ(wait.name, TraceName::kTimedOutWait);
  EXPECT_EQ(wait.phase, Phase::kCombineWait);
  EXPECT_EQ(wait.late_rank, 25) << "by its number in the world";
  EXPECT_EQ(wait.expert, 107);
  EXPECT_GE(wait.end_ns - wait.begin_ns, context.timeout_ns / 2);
  const FaultRecord record = must(fault.download()).front();
  EXPECT_EQ(record.late_rank, 25);
  EXPECT_EQ(record.expert, 107);
}

}  // namespace
}  // namespace switchyard
