// Draws sequences of calls from a seed, legal and not, and holds what comes back against a model of the
// contract and the plain-loop reference: whole steps, steps of two objects in one world side by side, calls
// out of order, bad ids, ranks that never come, buffers and objects dropped early, resets with all ranks and
// with fewer, graphs, a host thread per rank.
//
//   switchyard_api_fuzz [--seconds N | --seeds N] [--seed FIRST] [--target host|cuda]
//
// A seed that fails prints what it did and how to repeat it; the exit code is 1 then.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>

#include "reference/reference.hpp"
#include "switchyard/attention.hpp"
#include "switchyard/expert_parallel.hpp"
#include "switchyard/graph.hpp"

namespace switchyard {
namespace {

// What was done so far, and the end of it where something is not as it should be.
struct Log {
  std::string text;
  void add(const std::string& line) { text += "  " + line + "\n"; }
};

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }
void expect_ok(const Status& status, const std::string& call) {
  if (!status.ok()) fail(call + ": " + status.to_string());
}
void expect_code(const Status& status, StatusCode code, const std::string& call) {
  if (status.code() != code)
    fail(call + " should have been " + to_string(code) + ", but is " + status.to_string());
}
template <typename T>
T must(Result<T> result, const std::string& call) {
  expect_ok(result.status(), call);
  return std::move(result).value();
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int below(int limit) { return static_cast<int>(random_() % static_cast<uint64_t>(limit)); }
  bool one_in(int n) { return below(n) == 0; }
  template <typename T>
  const T& of(const std::vector<T>& values) {
    return values[static_cast<size_t>(below(static_cast<int>(values.size())))];
  }
  std::vector<int> order_of(int count) {
    std::vector<int> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    for (int i = count - 1; i > 0; --i)
      std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(below(i + 1))]);
    return order;
  }

 private:
  std::mt19937_64 random_;
};

enum class Call { kDispatchAsync, kDispatchWait, kDispatch, kCombineAsync, kCombineWait, kCombine };
constexpr const char* kCallNames[] = {"dispatch_async", "dispatch_wait", "dispatch",
                                      "combine_async",  "combine_wait",  "combine"};
enum class Stage { kIdle, kDispatchSent, kDispatched, kCombineSent };

// The contract in four lines: which call may come after which, and where it leads.
bool is_legal(Call call, Stage stage) {
  constexpr Stage kBefore[] = {Stage::kIdle,       Stage::kDispatchSent, Stage::kIdle,
                               Stage::kDispatched, Stage::kCombineSent,  Stage::kDispatched};
  return kBefore[static_cast<int>(call)] == stage;
}
Stage stage_after(Call call) {
  constexpr Stage kAfter[] = {Stage::kDispatchSent, Stage::kDispatched, Stage::kDispatched,
                              Stage::kCombineSent,  Stage::kIdle,       Stage::kIdle};
  return kAfter[static_cast<int>(call)];
}

// An ExpertParallel, the stage each rank's step is in, and the buffers of that step.
class Object {
 public:
  Object(World& world, Draw& draw, bool is_simulated, Log& log) : world_(world), draw_(draw), log_(log) {
    const bool is_host = world.target() == Target::kHost;
    config_.n_experts = world.n_ranks() * (1 + draw.below(3));
    config_.top_k = 1 + draw.below(4);
    config_.hidden = 8 * (1 + draw.below(12));
    config_.max_tokens_per_rank = 1 + draw.below(7);
    config_.n_sms = 1 + draw.below(3);
    config_.num_threads = is_host ? 32 * (1 + draw.below(2)) : 0;
    config_.timeout_ns = is_simulated ? 1'000'000'000 : is_host ? 60'000'000'000 : 10'000'000'000;
    config_.protocol = draw.one_in(2) ? Protocol::kSlotted : Protocol::kDirect;
    ep_ = must(ExpertParallel::create(world, config_), "create");
    ranks_.resize(static_cast<size_t>(world.n_ranks()));
    log.add("create " + std::string(to_string(config_.protocol)) + ", " + std::to_string(config_.n_experts) +
            " experts, top_k " + std::to_string(config_.top_k) + ", hidden " +
            std::to_string(config_.hidden) + ", n_sms " + std::to_string(config_.n_sms));
  }

  int n_ranks() const { return ep_->n_ranks(); }
  ExpertParallel& ep() { return *ep_; }
  bool is_failed() const { return is_failed_; }

