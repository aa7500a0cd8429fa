// Steps of the direct protocol that have no combine, or more than one, or no tokens because a rank calls them
// off.
//
// A dispatch needs no combine before it. A rank that begins one has ended its last: every rank's rows for it
// have come, so every rank has read the counts of that step. What is sent is stored only when all ranks have
// begun the step (their counts say so), and so have ended whatever read the rows of the last. What peers read
// at other times, KeptChoices, has two copies, which steps take in turn by their numbers: so all ranks agree
// on the copy, however each of them ends a step, and whether or not a graph replays it.
//
// A combine needs a step of its own, since its signals carry the number of the step, and since a rank may
// write new expert rows only when its peers have read the old ones. A dispatch without tokens is such a step:
// it leaves the tables of the last one as they are. If the last one was skipped, this one is, too. The
// kernels decide that by what the last one has left on the device: whether a host knows it depends on who has
// synchronized, and a rank whose call is refused would leave the others waiting.
#include "call_checks.hpp"
#include "expert_parallel_impl.hpp"

namespace switchyard {

// Whether ranks tell each other how many rows come before any row does.
Status ExpertParallel::Impl::check_skippable(const char* call) const {
  if (!is_direct())
    return failed_precondition("%s: the protocol is %s; it must be direct", call, to_string(config.protocol));
  if (config.routing == Routing::kSkipAllToAll)
    return failed_precondition("%s: ranks that skip the all-to-all do not wait for each other", call);
  return Status();
}

Status ExpertParallel::Impl::check_reopening(const char* call) const {
  SWITCHYARD_RETURN_IF_ERROR(check_skippable(call));
  if (has_wire)
    return failed_precondition("%s: some ranks are reached over a wire; all must reach each other's memory",
                               call);
  if (config.reduce_at_owner)
    return failed_precondition("%s: reduce_at_owner leaves sums in the expert rows; it must be false", call);
  return Status();
}

Status ExpertParallel::abandon_step(int rank) {
  const RankCall begun = impl_->begin_call(rank, "abandon_step", Impl::Step::kDispatched);
  SWITCHYARD_RETURN_IF_ERROR(begun.status());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_reopening("abandon_step"));
  Impl::RankState& own = impl_->state(rank);
  own.step = Impl::Step::kIdle;
  return Status();
}

Status ExpertParallel::reopen_step(int rank, Stream stream) {
  const RankCall begun = impl_->begin_call(rank, "reopen_step", Impl::Step::kIdle);
  SWITCHYARD_RETURN_IF_ERROR(begun.status());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_reopening("reopen_step"));
  if (impl_->starts_with_experts())
    return failed_precondition(
        "reopen_step: combine_start is with-experts; nobody would complete the rows again");
  Impl::RankState& own = impl_->state(rank);
  if (!own.has_dispatched)
    return failed_precondition(
        "reopen_step: rank %d has dispatched nothing since create(), reset() or set_placement()", rank);
  const int num_tokens = own.num_tokens;
  SWITCHYARD_RETURN_IF_ERROR(impl_->enqueue_empty_dispatch(
      rank, [](DirectDispatchPart& part) { part.reopens_step = true; }, stream));
  own.num_tokens = num_tokens;
  return Status();
}

Status ExpertParallel::call_off_step(int rank, Stream stream) {
  const RankCall begun = impl_->begin_call(rank, "call_off_step", Impl::Step::kIdle);
  SWITCHYARD_RETURN_IF_ERROR(begun.status());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_skippable("call_off_step"));
  return impl_->enqueue_empty_dispatch(
      rank, [](DirectDispatchPart& part) { part.calls_off = true; }, stream);
}

Status ExpertParallel::Impl::enqueue_empty_dispatch(int rank, void (*mark)(DirectDispatchPart&),
                                                    Stream stream) {
  whole().keep_skip(rank, {});
  DispatchCall call = make_dispatch_call(rank, 0);
  mark(std::get<DirectDispatchPart>(call.parts));
  if (!is_per_rank()) call.step.topk_ids = nullptr;
  uint32_t* offsets = state(rank).memory.at<uint32_t>(layout.reopened_offsets);
  fill_in({.row_offsets = offsets, .expert_ids = reinterpret_cast<int32_t*>(offsets + num_groups() + 1)},
          call);
  return enqueue(rank, kernels.dispatch->fused, call, Step::kDispatched, stream);
}

Status ExpertParallel::Impl::count_sources(int rank, const DispatchOutput& output, Stream stream) const {
  if (output.source_ranges == nullptr && output.row_totals == nullptr) return Status();
  const DispatchStep& step = state(rank).dispatch_call.step;
  LaunchShape shape = launch_shape();
  shape.num_blocks = 1;
  shape.programmatic_dependent = false;
  const Rank& here = member(rank);
  return here.launch_on(stream, kernel_table(here).count_sources, shape,
                        CountSourcesParams{.num_groups = num_expert_groups(),
                                           .n_ranks = step.shape.n_ranks,
                                           .step_cells = step.recv_counts.mine,
                                           .ep_counters = step.ep_counters,
                                           .source_ranges = output.source_ranges,
                                           .row_totals = output.row_totals,
                                           .wait_context = step.wait_context});
}

}  // namespace switchyard
