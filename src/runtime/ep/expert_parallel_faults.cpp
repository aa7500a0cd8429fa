// What happens after a step has failed: how the host finds out, and how all ranks are reset.
#include <algorithm>
#include <chrono>
#include <thread>

#include "agreement.hpp"
#include "expert_parallel_impl.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard {
namespace {

std::optional<FaultRecord> read_record(FaultRecord& record) {
  // acquire MM-07: the record; pairs with the release in record_fault()
  if (target::ld_acquire_system(&record.state) != FaultRecord::kWritten) return {};
  return record;
}

// Kernels may run meanwhile: one of them may claim the record as soon as it is clear, so that comes last.
std::optional<FaultRecord> take_skip_record(FaultRecord& record) {
  const std::optional<FaultRecord> skipped = read_record(record);
  if (skipped) __atomic_store_n(&record.state, uint32_t{FaultRecord::kClear}, __ATOMIC_RELEASE);
  return skipped;
}

}  // namespace

std::optional<FaultRecord> ExpertParallel::Impl::fault(int rank) const {
  if (rank < 0 || rank >= n_ranks()) return {};
  if (arenas == nullptr) return {};
  std::byte* records = arenas->host_visible_of_rank(members[static_cast<size_t>(rank)]);
  if (records == nullptr) return {};
  std::optional<FaultRecord> record = read_record(*reinterpret_cast<FaultRecord*>(records));
  if (record) record->expert = named_expert(record->expert);
  return record;
}

Status ExpertParallel::Impl::check_fault(int rank, bool have_all_ended) {
  const Result<uint64_t> poison =
      device_of(member(rank)).load_while_running(state(rank).memory.at<uint64_t>(layout.poison));
  if (!poison.ok()) return poison.status();
  if (poison.value() != 0) return fail_poisoned(rank, static_cast<int>(poison.value()) - 1);
  return have_all_ended ? take_skipped_step(rank) : report_skipped_step(rank);
}

// A rank that found a fault itself says so; one that was poisoned says what its poisoner found.
Status ExpertParallel::Impl::fail_poisoned(int rank, int poisoner) {
  for (const int reporter : {rank, poisoner})
    if (const std::optional<FaultRecord> record = fault(reporter); record)
      return fail(rank, reporter, *record);
  return fail_without_record(rank, poisoner);
}

Status ExpertParallel::Impl::fail(int rank, int reporter, const FaultRecord& record) {
  const StatusCode code = record.kind == FaultKind::kTimeout       ? StatusCode::kDeadlineExceeded
                          : record.kind == FaultKind::kPeerEnded   ? StatusCode::kUnavailable
                          : record.kind == FaultKind::kTooManyRows ? StatusCode::kResourceExhausted
                                                                   : StatusCode::kInvalidArgument;
  // The rank that the others waited for may never have launched: it was not stopped.
  const bool is_culprit = record.kind == FaultKind::kTimeout && record.late_rank == rank;
  const std::string prefix =
      reporter == rank || is_culprit ? "" : "rank " + std::to_string(rank) + " was stopped: ";
  state(rank).failure = Status(code, prefix + describe(record));
  transport_of(world).note_failure(state(rank).failure);
  return state(rank).failure;
}

Status ExpertParallel::Impl::fail_without_record(int rank, int poisoner) {
  const bool is_out_of_sight =
      arenas->host_visible_of_rank(members[static_cast<size_t>(poisoner)]) == nullptr;
  state(rank).failure =
      is_out_of_sight
          ? unavailable("rank %d was stopped by rank %d, whose record of the fault is out of reach here",
                        rank, poisoner)
          : internal_error("rank %d was stopped by rank %d, which left no record", rank, poisoner);
  transport_of(world).note_failure(state(rank).failure);
  return state(rank).failure;
}