  // New inputs for all ranks, some of them without tokens.
  void draw_step() {
    step_ = {n_ranks(), config_.n_experts, config_.top_k, config_.hidden, {}, {}, {}};
    for (int rank = 0; rank < n_ranks(); ++rank) {
      const int num_tokens = draw_.one_in(4) ? 0 : draw_.below(config_.max_tokens_per_rank + 1);
      std::vector<bf16> tokens(static_cast<size_t>(num_tokens * config_.hidden));
      for (bf16& value : tokens) value = to_bf16(static_cast<float>(draw_.below(2001)) / 500.0f - 2.0f);
      std::vector<int32_t> ids(static_cast<size_t>(num_tokens * config_.top_k));
      for (int32_t& id : ids) id = draw_.one_in(8) ? -1 : draw_.below(config_.n_experts);
      std::vector<float> weights(ids.size());
      for (float& weight : weights) weight = static_cast<float>(1 + draw_.below(1000)) / 1000.0f;
      step_.tokens.push_back(std::move(tokens));
      step_.topk_ids.push_back(std::move(ids));
      step_.topk_weights.push_back(std::move(weights));
    }
  }
  // One id that no expert has. False if no rank has a token.
  bool spoil_an_id() {
    for (const int rank : draw_.order_of(n_ranks())) {
      std::vector<int32_t>& ids = step_.topk_ids[static_cast<size_t>(rank)];
      if (ids.empty()) continue;
      ids[static_cast<size_t>(draw_.below(static_cast<int>(ids.size())))] =
          draw_.of<int32_t>({config_.n_experts, -2, INT32_MIN, INT32_MAX});
      return true;
    }
    return false;
  }

  void upload() {
    for (int r = 0; r < n_ranks(); ++r) {
      Rank& rank = world_.rank(world_rank(r));
      const size_t at = static_cast<size_t>(r);
      const size_t num_values = step_.tokens[at].size(), num_groups = static_cast<size_t>(ep_->num_groups());
      RankState& state = ranks_[at];
      state.rows = must(ep_->row_buffers(r), "row_buffers");
      state.tokens = must(rank.upload(step_.tokens[at]), "upload");
      state.topk_ids = must(rank.upload(step_.topk_ids[at]), "upload");
      state.weights = must(rank.upload(step_.topk_weights[at]), "upload");
      state.output = must(rank.allocate<bf16>(num_values), "allocate");
      state.row_offsets = must(rank.allocate<uint32_t>(num_groups + 1), "allocate");
      state.expert_ids = must(rank.allocate<int32_t>(num_groups), "allocate");
      expect_ok(state.output.fill_bytes(0xee), "fill_bytes");
    }
  }
  // As an early return does: what kernels still use goes when they have done with it.
  void drop_inputs() {
    for (RankState& state : ranks_) state.tokens = {};
  }

  Status call(int r, Call call) {
    RankState& state = ranks_[static_cast<size_t>(r)];
    const int num_tokens = step_.num_tokens(r);
    const DispatchInput input{state.tokens.data(), state.topk_ids.data(), num_tokens};
    const DispatchOutput rows{state.rows.rows, state.rows.src_info, state.rows.max_rows,
                              state.row_offsets.data(), state.expert_ids.data()};
    const CombineInput experts{state.rows.rows, state.rows.src_info};
    const CombineOutput output{
        state.topk_ids.data(), state.weights.data(), num_tokens, {.output = state.output.data()}};
    switch (call) {
      case Call::kDispatchAsync:
        return ep_->dispatch_async(r, input);
      case Call::kDispatchWait:
        return ep_->dispatch_wait(r, rows);
      case Call::kDispatch:
        return ep_->dispatch(r, input, rows);
      case Call::kCombineAsync:
        return ep_->combine_async(r, experts);
      case Call::kCombineWait:
        return ep_->combine_wait(r, output);
      case Call::kCombine:
        return ep_->combine(r, experts, output);
    }
    return Status();
  }
  void must_call(int r, Call which) {
    expect_ok(call(r, which), name_of(r, which));
    ranks_[static_cast<size_t>(r)].stage = stage_after(which);
  }
  // A call that must be refused, now and then; it must change nothing.
  void misuse() {
    const int r = draw_.below(n_ranks());
    const Call which = static_cast<Call>(draw_.below(6));
    if (!is_failed_ && is_legal(which, ranks_[static_cast<size_t>(r)].stage)) return;
    log_.add("misuse: " + name_of(r, which));
    expect_code(call(r, which), StatusCode::kFailedPrecondition, name_of(r, which));
    for (const int rank : {-1, n_ranks(), 1 << 20})
      expect_code(ep_->dispatch(rank, {}, {}), StatusCode::kInvalidArgument,
                  "dispatch of a rank out of range");
  }
  // The calls of one phase on the given ranks, in any order of ranks.
  void enqueue(Call which, const std::vector<int>& ranks) {
    for (const int r : ranks) {
      if (draw_.one_in(4)) misuse();
      must_call(r, which);
    }
  }
  std::vector<int> all_ranks() { return draw_.order_of(n_ranks()); }
  // The two halves of a step, each in one call or in two.
  std::vector<Call> draw_calls(bool is_dispatch) {
    if (draw_.one_in(2)) return {is_dispatch ? Call::kDispatch : Call::kCombine};
    if (is_dispatch) return {Call::kDispatchAsync, Call::kDispatchWait};
    return {Call::kCombineAsync, Call::kCombineWait};
  }

