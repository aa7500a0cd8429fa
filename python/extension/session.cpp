#include "session.hpp"

#include <iterator>
#include <set>
#include <utility>

namespace switchyard::python {
namespace {

// Guarded by the GIL, and never freed.
std::set<Session*>& live_sessions() {
  static auto* sessions = new std::set<Session*>();
  return *sessions;
}

}  // namespace

World& WorldCore::use(const char* call) const {
  need(process.check(call));
  if (is_closed) raise(failed_precondition("%s: the world has been closed", call));
  return *world;
}

int WorldCore::gpu_of(int world_rank) const {
  if (first_gpu < 0) return -1;
  return num_gpus == 0 ? first_gpu : first_gpu + world_rank * num_gpus / world->n_ranks();
}

Session::Session(std::shared_ptr<WorldCore> core) : core_(std::move(core)) { live_sessions().insert(this); }

// Kernels may still read what is kept.
Session::~Session() {
  live_sessions().erase(this);
  if (core_->process.is_of_parent()) {
    new KeptByRank(std::move(kept_));
    return;
  }
  if (kept_.empty()) return;
  WithoutGil no_gil;
  (void)core_->world->synchronize();
}

Rank& Session::rank(const char* call, int world_rank) const {
  const World& world = use(call);
  if (world_rank < 0 || world_rank >= world.n_ranks())
    raise(invalid_argument("%s: rank is %d; it must be 0..%d", call, world_rank, world.n_ranks() - 1));
  if (!world.is_local(world_rank))
    raise(invalid_argument("%s: rank is %d; it lives in another process", call, world_rank));
  return world.rank(world_rank);
}

void Session::keep(int world_rank, std::vector<nb::object> objects) {
  std::vector<nb::object>& kept = captured_ != nullptr ? *captured_ : kept_[world_rank];
  for (nb::object& object : objects) kept.push_back(std::move(object));
}

Status Session::wait(std::function<Status(CallerThread&)> work,
                     const std::function<void()>& on_interrupt) const {
  if (!core_->is_simulated) return wait_for(std::move(work), on_interrupt);
  class NoCallbacks : public CallerThread {
    bool run(const std::function<void()>&) override { return false; }
  } caller;
  WithoutGil no_gil;
  return work(caller);
}

Status Session::wait_for_streams(std::optional<int> world_rank, std::function<Status(CallerThread&)> work,
                                 const std::function<void()>& on_interrupt) {
  KeptByRank taken;
  if (!world_rank)
    taken = std::exchange(kept_, {});
  else if (auto kept = kept_.extract(*world_rank))
    taken.insert(std::move(kept));
  try {
    Status status = wait(std::move(work), on_interrupt);
    if (core_->returned_memory != nullptr) core_->returned_memory->give_back();
    return status;
  } catch (...) {  // kernels may still run
    for (auto& [rank, objects] : taken) {
      std::vector<nb::object>& kept = kept_[rank];
      kept.insert(kept.end(), std::make_move_iterator(objects.begin()),
                  std::make_move_iterator(objects.end()));
    }
    throw;
  }
}

void Session::synchronize(int world_rank) {
  const Rank& here = rank("synchronize", world_rank);
  need(wait_for_streams(world_rank, [core = core_, &here](CallerThread&) { return here.synchronize(); }));
}

void Session::synchronize() {
  use("synchronize");
  need(wait_for_streams({}, [core = core_](CallerThread&) { return core->world->synchronize(); }));
}

void drain_sessions() {
  reap_helpers(true);
  for (Session* session : std::set<Session*>(live_sessions())) {
    const std::shared_ptr<WorldCore> core = session->core();
    if (core->process.is_of_parent()) continue;
    (void)session->wait([core](CallerThread&) { return core->world->synchronize(); });
  }
  stop_other_threads();
}

}  // namespace switchyard::python
