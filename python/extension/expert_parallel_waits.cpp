// The calls of ExpertParallel that wait, or say what went wrong.
#include "ep_config.hpp"
#include "expert_parallel.hpp"

namespace switchyard::python {

// What the calls of a step would otherwise allocate is allocated, too.
void EpHandle::warm_up() {
  ExpertParallel& ep = use("warm_up");
  const auto call = core_->gate.enter_all("warm_up");
  for (int rank = 0; rank < ep.n_ranks(); ++rank)
    if (session_->core()->world->is_local(core_->members[static_cast<size_t>(rank)]))
      (void)rows_of("warm_up", rank, false);
  const Status status = session_->wait(
      [core = core_, call, &ep](CallerThread&) {
        Status result = ep.warm_up();
        call->leave();
        return result;
      },
      [call] { call->abandon(); });
  if (!status.ok()) raise_fault(status, {});
}

// The record of the rank itself, or of the rank that stopped it. What was said of a step that was skipped
// stops nobody.
void EpHandle::raise_fault(const Status& status, std::optional<int> rank) const {
  const ExpertParallel& ep = *core_->ep;
  const auto is_skip = [](const FaultRecord& record) {
    return record.kind == FaultKind::kOverCapacity || record.kind == FaultKind::kCalledOff;
  };
  std::optional<FaultRecord> fault = rank ? ep.fault(*rank) : std::nullopt;
  for (int other = 0; other < ep.n_ranks() && (!fault || is_skip(*fault)); ++other)
    if (const std::optional<FaultRecord> found = ep.fault(other); found && (!fault || !is_skip(*found)))
      fault = found;
  raise(status, fault);
}

void EpHandle::poll(int rank) {
  (void)world_rank("poll", rank);
  const auto call = core_->gate.enter("poll", rank);
  const Status status = core_->ep->poll(rank);
  if (!status.ok()) raise_fault(status, rank);
}

void EpHandle::synchronize(std::optional<int> rank, nb::handle stream_or_none) {
  use("synchronize");
  const Stream stream = stream_of("synchronize", stream_or_none);
  if (stream.is_callers() && !rank)
    raise(invalid_argument("synchronize: a stream is given, but no rank; a stream is one rank's"));
  const int where = rank ? world_rank("synchronize", *rank) : -1;
  const auto call = rank ? core_->gate.enter("synchronize", *rank) : core_->gate.enter_all("synchronize");
  const Status status = session_->wait_for_streams(
      rank ? std::optional<int>(where) : std::nullopt,
      [core = core_, call, rank, stream](CallerThread&) {
        Status result = stream.is_callers() ? core->ep->synchronize(*rank, stream)
                        : rank              ? core->ep->synchronize(*rank)
                                            : core->ep->synchronize();
        call->leave();
        return result;
      },
      [call] { call->abandon(); });
  if (!status.ok()) raise_fault(status, rank);
}

// The row buffers may move, so no array may share them.
void EpHandle::reset(std::optional<std::vector<int>> survivors, nb::object placement, bool by_world_rank) {
  const int n_experts = use("reset").config().n_experts;
  std::optional<ExpertPlacement> next;
  if (!placement.is_none()) next = placement_of(n_experts, placement);
  const auto call = core_->gate.enter_to_change("reset");
  (void)session_->wait_for_streams(
      {}, [core = core_](CallerThread&) { return core->world->world->synchronize(); },
      [call] { call->abandon(); });
  for (std::optional<RankMemory>& memory : memory_)
    if (memory) memory->rows = memory->rows_with_ranks = nb::object();
  if (survivors && core_.use_count() > 1)
    raise(
        failed_precondition("reset: %ld tensors of this object's rows, flights or graphs that use them are "
                            "still referenced; with "
                            "other ranks the rows may move, so delete them first",
                            core_.use_count() - 1));
  need(session_->wait(
      [core = core_, call, survivors, next, by_world_rank](CallerThread&) {
        Status status = !survivors      ? core->ep->reset()
                        : by_world_rank ? core->ep->reset_to(*survivors, next)
                                        : core->ep->reset(*survivors, next);
        if (status.ok() && survivors) {
          std::vector<int> members = *survivors;
          for (int& member : members)
            if (!by_world_rank) member = core->members[static_cast<size_t>(member)];
          core->members = std::move(members);
          ++core->num_changes;
        }
        call->leave();
        return status;
      },
      [call] { call->abandon(); }));
}

}  // namespace switchyard::python