  void check_step() {
    if (draw_.one_in(2)) {
      expect_ok(ep_->synchronize(), "synchronize");
    } else {
      for (const int r : all_ranks()) expect_ok(ep_->synchronize(r), "synchronize(rank)");
    }
    for (int r = 0; r < n_ranks(); ++r) check_rank(r);
  }
  void check_rank(int r) {
    RankState& state = ranks_[static_cast<size_t>(r)];
    Rank& rank = world_.rank(world_rank(r));
    reference::DispatchResult result;
    result.row_offsets = must(state.row_offsets.download(), "download");
    result.expert_ids = must(state.expert_ids.download(), "download");
    const size_t num_rows = result.row_offsets.back();
    if (num_rows > state.rows.max_rows) fail("row_offsets say " + std::to_string(num_rows) + " rows");
    result.src_info = must(rank.view(state.rows.src_info, 2 * num_rows).download(), "download");
    result.rows = must(rank.view(state.rows.rows, num_rows * static_cast<size_t>(config_.hidden)).download(),
                       "download");
    if (const std::string wrong = reference::check_dispatch(step_, r, result); !wrong.empty())
      fail("dispatch of rank " + std::to_string(r) + ": " + wrong);
    const std::vector<bf16> expected =
        reference::combine_weighted(step_, r, &reference::identity_expert, nullptr);
    if (must(state.output.download(), "download") != expected)
      fail("combine of rank " + std::to_string(r) + " is not what the reference says");
  }

  void expect_failure(StatusCode code, const std::string& part) {
    const Status status = ep_->synchronize();
    expect_code(status, code, "synchronize");
    if (status.message().find(part) == std::string::npos)
      fail("the error does not say \"" + part + "\": " + status.to_string());
    is_failed_ = true;
    for (int i = draw_.below(3); i > 0; --i) misuse();
  }

  void reset() {
    // Fewer ranks, where the experts still divide among them.
    std::vector<int> counts;
    for (int count = 1; count < n_ranks(); ++count)
      if (config_.n_experts % count == 0) counts.push_back(count);
    if (!counts.empty() && draw_.one_in(2)) {
      std::vector<int> survivors = all_ranks();
      survivors.resize(static_cast<size_t>(draw_.of(counts)));
      std::sort(survivors.begin(), survivors.end());
      log_.add("reset with " + std::to_string(survivors.size()) + " ranks");
      expect_ok(ep_->reset(survivors), "reset(survivors)");
      std::vector<int> members;
      for (const int survivor : survivors) members.push_back(world_rank(survivor));
      members_ = std::move(members);
      ranks_.clear();
      ranks_.resize(survivors.size());
    } else {
      log_.add("reset");
      expect_ok(ep_->reset(), "reset");
    }
    for (RankState& state : ranks_) state.stage = Stage::kIdle;
    is_failed_ = false;
  }

 private:
  struct RankState {
    Stage stage = Stage::kIdle;
    RowBuffers rows{};
    Buffer<bf16> tokens, output;
    Buffer<int32_t> topk_ids, expert_ids;
    Buffer<float> weights;
    Buffer<uint32_t> row_offsets;
  };
  int world_rank(int r) const { return members_.empty() ? r : members_[static_cast<size_t>(r)]; }
  static std::string name_of(int r, Call which) {
    return std::string(kCallNames[static_cast<int>(which)]) + "(rank " + std::to_string(r) + ")";
  }

