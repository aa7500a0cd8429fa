// ExpertParallel, its outputs and its traces as Python sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "ep_config.hpp"
#include "expert_parallel.hpp"
#include "options.hpp"

namespace switchyard::python {
namespace {

std::unique_ptr<EpHandle> create(std::shared_ptr<Session> session, const nb::kwargs& options) {
  session->use("ExpertParallel");
  auto made = std::make_shared<std::unique_ptr<ExpertParallel>>();
  need(session->wait([core = session->core(), config = config_of(options), made](CallerThread&) -> Status {
    Result<std::unique_ptr<ExpertParallel>> ep = ExpertParallel::create(*core->world, config);
    if (!ep.ok()) return ep.status();
    *made = std::move(ep).value();
    return Status();
  }));
  auto core = std::make_shared<EpCore>(session->core(), std::move(*made));
  return std::make_unique<EpHandle>(std::move(session), std::move(core));
}

// Makes a call that waits, without the GIL. `work` returns a Status; the core keeps what it uses.
template <typename Work>
void wait_in(const EpHandle& handle, std::shared_ptr<CallGate::Call> call, Work work) {
  need(handle.session()->wait(
      [core = handle.core(), call, work = std::move(work)](CallerThread&) -> Status {
        Status status = work();
        call->leave();
        return status;
      },
      [call] { call->abandon(); }));
}

// Events in the order of the fields of switchyard_ep.trace.Event, by rank.
nb::object take_trace(const EpHandle& handle) {
  handle.use("take_trace");
  auto traces = std::make_shared<std::vector<RankTrace>>();
  wait_in(handle, handle.core()->gate.enter_all("take_trace"), [ep = handle.core()->ep, traces]() -> Status {
    Result<std::vector<RankTrace>> taken = ep->take_trace();
    if (!taken.ok()) return taken.status();
    *traces = std::move(taken).value();
    return Status();
  });
  nb::list ranks;
  for (const RankTrace& trace : *traces) {
    nb::list events;
    for (size_t block = 0; block < trace.blocks.size(); ++block)
      for (const TraceEvent& event : trace.blocks[block].events)
        events.append(nb::make_tuple(block, switchyard::to_string(event.name),
                                     switchyard::to_string(event.phase), event.begin_ns, event.end_ns,
                                     event.late_rank, event.expert));
    ranks.append(events);
  }
  return nb::module_::import_("switchyard_ep.trace").attr("Trace")(ranks);
}

template <typename T>
T waited(const EpHandle& handle, const char* name, int rank, Result<T> (ExpertParallel::*method)(int) const) {
  (void)handle.world_rank(name, rank);
  auto value = std::make_shared<T>();
  wait_in(handle, handle.core()->gate.enter(name, rank),
          [ep = &handle.use(name), value, rank, method]() -> Status {
            Result<T> result = (ep->*method)(rank);
            if (!result.ok()) return result.status();
            *value = std::move(result).value();
            return Status();
          });
  return std::move(*value);
}

void bind_rows(nb::module_& module) {
  nb::class_<DispatchedRows>(
      module, "DispatchedRows",
      "What dispatch writes. The memory is the ExpertParallel's, and the rank's next dispatch overwrites it.")
      .def_ro("rows", &DispatchedRows::rows,
              "(max_rows, hidden) in the dispatch format; 4 and 6 bits as packed bytes.")
      .def_ro("row_offsets", &DispatchedRows::row_offsets,
              "(num_groups + 1,): the rows of group g begin there.")
      .def_ro("row_counts", &DispatchedRows::row_counts, "(num_groups,): how many rows each group has.")
      .def_ro("expert_ids", &DispatchedRows::expert_ids, "(num_groups,): 0, 1, ..")
      .def_ro("src_info", &DispatchedRows::src_info, "(max_rows, 2): the source token and k of each row.")
      .def_ro("src_ranks", &DispatchedRows::src_ranks,
              "(max_rows,): the source rank of each row, if asked for.")
      .def_ro("scales", &DispatchedRows::scales, "Of formats that have them.")
      .def_ro("scale_row_offsets", &DispatchedRows::scale_row_offsets, "Of formats with tiled scales.")
      .def_ro("expert_outputs", &DispatchedRows::expert_outputs,
              "(rows_per_set, hidden): where experts may leave what they make, for combine.")
      .def_ro("expert_tensor_scales", &DispatchedRows::expert_tensor_scales,
              "(n_local_experts,): of nvfp4-by-expert, for a matmul's row_tensor_scales.");
}

constexpr const char* kDoc =
    "Dispatch and combine for the ranks of a world. A step is dispatch, then combine, on every rank; each "
    "has an _async "
    "half, which sends, and a _wait half, which receives. Calls enqueue on the stream that they are given "
    "(an int, what has cuda_stream or __cuda_stream__, or 'current', which is PyTorch's current one), or on "
    "the rank's, and return; "
    "synchronize() waits and raises what went wrong. Arrays that are passed are used where they are, and "
    "kept until "
    "synchronize(). Options: n_experts, top_k, hidden, max_tokens_per_rank (these four must be given), "
    "n_sms, "
    "num_threads, timeout, first_timeout (seconds), protocol ('auto', 'slotted', 'direct'), capacity_factor, "
    "row_layout "
    "('ragged', "
    "'masked', 'per-rank'), row_alignment, max_rows_per_expert, row_sets, row_delivery ('automatic', "
    "'sender', "
    "'receiver'), reduce_at_owner, dispatch_format (a name of token_formats()), "
    "input_scale, "
    "expert_input_scales, combine_format ('bf16', 'fp8'), shared_expert ('none', 'fused'), routing "
    "('all-to-all', "
    "'skip-all-to-all'), p2p_world_size, allreduce_world_size, dependent_launch, placement (the experts of "
    "each rank), "
    "max_experts_per_rank, counts_experts, steps_in_flight.";

void bind_queries(nb::class_<EpHandle>& ep) {
  ep.def_prop_ro(
        "config", [](const EpHandle& handle) { return to_python(handle.use("config").config()); },
        "The options as they are in force: protocol is never 'auto'.")
      .def_prop_ro(
          "protocol_reason",
          [](const EpHandle& handle) { return handle.use("protocol_reason").protocol_reason(); },
          "Why config['protocol'] is what it is, in words.")
      .def(
          "flight",
          [](const EpHandle& handle, int index) {
            (void)need(handle.core()->ep->flight(index));
            handle.use("flight");
            return std::make_unique<EpHandle>(handle.session(), handle.core(), index);
          },
          nb::arg("index"),
          "Returns the calls of a step that may be under way beside others (option steps_in_flight); 0 is "
          "this one.")
      .def_prop_ro(
          "n_ranks", [](const EpHandle& handle) { return handle.use("n_ranks").n_ranks(); },
          "The ranks of a step: those of the world, until reset() leaves some out.")
      .def_prop_ro(
          "n_local_experts",
          [](const EpHandle& handle) { return handle.use("n_local_experts").n_local_experts(); },
          "The most experts that a rank holds, or can hold.")
      .def_prop_ro(
          "num_groups", [](const EpHandle& handle) { return handle.use("num_groups").num_groups(); },
          "The groups of a rank's rows: the local experts (per rank, one of all of them), and the "
          "shared expert if it is fused.")
      .def_prop_ro(
          "max_recv_rows", [](const EpHandle& handle) { return handle.use("max_recv_rows").max_recv_rows(); },
          "The most rows that a step can bring to a rank, padding included.")
      .def_prop_ro(
          "rows_per_set", [](const EpHandle& handle) { return handle.use("rows_per_set").rows_per_set(); },
          "The rows of row_buffers() from a set to the next; with one set, all of them.")
      .def_prop_ro(
          "bytes_per_rank",
          [](const EpHandle& handle) { return handle.use("bytes_per_rank").bytes_per_rank(); },
          "The bytes of each rank's exchange memory.")
      .def_prop_ro(
          "placement",
          [](const EpHandle& handle) { return handle.use("placement").placement().experts_of_rank(); },
          "The experts of each rank.")
      .def(
          "row_buffers",
          [](EpHandle& handle, int rank) { return handle.rows_of("row_buffers", rank, false); },
          nb::arg("rank"), nb::sig("def row_buffers(self, rank: int) -> DispatchedRows"),
          "Returns the memory that the rank's dispatch writes, as dispatch returns it.")
      .def(
          "fault", [](const EpHandle& handle, int rank) { return handle.use("fault").fault(rank); },
          nb::arg("rank"),
          "Returns what the rank itself found wrong in the step that failed, without waiting; None: nothing.")
      .def(
          "expert_counts",
          [](const EpHandle& handle, int rank) {
            return waited<std::vector<int64_t>>(handle, "expert_counts", rank,
                                                &ExpertParallel::expert_counts);
          },
          nb::arg("rank"), "Returns the rows that this rank has sent to each expert (option counts_experts).")
      .def(
          "clear_expert_counts",
          [](const EpHandle& handle, int rank) {
            (void)handle.world_rank("clear_expert_counts", rank);
            wait_in(
                handle, handle.core()->gate.enter("clear_expert_counts", rank),
                [ep = &handle.use("clear_expert_counts"), rank] { return ep->clear_expert_counts(rank); });
          },
          nb::arg("rank"), "Waits for the rank's stream, and begins to count anew.")
      .def(
          "source_row_offsets",
          [](const EpHandle& handle, int rank) {
            return waited<std::vector<uint32_t>>(handle, "source_row_offsets", rank,
                                                 &ExpertParallel::source_row_offsets);
          },
          nb::arg("rank"),
          "Returns, local expert by local expert, the row at which those of each source rank begin.")
      .def(
          "enable_trace",
          [](const EpHandle& handle, uint32_t events_per_block) {
            handle.use("enable_trace");
            wait_in(
                handle, handle.core()->gate.enter_all("enable_trace"),
                [ep = handle.core()->ep, events_per_block] { return ep->enable_trace(events_per_block); });
          },
          nb::arg("events_per_block") = 1024,
          "From now on kernels record when their roles and waits began and ended.")
      .def("take_trace", &take_trace, nb::sig("def take_trace(self) -> switchyard_ep.trace.Trace"),
           "Waits for all ranks and returns what each has recorded since the last call.");
}

void bind_dispatch(nb::class_<EpHandle>& ep) {
  ep.def(
        "dispatch",
        [](EpHandle& handle, int rank, nb::object tokens, nb::object topk_ids, nb::object topk_weights,
           nb::object scales, nb::object input_scale, bool src_ranks, std::string unwritten,
           nb::object row_experts, nb::object row_weights, nb::object source_ranges, nb::object row_totals,
           nb::object expert_totals, nb::object rank_wait_ns, int row_set, nb::handle stream) {
          return handle.dispatch(rank, {tokens, topk_ids, topk_weights, scales, input_scale, row_set},
                                 {src_ranks, std::move(unwritten), row_experts, row_weights, source_ranges,
                                  row_totals, expert_totals, rank_wait_ns},
                                 stream);
        },
        nb::arg("rank"), nb::arg("tokens").none(), nb::arg("topk_ids").none(),
        nb::arg("topk_weights") = nb::none(), nb::kw_only(), nb::arg("scales") = nb::none(),
        nb::arg("input_scale") = nb::none(), nb::arg("src_ranks") = false, nb::arg("unwritten") = "left",
        nb::arg("row_experts") = nb::none(), nb::arg("row_weights") = nb::none(),
        nb::arg("source_ranges") = nb::none(), nb::arg("row_totals") = nb::none(),
        nb::arg("expert_totals") = nb::none(), nb::arg("rank_wait_ns") = nb::none(), nb::arg("row_set") = 0,
        nb::arg("stream") = nb::none(),
        nb::sig(
            "def dispatch(self, rank: int, tokens: object | None, topk_ids: object | None, topk_weights: "
            "object | "
            "None = None, *, scales: object | None = None, input_scale: object | None = None, src_ranks: "
            "bool = "
            "False, unwritten: str = 'left', row_experts: object | None = None, row_weights: object | "
            "None = None, "
            "source_ranges: object | None = None, row_totals: object | None = None, expert_totals: object | "
            "None = None, rank_wait_ns: object | None = None, row_set: int = 0, "
            "stream: object | None = None) -> DispatchedRows"),
        "Sends tokens, (num_tokens, hidden) of bfloat16, to the ranks of their experts, topk_ids, "
        "(num_tokens, top_k) of int32 or int64 (-1 is padding), and returns the rows that arrive here. With "
        "scales, "
        "tokens are in the dispatch format already. Per rank, topk_weights travel with the rows, and "
        "row_experts and "
        "row_weights, (rows_per_set, top_k), are written if they are given; with several row_sets, row_set "
        "says which the rows go to. unwritten: rows that only fill up a "
        "group are "
        "'left' as they are, 'marked' (src_info is -1) or 'zeroed'. source_ranges: (groups, n_ranks) of "
        "int64, written "
        "with begin << 32 | count of each rank's rows; row_totals: (groups,) of int32, to which the rows are "
        "added; expert_totals, per rank: (1 + local experts,) of int32, to which the rows and those of each "
        "local expert are added. rank_wait_ns: (n_ranks,) of int64, to which the nanoseconds are added for "
        "which this "
        "rank has waited for each other one.")
      .def(
          "dispatch_async",
          [](EpHandle& handle, int rank, nb::object tokens, nb::object topk_ids, nb::object topk_weights,
             nb::object scales, nb::object input_scale, int row_set, nb::object rank_wait_ns,
             nb::handle stream) {
            handle.dispatch_async(
                rank, {tokens, topk_ids, topk_weights, scales, input_scale, row_set, rank_wait_ns}, stream);
          },
          nb::arg("rank"), nb::arg("tokens").none(), nb::arg("topk_ids").none(),
          nb::arg("topk_weights") = nb::none(), nb::kw_only(), nb::arg("scales") = nb::none(),
          nb::arg("input_scale") = nb::none(), nb::arg("row_set") = 0, nb::arg("rank_wait_ns") = nb::none(),
          nb::arg("stream") = nb::none(),
          "The half of dispatch that sends. Direct protocol: it waits for the counts of all ranks, and adds "
          "to rank_wait_ns for how long.")
      .def(
          "dispatch_wait",
          [](EpHandle& handle, int rank, bool src_ranks, std::string unwritten, nb::object row_experts,
             nb::object row_weights, nb::object source_ranges, nb::object row_totals,
             nb::object expert_totals, nb::object rank_wait_ns, nb::handle stream) {
            return handle.dispatch_wait(rank,
                                        {src_ranks, std::move(unwritten), row_experts, row_weights,
                                         source_ranges, row_totals, expert_totals, rank_wait_ns},
                                        stream);
          },
          nb::arg("rank"), nb::kw_only(), nb::arg("src_ranks") = false, nb::arg("unwritten") = "left",
          nb::arg("row_experts") = nb::none(), nb::arg("row_weights") = nb::none(),
          nb::arg("source_ranges") = nb::none(), nb::arg("row_totals") = nb::none(),
          nb::arg("expert_totals") = nb::none(), nb::arg("rank_wait_ns") = nb::none(),
          nb::arg("stream") = nb::none(),
          nb::sig(
              "def dispatch_wait(self, rank: int, *, src_ranks: bool = False, unwritten: str = 'left', "
              "row_experts: "
              "object | None = None, row_weights: object | None = None, source_ranges: object | None = None, "
              "row_totals: object | None = None, expert_totals: object | None = None, rank_wait_ns: object | "
              "None "
              "= None, stream: object | None = "
              "None) -> DispatchedRows"),
          "The half of dispatch that receives.");
}

void bind_steps(nb::class_<EpHandle>& ep) {
  bind_dispatch(ep);
  ep.def(
        "combine",
        [](EpHandle& handle, int rank, nb::object expert_rows, nb::object topk_ids, nb::object topk_weights,
           nb::object out, std::string reduction, nb::object rank_wait_ns, bool awaits_readers,
           nb::handle stream) {
          return handle.combine(rank, expert_rows,
                                {topk_ids, topk_weights, out, std::move(reduction), rank_wait_ns},
                                awaits_readers, stream);
        },
        nb::arg("rank"), nb::arg("expert_rows").none(), nb::arg("topk_ids") = nb::none(),
        nb::arg("topk_weights") = nb::none(), nb::kw_only(), nb::arg("out") = nb::none(),
        nb::arg("reduction") = "weighted", nb::arg("rank_wait_ns") = nb::none(),
        nb::arg("awaits_readers") = false, nb::arg("stream") = nb::none(),
        nb::sig(SWITCHYARD_OUT_SIGNATURES(
            "combine",
            "rank: int, expert_rows: object | None, topk_ids: object | None = None, topk_weights: object | "
            "None = None",
            "reduction: str = 'weighted', rank_wait_ns: object | None = None, awaits_readers: bool = False, "
            "stream: object | None = None")),
        "Sends expert_rows, row by row the result for the dispatched rows, back to where they came from, "
        "and returns "
        "out, (num_tokens, hidden): the sum of each token's rows times topk_weights, (num_tokens, top_k) "
        "of float32. "
        "reduction='unreduced': (num_tokens, top_k, hidden). expert_rows None: they are in "
        "expert_outputs. The "
        "direct protocol takes rows or expert_outputs of DispatchedRows only. topk_ids are as dispatched; "
        "per rank, "
        "and if those were int64, they may be left out. rank_wait_ns: as in dispatch. awaits_readers: all "
        "ranks ask for it; rows that were offered (offer_expert_rows) may be written to behind the call.")
      .def("combine_async", &EpHandle::combine_async, nb::arg("rank"), nb::arg("expert_rows").none(),
           nb::kw_only(), nb::arg("stream") = nb::none(), "The half of combine that sends.")
      .def(
          "combine_wait",
          [](EpHandle& handle, int rank, nb::object topk_ids, nb::object topk_weights, nb::object out,
             std::string reduction, nb::object rank_wait_ns, nb::handle stream) {
            return handle.combine_wait(
                rank, {topk_ids, topk_weights, out, std::move(reduction), rank_wait_ns}, stream);
          },
          nb::arg("rank"), nb::arg("topk_ids") = nb::none(), nb::arg("topk_weights") = nb::none(),
          nb::kw_only(), nb::arg("out") = nb::none(), nb::arg("reduction") = "weighted",
          nb::arg("rank_wait_ns") = nb::none(), nb::arg("stream") = nb::none(),
          nb::sig(SWITCHYARD_OUT_SIGNATURES(
              "combine_wait", "rank: int, topk_ids: object | None = None, topk_weights: object | None = None",
              "reduction: str = 'weighted', rank_wait_ns: object | None = None, stream: object | None = "
              "None")),
          "The half of combine that receives.")
      .def("all_reduce", &EpHandle::all_reduce, nb::arg("rank"), nb::arg("values").none(), nb::kw_only(),
           nb::arg("stream") = nb::none(),
           "Completes a step that skipped the all-to-all: values become the sum over the ranks of the group.")
      .def("call_off_step", &EpHandle::call_off_step, nb::arg("rank"), nb::kw_only(),
           nb::arg("stream") = nb::none(),
           "Direct protocol: instead of a dispatch, for a rank that cannot make one. All ranks skip the "
           "step, and "
           "their synchronize() and poll() raise ResourceExhausted, which names the rank, once; the next "
           "step may "
           "follow.")
      .def("abandon_step", &EpHandle::abandon_step, nb::arg("rank"),
           "Direct protocol: ends a step without its combine. Every rank does the same.")
      .def("reopen_step", &EpHandle::reopen_step, nb::arg("rank"), nb::kw_only(),
           nb::arg("stream") = nb::none(),
           "Direct protocol: instead of a dispatch, opens a step whose rows are those of the last one, so "
           "that another "
           "combine may follow. Every rank does the same.")
      .def("store_expert_rows", &EpHandle::store_expert_rows, nb::arg("rank"), nb::arg("rows"), nb::kw_only(),
           nb::arg("stream") = nb::none(),
           "Direct protocol: copies what experts made, (rows, hidden), masked (groups, rows of each, "
           "hidden), to "
           "expert_outputs, as many rows as the step has. If there are fewer, the step fails: poll() and "
           "synchronize() of all ranks say so.")
      .def("offer_expert_rows", &EpHandle::offer_expert_rows, nb::arg("rank"), nb::arg("rows"), nb::kw_only(),
           nb::arg("is_whole") = false, nb::arg("stream") = nb::none(),
           "Direct protocol: returns whether peers can read rows, (rows, hidden), where they are. If so, the "
           "next combine may be given them, and they must stay as they are until the rank's next dispatch or "
           "reopen_step has ended, or a combine with awaits_readers. Ranks of other processes must have "
           "opened the memory, which this call "
           "asks them for, and which they do in their next combine. is_whole: rows has as many rows as the "
           "step, which the call waits for otherwise.")
      .def("warm_up", &EpHandle::warm_up,
           "Loads every kernel and runs a step without tokens on all ranks, which all processes do between "
           "two steps.")
      .def("poll", &EpHandle::poll, nb::arg("rank"),
           "Raises what has gone wrong so far, as synchronize() would, without waiting; also while graphs "
           "replay.")
      .def("synchronize", &EpHandle::synchronize, nb::arg("rank") = nb::none(), nb::kw_only(),
           nb::arg("stream") = nb::none(),
           "Waits for the stream of a rank, or of all ranks of this process, and raises what went wrong, "
           "with the fault "
           "record. Ctrl-C interrupts the wait.")
      .def(
          "reset",
          [](EpHandle& handle, std::optional<std::vector<int>> survivors, nb::object placement) {
            handle.reset(std::move(survivors), std::move(placement), false);
          },
          nb::arg("survivors") = nb::none(), nb::arg("placement") = nb::none(),
          "After a fault: makes all buffers ready again; all processes call it. With survivors, ranks by "
          "their present "
          "numbers, those go on as ranks 0, 1, .. and hold all experts.")
      .def(
          "reset_to",
          [](EpHandle& handle, std::vector<int> world_ranks, nb::object placement) {
            handle.reset(std::move(world_ranks), std::move(placement), true);
          },
          nb::arg("world_ranks"), nb::arg("placement") = nb::none(),
          "The same with any ranks of the world, by their numbers there, so that ranks come back.")
      .def(
          "set_placement",
          [](EpHandle& handle, nb::object placement) {
            const ExpertPlacement next =
                placement_of(handle.use("set_placement").config().n_experts, placement);
            wait_in(handle, handle.core()->gate.enter_to_change("set_placement"),
                    [ep = handle.core()->ep, next] { return ep->set_placement(next); });
          },
          nb::arg("placement"), "From the next step on, rows go where the placement says.");
}

}  // namespace

void bind_expert_parallel(nb::module_& module) {
  bind_rows(module);
  nb::class_<EpHandle> ep(module, "ExpertParallel", kDoc);
  ep.def(nb::new_(&create), nb::arg("world"), nb::arg("options"));
  bind_steps(ep);
  bind_queries(ep);
  ep.def_static(
      "memory_needed",
      [](int n_ranks, const nb::kwargs& options) {
        const MemoryNeeded needed = need(ExpertParallel::memory_needed(config_of(options), n_ranks));
        nb::dict result;
        result["exchange"] = needed.exchange;
        result["row_buffers"] = needed.row_buffers;
        result["total"] = needed.total();
        return result;
      },
      nb::arg("n_ranks"), nb::arg("options"),
      nb::sig("def memory_needed(n_ranks: int, **options: object) -> dict[str, int]"),
      "Returns the bytes of each rank's memory that an ExpertParallel of these options would allocate.");
}

}  // namespace switchyard::python