// Every rank that finds a fault writes its record before it poisons the others, and, but over NVSHMEM, the
// host sees the records of all ranks of its machine: no word of the device's memory has to be fetched for
// them.
Status ExpertParallel::Impl::poll(int rank) {
  RankState& own = state(rank);
  if (!own.failure.ok()) return own.failure;
  bool sees_all = true;
  if (const std::optional<FaultRecord> record = fault(rank); record) return fail(rank, rank, *record);
  for (int reporter = 0; reporter < n_ranks(); ++reporter) {
    sees_all &= arenas->host_visible_of_rank(members[static_cast<size_t>(reporter)]) != nullptr;
    if (const std::optional<FaultRecord> record = fault(reporter); record)
      return fail(rank, reporter, *record);
  }
  Device& device = device_of(member(rank));
  const NoPatience at_once;  // who has ended may be known in a later call
  SWITCHYARD_RETURN_IF_ERROR(device.poll());
  if (!sees_all) {
    const Result<uint64_t> poison = device.load_while_running(own.memory.at<uint64_t>(layout.poison));
    if (!poison.ok()) return poison.status();
    if (poison.value() != 0) return fail_poisoned(rank, static_cast<int>(poison.value()) - 1);
  }
  return report_skipped_step(rank);
}

// While other steps may be under way, only the caller knows whether it is this one that was skipped.
Status ExpertParallel::Impl::report_skipped_step(int rank) {
  const std::optional<FaultRecord> skipped = take_skip_record(state(rank).memory.faults[1]);
  if (!skipped) return Status();
  state(rank).has_reported_skip = true;
  keep_skip(rank, skipped);
  return Status(StatusCode::kResourceExhausted, describe(*skipped));
}

std::optional<FaultRecord> ExpertParallel::Impl::skip_of(int rank) const {
  if (rank < 0 || rank >= n_ranks() || ranks[static_cast<size_t>(rank)] == nullptr) return {};
  const std::lock_guard<std::mutex> lock(skips_lock);
  return state(rank).skip;
}
void ExpertParallel::Impl::keep_skip(int rank, const std::optional<FaultRecord>& skip) const {
  const std::lock_guard<std::mutex> lock(skips_lock);
  state(rank).skip = skip;
}

Status ExpertParallel::Impl::end_skipped_step(int rank) {
  RankState& state = this->state(rank);
  int32_t last_is_skipped = 0;
  const Rank& owner = member(rank);
  const DirectCounters counters{state.memory.ep_counters(exchange_shape_of(rank))};
  SWITCHYARD_RETURN_IF_ERROR(device_of(owner).copy(&last_is_skipped, counters.is_skipped(),
                                                   sizeof(last_is_skipped), owner.stream()));
  if (last_is_skipped != 0 && (state.step == Step::kDispatched || state.step == Step::kCombineSent))
    state.step = Step::kIdle;
  return Status();
}

// A step that exceeds the capacity of some rank has been skipped by all of them: that is an error, reported
// once, but the next step may follow. If it is the rank's last one, and dispatched, it is over, as combine
// would do nothing.
Status ExpertParallel::Impl::take_skipped_step(int rank) {
  const Status skipped = report_skipped_step(rank);
  if (!state(rank).has_reported_skip) return skipped;
  SWITCHYARD_RETURN_IF_ERROR(end_skipped_step(rank));
  for (const auto& flight : later_flights) SWITCHYARD_RETURN_IF_ERROR(flight->impl_->end_skipped_step(rank));
  state(rank).has_reported_skip = false;
  return skipped;
}

Status ExpertParallel::synchronize(int rank) {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rank("synchronize", rank));
  SWITCHYARD_RETURN_IF_ERROR(impl_->wait_for_calls(rank));
  return impl_->whole().check_fault(rank, /*have_all_ended=*/true);
}

Status ExpertParallel::synchronize(int rank, Stream stream) {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rank("synchronize", rank));
  SWITCHYARD_RETURN_IF_ERROR(impl_->member(rank).synchronize(stream));
  return impl_->whole().check_fault(rank, /*have_all_ended=*/false);
}

Status ExpertParallel::poll(int rank) {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rank("poll", rank));
  return impl_->whole().poll(rank);
}

// Ranks that left may have kernels on their streams, too.
Status ExpertParallel::Impl::wait_for_all_calls() const {
  Status first_error = world.synchronize();
  for (const int rank : local_ranks())
    if (Status status = wait_for_calls(rank); !status.ok() && first_error.ok()) first_error = status;
  return first_error;
}