  World& world_;
  Draw& draw_;
  Log& log_;
  ExpertParallelConfig config_;
  std::unique_ptr<ExpertParallel> ep_;
  std::vector<int> members_;  // after a reset with fewer ranks; empty: all of the world's
  std::vector<RankState> ranks_;
  reference::Step step_;
  bool is_failed_ = false;
};

// An attention that comes in between.
class SideWork {
 public:
  explicit SideWork(Rank& rank) {
    attention_ = must(
        Attention::create(
            rank,
            {.head_dim = 64, .max_query_len = 8, .max_key_len = 8, .num_query_rows = 8, .num_key_rows = 8}),
        "Attention::create");
    input_ = must(rank.upload(std::vector<bf16>(8 * 64, to_bf16(0.5f))), "upload");
    output_ = must(rank.allocate<bf16>(8 * 64), "allocate");
  }
  void enqueue() {
    expect_ok(attention_->run({.queries = input_.data(),
                               .keys = input_.data(),
                               .values = input_.data(),
                               .output = output_.data()}),
              "Attention::run");
    is_launched_ = true;
  }
  void check() {
    if (!is_launched_) return;
    for (const bf16 value : must(output_.download(), "download"))
      if (to_float(value) != 0.5f) fail("attention of equal values gave another one");
  }

 private:
  std::unique_ptr<Attention> attention_;
  Buffer<bf16> input_, output_;
  bool is_launched_ = false;
};

class Session {
 public:
  Session(uint64_t seed, TargetChoice target, Log& log) : draw_(seed), log_(log) {
    const bool is_host = target == TargetChoice::kHost;
    is_simulated_ = is_host && !draw_.one_in(3);
    HostDeviceOptions host{.mode = is_simulated_ ? EmulatorMode::kSimulated : EmulatorMode::kFast,
                           .seed = seed,
                           .weak = draw_.one_in(2)};
    const int n_ranks = 1 + draw_.below(4);
    log.add("world of " + std::to_string(n_ranks) + (is_simulated_ ? " simulated" : "") + " ranks");
    world_ = must(World::create({.target = target, .n_ranks = n_ranks, .host = host}), "World::create");
  }

  void run() {
    const int num_objects = 1 + draw_.below(2);
    for (int i = 0; i < num_objects; ++i)
      objects_.push_back(std::make_unique<Object>(*world_, draw_, is_simulated_, log_));
    for (int r = 0; r < world_->n_ranks() && draw_.one_in(2); ++r) side_work_.emplace_back(world_->rank(r));
    for (int i = 2 + draw_.below(4); i > 0; --i) act();
    for (SideWork& work : side_work_) work.check();
    // In any order: the objects, or what they left.
    if (draw_.one_in(2)) side_work_.clear();
    if (draw_.one_in(2)) objects_.clear();
  }

 private:
  void act() {
    Object& object = *draw_.of(pointers());
    switch (draw_.below(8)) {
      case 0:
        return bad_id(object);
      case 1:
        return missing_rank(object);
      case 2:
        return side_by_side();
      case 3:
        return replay(object);
      case 4:
        return threads(object);
      case 5:
        log_.add("a step left half-way");
        object.draw_step();
        object.upload();
        object.enqueue(Call::kDispatch, object.all_ranks());
        if (draw_.one_in(2)) object.drop_inputs();
        return object.reset();
      default:
        return steps({&object});
    }
  }
  std::vector<Object*> pointers() const {
    std::vector<Object*> result;
    for (const auto& object : objects_) result.push_back(object.get());
    return result;
  }

  // Whole steps of some objects, half by half.
  void steps(const std::vector<Object*>& objects) {
    log_.add(std::to_string(objects.size()) + " step(s)");
    for (Object* object : objects) object->draw_step(), object->upload();
    for (const bool is_dispatch : {true, false})
      for (Object* object : objects) {
        for (const Call call : object->draw_calls(is_dispatch)) object->enqueue(call, object->all_ranks());
        for (SideWork& work : side_work_)
          if (draw_.one_in(3)) work.enqueue();
      }
    if (draw_.one_in(3)) objects.front()->drop_inputs();
    for (Object* object : objects) object->check_step();
  }
  void side_by_side() { steps(pointers()); }

