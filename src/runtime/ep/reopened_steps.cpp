// Steps of the direct protocol that have no combine, or more than one.
//
// A dispatch needs no combine before it. A rank that begins one has ended its last: every rank's rows for it
// have come, so every rank has read the counts of that step. What is sent is stored only when all ranks have
// begun the step (their counts say so), and so have ended whatever read the rows of the last. What peers read
// at other times, KeptChoices, has two copies.
//
// A combine needs a step of its own, since its signals carry the number of the step, and since a rank may
// write new expert rows only when its peers have read the old ones. A dispatch without tokens is such a step:
// it leaves the tables of the last one as they are. If the last one was skipped, and the host does not know
// it yet, this one is, too.
#include "call_checks.hpp"
#include "expert_parallel_impl.hpp"

namespace switchyard {

Status ExpertParallel::Impl::check_reopening(const char* call) const {
  if (!is_direct())
    return failed_precondition("%s: the protocol is %s; only the direct one has steps without a combine",
                               call, to_string(config.protocol));
  if (has_wire)
    return failed_precondition("%s: some ranks are reached over a wire; all must reach each other's memory",
                               call);
  if (config.reduce_at_owner)
    return failed_precondition("%s: reduce_at_owner leaves sums in the expert rows; it must be false", call);
  if (config.routing == Routing::kSkipAllToAll)
    return failed_precondition("%s: ranks that skip the all-to-all do not wait for each other", call);
  return Status();
}

Status ExpertParallel::abandon_step(int rank) {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_call(rank, "abandon_step", Impl::Step::kDispatched));
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_reopening("abandon_step"));
  Impl::RankState& own = impl_->state(rank);
  own.step = Impl::Step::kIdle;
  own.kept_copy ^= 1;
  return Status();
}

Status ExpertParallel::reopen_step(int rank, Stream stream) {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_call(rank, "reopen_step", Impl::Step::kIdle));
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_reopening("reopen_step"));
  Impl::RankState& own = impl_->state(rank);
  if (!own.has_dispatched)
    return failed_precondition(
        "reopen_step: rank %d has dispatched nothing since create(), reset() or set_placement()", rank);
  if (own.was_skipped)
    return failed_precondition("reopen_step: the last step of rank %d was skipped; it has nothing to combine",
                               rank);
  DispatchCall call = impl_->make_dispatch_call(rank, 0);
  std::get<DirectDispatchPart>(call.parts).reopens_step = true;
  if (!impl_->is_per_rank()) call.step.topk_ids = nullptr;
  uint32_t* offsets = own.memory.at<uint32_t>(impl_->layout.reopened_offsets);
  impl_->fill_in(
      {.row_offsets = offsets, .expert_ids = reinterpret_cast<int32_t*>(offsets + num_groups() + 1)}, call);
  const int num_tokens = own.num_tokens;
  SWITCHYARD_RETURN_IF_ERROR(
      impl_->enqueue(rank, impl_->kernels.dispatch->fused, call, Impl::Step::kDispatched, stream));
  own.num_tokens = num_tokens;
  return Status();
}

Status ExpertParallel::Impl::count_sources(int rank, const DispatchOutput& output, Stream stream) const {
  if (output.source_ranges == nullptr && output.row_totals == nullptr) return Status();
  const DispatchStep& step = state(rank).dispatch_call.step;
  LaunchShape shape = launch_shape();
  shape.num_blocks = 1;
  shape.programmatic_dependent = false;
  const Rank& here = member(rank);
  return here.launch_on(stream, here.kernels().count_sources, shape,
                        CountSourcesParams{.num_groups = num_expert_groups(),
                                           .n_ranks = step.shape.n_ranks,
                                           .step_cells = step.recv_counts.mine,
                                           .ep_counters = step.ep_counters,
                                           .source_ranges = output.source_ranges,
                                           .row_totals = output.row_totals});
}

Status ExpertParallel::store_expert_rows(int rank, const ExpertRows& rows, Stream stream) {
  constexpr char kCall[] = "store_expert_rows";
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_call(rank, kCall, Impl::Step::kDispatched));
  if (!impl_->is_direct() || impl_->layout.has_encoded_outputs)
    return failed_precondition("%s: protocol is %s and combine_format %s; they must be direct and bf16",
                               kCall, to_string(config().protocol), to_string(config().combine_format));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer(kCall, "rows", rows.rows));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer(kCall, "row_offsets", rows.row_offsets));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer(kCall, "row_counts", rows.row_counts));
  const Rank& here = impl_->member(rank);
  LaunchShape shape = impl_->launch_shape();
  shape.programmatic_dependent = false;
  (void)impl_->begin_call(rank, stream);  // it waits for nobody
  // With several sets, the caller has the rows of one.
  const int num_in_front = config().row_sets > 1 ? 1 : 0;
  const uint32_t rows_per_group = num_in_front > 0 ? 1 : rows.rows_per_group;
  return here.launch_on(stream, here.kernels().store_rows, shape,
                        StoreRowsParams{.num_groups = num_groups() - num_in_front,
                                        .row_bytes = token_bytes(config()),
                                        .from_rows_per_group = rows_per_group,
                                        .num_from_rows = rows.num_rows,
                                        .row_offsets = rows.row_offsets + num_in_front,
                                        .row_counts = rows.row_counts + num_in_front,
                                        .from = static_cast<const std::byte*>(rows.rows),
                                        .to = reinterpret_cast<std::byte*>(
                                                  impl_->state(rank).memory.row_buffers().expert_outputs) -
                                              impl_->bytes_in_front(rank)});
}

}  // namespace switchyard