Status ExpertParallel::synchronize() {
  Status first_error = impl_->wait_for_all_calls();
  if (impl_->arenas == nullptr) return impl_->check_rank("synchronize", impl_->local_ranks().front());
  if (!first_error.ok()) return first_error;
  // Every rank is checked, so that none accepts another call after a broken step.
  for (const int rank : impl_->local_ranks())
    if (Status status = impl_->whole().check_fault(rank, /*have_all_ended=*/true);
        !status.ok() && first_error.ok())
      first_error = status;
  return first_error;
}

Status ExpertParallel::reset() {
  SWITCHYARD_RETURN_IF_ERROR(impl_->process.check("reset"));
  Impl& whole = impl_->whole();
  return whole.arenas == nullptr ? whole.reset_to(whole.members, whole.config.placement)
                                 : whole.restart(whole.members);
}

// Nobody clears a buffer while kernels of another rank may still write to it.
Status ExpertParallel::Impl::restart(const std::vector<int>& next_members) {
  deaths.reset();  // nobody writes to the records while they are cleared
  SWITCHYARD_RETURN_IF_ERROR(agree_that(transport_of(world), next_members, wait_for_all_calls()));
  // What a broken step has put arrives before that.
  if (has_wire) SWITCHYARD_RETURN_IF_ERROR(transport_of(world).barrier(next_members));
  for (const int rank : local_ranks())
    if (state(rank).lender != nullptr) state(rank).lender->restart(members);
  return clear_buffers();
}

// A rank of another process that is left out must have ended, to the last: its kernels could still write to
// these buffers while the driver ends them.
Status ExpertParallel::Impl::check_have_ended(const std::vector<int>& next_members) const {
  Transport& transport = transport_of(world);
  const auto is_in = [](const std::vector<int>& list, int rank) {
    return std::find(list.begin(), list.end(), rank) != list.end();
  };
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (is_in(next_members, members[rank]) || world.is_local(members[rank])) continue;
    // The end of a process that is being killed is certain, and shows soon.
    while (!is_in(transport.dead_ranks(), members[rank])) {
      if (!is_in(transport.ending_ranks(), members[rank]))
        return failed_precondition(
            "reset: rank %zu is not among the survivors, but its process has not ended; end it first", rank);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    SWITCHYARD_RETURN_IF_ERROR(transport.wait_for_end_of(members[rank]));
  }
  return Status();
}

// A process joins a world once.
Status ExpertParallel::Impl::check_can_come_back(const std::vector<int>& next_members) const {
  if (!is_one_of_many()) return Status();
  for (const int world_rank : next_members)
    if (std::find(members.begin(), members.end(), world_rank) == members.end())
      return unavailable(
          "reset_to: rank %d of the world was left out before, and its process has ended; join a new world "
          "(World::join) and create anew",
          world_rank);
  return Status();
}

Status ExpertParallel::Impl::reset(const std::vector<int>& survivors,
                                   std::optional<ExpertPlacement> next_placement) {
  if (survivors.empty()) return invalid_argument("survivors is empty; at least one rank must go on");
  std::vector<int> next_members;
  for (size_t i = 0; i < survivors.size(); ++i) {
    if (survivors[i] < 0 || survivors[i] >= n_ranks() || (i > 0 && survivors[i] <= survivors[i - 1]))
      return invalid_argument("survivors[%zu] is %d; they must ascend within 0..%d", i, survivors[i],
                              n_ranks() - 1);
    next_members.push_back(members[static_cast<size_t>(survivors[i])]);
  }
  return reset_to(next_members, std::move(next_placement));
}

