// Captured steps, on every target: replayed without anything in between, each replay reads its inputs anew.
#include "ep/step_runner.hpp"
#include "switchyard/world.hpp"

namespace switchyard {
namespace {

using namespace testing_support;

const Shape kShape{.n_ranks = 3, .n_experts = 6, .top_k = 3, .hidden = 64, .tokens_per_rank = {5, 5, 5}};
constexpr StepMode kModes[] = {StepMode::kSplit, StepMode::kFused};

// Captures the step in both ways and replays each with inputs that change.
void replay_with_new_inputs(StepRunner& runner) {
  for (const StepMode mode : kModes) {
    const std::unique_ptr<Graph> graph =
        must(runner.world->capture([&] { return runner.enqueue_step(mode); }));
    for (uint64_t replay = 0; replay < 5 && !testing::Test::HasFatalFailure(); ++replay) {
      const reference::Step step = make_step(kShape, 300 + replay);
      runner.upload(step);
      ASSERT_TRUE(graph->launch().ok());
      const Status status = runner.ep->synchronize();
      ASSERT_TRUE(status.ok()) << status.to_string();
      runner.check(step);
    }
  }
}

class GraphReplay : public testing::TestWithParam<std::tuple<TargetChoice, Protocol>> {
 protected:
  void SetUp() override { SWITCHYARD_SKIP_IF_ABSENT(std::get<0>(GetParam())); }
};

INSTANTIATE_TEST_SUITE_P(Targets, GraphReplay,
                         testing::Combine(testing_support::all_targets(), testing_support::both_protocols()),
                         [](const auto& info) {
                           return testing_support::target_name(std::get<0>(info.param)) +
                                  testing_support::protocol_name(std::get<1>(info.param));
                         });

TEST_P(GraphReplay, EveryReplayReadsItsInputsAnew) {
  StepRunner runner(kShape, GetParam());
  replay_with_new_inputs(runner);
}

// A graph is traced if its launches were when they were captured.
TEST_P(GraphReplay, EveryReplayOfATracedStepIsTraced) {
  StepRunner runner(kShape, GetParam());
  runner.upload(make_step(kShape, 6));
  const auto capture = [&] {
    return must(runner.world->capture([&] { return runner.enqueue_step(StepMode::kFused); }));
  };
  const std::unique_ptr<Graph> untraced = capture();
  ASSERT_TRUE(runner.ep->enable_trace(1024).ok());
  const std::unique_ptr<Graph> traced = capture();
  for (Graph* graph : {untraced.get(), traced.get(), traced.get()}) ASSERT_TRUE(graph->launch().ok());
  ASSERT_TRUE(runner.ep->synchronize().ok());
  for (const RankTrace& rank : must(runner.ep->take_trace()))
    for (const BlockTrace& block : rank.blocks)
      EXPECT_EQ(std::count_if(block.events.begin(), block.events.end(),
                              [](const TraceEvent& event) { return event.name == TraceName::kReduce; }),
                2);
}

TEST_P(GraphReplay, NothingRunsWhileItIsCaptured) {
  StepRunner runner(kShape, GetParam());
  const reference::Step step = make_step(kShape, 7);
  runner.upload(step);
  const std::unique_ptr<Graph> graph =
      must(runner.world->capture([&] { return runner.enqueue_step(StepMode::kFused); }));
  // A step without the graph, of other inputs, finds everything as it was.
  const reference::Step other = make_step(kShape, 8);
  runner.upload(other);
  ASSERT_TRUE(runner.enqueue_step(StepMode::kSplit).ok());
  ASSERT_TRUE(runner.ep->synchronize().ok());
  runner.check(other);
}

TEST_P(GraphReplay, ReplaysNeedNothingBetweenThem) {
  StepRunner runner(kShape, GetParam());
  const reference::Step step = make_step(kShape, 9);
  for (const StepMode mode : kModes) {
    runner.upload(step);
    const std::unique_ptr<Graph> graph =
        must(runner.world->capture([&] { return runner.enqueue_step(mode); }));
    for (int replay = 0; replay < 4; ++replay) ASSERT_TRUE(graph->launch().ok());
    ASSERT_TRUE(graph->synchronize().ok());
    ASSERT_TRUE(runner.ep->synchronize().ok());
    runner.check(step);
  }
}

TEST_P(GraphReplay, MarksGiveTheTimesOfPhases) {
  StepRunner runner(kShape, GetParam());
  const reference::Step step = make_step(kShape, 10);
  runner.upload(step);
  const std::unique_ptr<Graph> graph = must(runner.world->capture([&] {
    SWITCHYARD_RETURN_IF_ERROR(runner.world->mark("first"));
    SWITCHYARD_RETURN_IF_ERROR(runner.enqueue_step(StepMode::kSplit));
    SWITCHYARD_RETURN_IF_ERROR(runner.world->mark("second"));
    return runner.enqueue_step(StepMode::kFused);
  }));
  EXPECT_EQ(graph->elapsed().status().code(), StatusCode::kFailedPrecondition) << "before the first launch";
  for (int replay = 0; replay < 2; ++replay) {
    ASSERT_TRUE(graph->launch().ok());
    ASSERT_TRUE(graph->synchronize().ok());
    const std::vector<GraphSpan> spans = must(graph->elapsed());
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(spans[0].name, "first");
    EXPECT_EQ(spans[1].name, "second");
    for (const GraphSpan& span : spans) EXPECT_GT(span.microseconds, 0) << span.name;
  }
  ASSERT_TRUE(runner.ep->synchronize().ok());
  runner.check(step);
}

TEST_P(GraphReplay, AFailingEnqueueEndsTheCaptureWithItsError) {
  StepRunner runner(kShape, GetParam());
  const auto failed = runner.world->capture([&] {
    SWITCHYARD_RETURN_IF_ERROR(runner.ep->dispatch_async(0, runner.dispatch_input(0)));
    return invalid_argument("had enough");
  });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().message(), "had enough");
  // What was recorded is gone; the world goes on.
  ASSERT_TRUE(runner.world->synchronize().ok());
  ASSERT_TRUE(runner.ep->reset().ok());
  replay_with_new_inputs(runner);
}

TEST_P(GraphReplay, WaitingInsideACaptureIsAnErrorWithAName) {
  StepRunner runner(kShape, GetParam());
  for (const auto& wait : std::vector<std::function<Status()>>{
           [&] { return runner.world->synchronize(); }, [&] { return runner.ep->synchronize(); },
           [&] { return runner.ep->synchronize(1); }, [&] { return runner.world->rank(2).synchronize(); },
           [&] {
             return runner.world->rank(1).upload(std::vector<int>{1, 2, 3}).status();
           }}) {
    const auto failed = runner.world->capture([&] {
      SWITCHYARD_RETURN_IF_ERROR(runner.enqueue_step(StepMode::kFused));
      return wait();
    });
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.status().code(), StatusCode::kFailedPrecondition) << failed.status().to_string();
    EXPECT_NE(failed.status().message().find("record"), std::string::npos) << failed.status().to_string();
  }
  replay_with_new_inputs(runner);
}