  void bad_id(Object& object) {
    object.draw_step();
    if (!object.spoil_an_id()) return;
    log_.add("a bad id");
    object.upload();
    object.enqueue(Call::kDispatch, object.all_ranks());
    object.expect_failure(StatusCode::kInvalidArgument, "topk_ids of rank");
    object.reset();
    steps({&object});
  }

  // Time is virtual only in the simulation: elsewhere it would take a deadline.
  void missing_rank(Object& object) {
    if (!is_simulated_ || object.n_ranks() < 2) return;
    const int missing = draw_.below(object.n_ranks());
    log_.add("rank " + std::to_string(missing) + " never comes");
    object.draw_step();
    object.upload();
    std::vector<int> others;
    for (const int r : object.all_ranks())
      if (r != missing) others.push_back(r);
    for (const Call call : object.draw_calls(true)) object.enqueue(call, others);
    object.expect_failure(StatusCode::kDeadlineExceeded, "for rank " + std::to_string(missing));
    object.reset();
    steps({&object});
  }

  void replay(Object& object) {
    if (object.n_ranks() != world_->n_ranks()) return;
    log_.add("a graph");
    object.draw_step();
    object.upload();
    std::unique_ptr<Graph> graph = must(world_->capture([&] {
      for (const bool is_dispatch : {true, false})
        for (const Call call : object.draw_calls(is_dispatch)) object.enqueue(call, object.all_ranks());
      return Status();
    }),
                                        "capture");
    for (int i = 1 + draw_.below(3); i > 0; --i) expect_ok(graph->launch(), "Graph::launch");
    if (draw_.one_in(2)) graph.reset();
    object.check_step();
  }

  // Every rank has a host thread of its own, which calls for it alone.
  void threads(Object& object) {
    if (is_simulated_) return;
    log_.add("a thread per rank");
    object.draw_step();
    object.upload();
    std::vector<std::thread> threads;
    std::vector<Status> statuses(static_cast<size_t>(object.n_ranks()));
    for (int r = 0; r < object.n_ranks(); ++r)
      threads.emplace_back([&object, &status = statuses[static_cast<size_t>(r)], r] {
        for (int i = 0; i < 3 && status.ok(); ++i) {
          status = object.call(r, Call::kDispatch);
          if (status.ok()) status = object.call(r, Call::kCombine);
          if (status.ok() && i == 1) status = object.ep().synchronize(r);
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : statuses) expect_ok(status, "a step of a rank's own thread");
    object.check_step();
  }

  Draw draw_;
  Log& log_;
  bool is_simulated_ = false;
  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<SideWork> side_work_;
};

int run(int argc, char** argv) {
  uint64_t seed = 0;
  int64_t num_seeds = INT64_MAX;
  double seconds = 1e9;
  const char* target_name = "host";
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seed") == 0)
      seed = std::strtoull(argv[i + 1], nullptr, 10);
    else if (std::strcmp(argv[i], "--seeds") == 0)
      num_seeds = std::atoll(argv[i + 1]);
    else if (std::strcmp(argv[i], "--seconds") == 0)
      seconds = std::atof(argv[i + 1]);
    else if (std::strcmp(argv[i], "--target") == 0)
      target_name = argv[i + 1];
    else
      return std::fprintf(stderr, "unknown option %s\n", argv[i]), 2;
  }
  const TargetChoice target =
      std::strcmp(target_name, "cuda") == 0 ? TargetChoice::kCuda : TargetChoice::kHost;
  const auto begin = std::chrono::steady_clock::now();
  int64_t num_run = 0;
  for (; num_run < num_seeds; ++num_run, ++seed) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > seconds) break;
    Log log;
    try {
      Session(seed, target, log).run();
    } catch (const std::exception& error) {
      std::printf("seed %llu: %s\n%srepeat: %s --target %s --seed %llu --seeds 1\n",
                  static_cast<unsigned long long>(seed), error.what(), log.text.c_str(), argv[0], target_name,
                  static_cast<unsigned long long>(seed));
      return 1;
    }
  }
  std::printf("%lld sequences of calls, all as they should be\n", static_cast<long long>(num_run));
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  // A hardware queue for every stream: a thread may enqueue a rank's whole step before another rank's first
  // launch.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  return switchyard::run(argc, argv);
}
