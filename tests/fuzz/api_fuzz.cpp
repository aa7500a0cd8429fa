// Draws sequences of calls from a seed, legal and not, and holds what comes back against a model of the
// contract and the plain-loop reference: whole steps, steps of two objects in one world side by side, calls
// out of order, bad ids, ranks that never come, buffers and objects dropped early, resets with all ranks and
// with fewer, graphs, a host thread per rank.
//
//   switchyard_api_fuzz [--seconds N | --seeds N] [--seed FIRST] [--target host|cuda]
//
// A seed that fails prints what it did and how to repeat it; the exit code is 1 then.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "api_object.hpp"
#include "switchyard/attention.hpp"
#include "switchyard/world.hpp"

namespace switchyard::api_fuzz {
namespace {

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
}  // namespace switchyard::api_fuzz

int main(int argc, char** argv) {
  // A hardware queue for every stream: a thread may enqueue a rank's whole step before another rank's first
  // launch.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  return switchyard::api_fuzz::run(argc, argv);
}