TEST_P(GraphReplay, CallsInTheWrongPlaceAreErrors) {
  const auto world = must(World::create({.target = std::get<0>(GetParam()), .n_ranks = 2}));
  EXPECT_EQ(world->mark("lost").code(), StatusCode::kFailedPrecondition);
  const auto nested = world->capture([&] { return world->capture([] { return Status(); }).status(); });
  EXPECT_EQ(nested.status().code(), StatusCode::kFailedPrecondition);
}

TEST_P(GraphReplay, NothingCanBeCapturedToo) {
  const auto world = must(World::create({.target = std::get<0>(GetParam()), .n_ranks = 2}));
  const std::unique_ptr<Graph> graph = must(world->capture([] { return Status(); }));
  EXPECT_TRUE(graph->launch().ok());
  EXPECT_TRUE(graph->launch().ok());
  EXPECT_TRUE(graph->synchronize().ok());
  EXPECT_TRUE(must(graph->elapsed()).empty());
}

TEST(GraphSimulated, ReplaysInAnyOrderTheSeedDraws) {
  for (uint64_t seed = 0; seed < 2 && !testing::Test::HasFatalFailure(); ++seed) {
    StepRunner runner(kShape, {TargetChoice::kHost, seed % 2 == 0 ? Protocol::kSlotted : Protocol::kDirect},
                      {.mode = EmulatorMode::kSimulated, .seed = seed});
    replay_with_new_inputs(runner);
  }
}

}  // namespace
}  // namespace switchyard