Status ExpertParallel::Impl::reset_to(const std::vector<int>& next_members,
                                      std::optional<ExpertPlacement> next_placement) {
  if (config.routing == Routing::kSkipAllToAll)
    return failed_precondition(
        "reset: ranks that skip the all-to-all have room for their own experts only; create anew");
  const int next_n_ranks = static_cast<int>(next_members.size());
  ExpertParallelConfig next_config = config;
  next_config.placement = std::move(next_placement);
  SWITCHYARD_RETURN_IF_ERROR(validate(next_config, next_n_ranks));
  const Result<ExchangeLayout> next_layout = ExchangeLayout::of(next_config, next_n_ranks, has_wire);
  if (!next_layout.ok()) return next_layout.status();
  if (std::none_of(next_members.begin(), next_members.end(), [&](int rank) { return world.is_local(rank); }))
    return invalid_argument("survivors has no rank of this process");
  SWITCHYARD_RETURN_IF_ERROR(check_can_come_back(next_members));
  SWITCHYARD_RETURN_IF_ERROR(check_have_ended(next_members));
  ExpertParallelConfig agreed;
  agreed.placement = next_config.placement;
  SWITCHYARD_RETURN_IF_ERROR(agree_on(transport_of(world), next_members, agreed));
  SWITCHYARD_RETURN_IF_ERROR(wait_for_all_calls());  // before the memory of ranks that leave is freed
  for (const int rank : local_ranks())
    if (arenas != nullptr) SWITCHYARD_RETURN_IF_ERROR(keep_expert_counts(rank));
  config = std::move(next_config);
  placement = placement_of(config, next_n_ranks);
  layout = next_layout.value();
  SWITCHYARD_RETURN_IF_ERROR(take_members(next_members));
  return restart(members);
}

// The arenas stay if they are large enough; all ranks decide the same.
Status ExpertParallel::Impl::take_members(const std::vector<int>& next_members) {
  deaths.reset();      // it writes to the arenas
  local_wire.reset();  // with the arenas of before
  std::vector<std::unique_ptr<RankState>> states;
  for (const int world_rank : next_members) {
    const auto rank = std::find(members.begin(), members.end(), world_rank) - members.begin();
    if (rank < n_ranks())
      states.push_back(std::move(ranks[static_cast<size_t>(rank)]));
    else
      states.push_back(world.is_local(world_rank) ? std::make_unique<RankState>() : nullptr);
  }
  ranks = std::move(states);
  members = next_members;
  const bool fits = arenas != nullptr && arena_bytes().value() <= arena_capacity &&
                    std::includes(arena_members.begin(), arena_members.end(), members.begin(), members.end());
  if (const Status allocated = fits ? Status() : allocate_arenas(); !allocated.ok()) {
    for (const int rank : local_ranks()) state(rank).failure = allocated;
    return allocated;
  }
  for (const int rank : local_ranks()) use_arena(rank);
  update_flights();
  for (const int rank : local_ranks()) {
    if (layout.expert_counts.bytes > 0) SWITCHYARD_RETURN_IF_ERROR(clear_expert_counts(rank));
    if (!is_traced || state(rank).trace) continue;
    Result<TraceRecorder> recorder =
        TraceRecorder::create(member(rank), config.n_sms, trace_events_per_block);
    if (!recorder.ok()) return recorder.status();
    state(rank).trace = std::move(recorder).value();
  }
  return Status();
}

Status ExpertParallel::reset(const std::vector<int>& survivors, std::optional<ExpertPlacement> placement) {
  SWITCHYARD_RETURN_IF_ERROR(impl_->process.check("reset"));
  return impl_->whole().reset(survivors, std::move(placement));
}

Status ExpertParallel::reset_to(const std::vector<int>& world_ranks,
                                std::optional<ExpertPlacement> placement) {
  SWITCHYARD_RETURN_IF_ERROR(impl_->process.check("reset_to"));
  if (world_ranks.empty()) return invalid_argument("world_ranks is empty; at least one rank must go on");
  const int n_world_ranks = impl_->world.n_ranks();
  for (size_t i = 0; i < world_ranks.size(); ++i)
    if (world_ranks[i] < 0 || world_ranks[i] >= n_world_ranks ||
        (i > 0 && world_ranks[i] <= world_ranks[i - 1]))
      return invalid_argument("world_ranks[%zu] is %d; they must ascend within 0..%d", i, world_ranks[i],
                              n_world_ranks - 1);
  return impl_->whole().reset_to(world_ranks, std::move(placement));
}

std::optional<FaultRecord> ExpertParallel::fault(int rank) const {
  const std::optional<FaultRecord> found = impl_->fault(rank);
  return found ? found : impl_->whole().skip_of(rank);
}

}  // namespace switchyard
