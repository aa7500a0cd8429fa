#include "trace_file.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "files/json_object.hpp"

namespace switchyard::tools {
namespace {

// What a trace says of a wait besides its time.
struct WaitFacts {
  int late_rank;
  int last_expert;
  int num_waits;
  const char* outcome;
};

struct Slice {
  uint64_t begin_ns;
  uint64_t end_ns;
  std::string name;
  std::string category;
  std::optional<WaitFacts> wait;
  std::optional<int> step_idx;
};

// An interval in which one rank was the next to arrive.
struct WaitStretch {
  TraceEvent last;
  int num_waits;
};

// The waits of a block's threads overlap, but a row shows one slice at a time. So the row shows which rank
// arrived next: each wait is drawn from the end of the one before it, in the order in which they ended.
std::vector<WaitStretch> line_up(std::vector<TraceEvent> waits, uint64_t from_ns, uint64_t to_ns) {
  std::sort(waits.begin(), waits.end(),
            [](const TraceEvent& a, const TraceEvent& b) { return a.end_ns < b.end_ns; });
  std::vector<WaitStretch> stretches;
  uint64_t shown_until_ns = from_ns;
  for (TraceEvent wait : waits) {
    wait.begin_ns = std::max(wait.begin_ns, shown_until_ns);
    wait.end_ns = std::min(wait.end_ns, to_ns);
    WaitStretch* previous = stretches.empty() ? nullptr : &stretches.back();
    const bool goes_on = previous != nullptr && previous->last.late_rank == wait.late_rank &&
                         previous->last.name == wait.name && previous->last.end_ns >= wait.begin_ns;
    if (goes_on) {
      wait.begin_ns = previous->last.begin_ns;
      wait.end_ns = std::max(wait.end_ns, previous->last.end_ns);
      *previous = {wait, previous->num_waits + 1};
    } else if (wait.begin_ns < wait.end_ns) {
      stretches.push_back({wait, 1});
    } else {
      continue;  // it ended together with another one, which is shown
    }
    shown_until_ns = wait.end_ns;
  }
  return stretches;
}

Slice slice_of(const TraceEvent& role) {
  return {role.begin_ns, role.end_ns, to_string(role.name), to_string(role.phase), {}, {}};
}

Slice slice_of(const WaitStretch& stretch, int rank) {
  const TraceEvent& wait = stretch.last;
  const char* outcome = wait.name == TraceName::kTimedOutWait    ? "timed out"
                        : wait.name == TraceName::kAbandonedWait ? "abandoned"
                                                                 : "arrived";
  std::string name = wait.late_rank == rank ? "wait for own blocks"
                     : wait.late_rank < 0   ? "wait"
                                            : "wait for rank " + std::to_string(wait.late_rank);
  if (wait.name != TraceName::kWait) name += std::string(": ") + outcome;
  const WaitFacts facts{wait.late_rank, wait.expert, stretch.num_waits, outcome};
  return {wait.begin_ns, wait.end_ns, name, to_string(wait.phase), facts, {}};
}

bool comes_first(uint64_t begin_a, uint64_t end_a, uint64_t begin_b, uint64_t end_b) {
  return begin_a != begin_b ? begin_a < begin_b : end_a > end_b;
}

// The row of a block: outer roles in sequence, and inside them the roles that they call and the block's
// waits.
std::vector<Slice> arrange(const BlockTrace& block, int rank) {
  std::vector<TraceEvent> roles, waits, outer;
  for (const TraceEvent& event : block.events) (is_wait(event.name) ? waits : roles).push_back(event);
  std::sort(roles.begin(), roles.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return comes_first(a.begin_ns, a.end_ns, b.begin_ns, b.end_ns);
  });
  std::vector<Slice> slices;
  for (const TraceEvent& role : roles)
    if (outer.empty() || role.begin_ns >= outer.back().end_ns)
      outer.push_back(role);
    else
      slices.push_back(slice_of(role));

  // Thread 0 records when a role ends, but other threads may have waited longer. A wait that lies in no role,
  // because the role's event did not fit or thread 0 began it late, is drawn alone, in the gap behind the
  // role before it.
  std::vector<std::vector<TraceEvent>> inside(outer.size()), behind(outer.size() + 1);
  for (const TraceEvent& wait : waits) {
    const auto later =
        std::upper_bound(outer.begin(), outer.end(), wait.end_ns,
                         [](uint64_t end_ns, const TraceEvent& role) { return end_ns < role.begin_ns; });
    const size_t next = static_cast<size_t>(later - outer.begin());
    const bool is_inside = next > 0 && outer[next - 1].phase == wait.phase;
    (is_inside ? inside[next - 1] : behind[next]).push_back(wait);
  }
  const auto add_waits = [&](std::vector<TraceEvent>& of_gap, uint64_t from_ns, uint64_t to_ns) {
    for (const WaitStretch& stretch : line_up(std::move(of_gap), from_ns, to_ns))
      slices.push_back(slice_of(stretch, rank));
  };
  uint64_t shown_until_ns = 0;
  for (size_t i = 0; i <= outer.size(); ++i) {
    add_waits(behind[i], shown_until_ns, i < outer.size() ? outer[i].begin_ns : UINT64_MAX);
    if (i == outer.size()) break;
    const uint64_t next_begin_ns = i + 1 < outer.size() ? outer[i + 1].begin_ns : UINT64_MAX;
    for (const TraceEvent& wait : inside[i])
      outer[i].end_ns = std::max(outer[i].end_ns, std::min(wait.end_ns, next_begin_ns));
    slices.push_back(slice_of(outer[i]));
    add_waits(inside[i], outer[i].begin_ns, outer[i].end_ns);
    shown_until_ns = outer[i].end_ns;
  }
  return slices;
}

// Viewers require that every slice of a row ends within the slice in which it begins.
void nest(std::vector<Slice>& slices) {
  std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return comes_first(a.begin_ns, a.end_ns, b.begin_ns, b.end_ns);
  });
  std::vector<uint64_t> open_ends_ns;
  for (Slice& slice : slices) {
    while (!open_ends_ns.empty() && open_ends_ns.back() <= slice.begin_ns) open_ends_ns.pop_back();
    if (!open_ends_ns.empty()) slice.end_ns = std::min(slice.end_ns, open_ends_ns.back());
    open_ends_ns.push_back(slice.end_ns);
  }
}

struct Row {
  int process_idx;
  int thread_idx;
  std::string name;
  std::vector<Slice> slices;
};

double microseconds(uint64_t ns) { return static_cast<double>(ns) / 1e3; }

// An event of a row. Perfetto gives process 0 and thread 0 a meaning of their own: ours begin at 1.
JsonObject event_of(const char* kind, const std::string& name, int process_idx, int thread_idx) {
  JsonObject event;
  event.add("ph", kind).add("name", name).add("pid", process_idx + 1).add("tid", thread_idx + 1);
  return event;
}

// What the viewer calls a row or a process, and where it shows it.
template <typename Value>
std::string metadata(const char* name, int process_idx, int thread_idx, const char* key, const Value& value) {
  JsonObject args;
  args.add(key, value);
  return event_of("M", name, process_idx, thread_idx).add("args", std::move(args)).to_line();
}

std::string complete_event(const Row& row, const Slice& slice, uint64_t origin_ns) {
  JsonObject args;
  if (slice.step_idx) args.add("step", *slice.step_idx);
  if (slice.wait)
    args.add("late_rank", slice.wait->late_rank)
        .add("last_expert", slice.wait->last_expert)
        .add("waits", slice.wait->num_waits)
        .add("outcome", slice.wait->outcome);
  return event_of("X", slice.name, row.process_idx, row.thread_idx)
      .add("cat", slice.category)
      .add("ts", microseconds(slice.begin_ns - origin_ns))
      .add("dur", microseconds(slice.end_ns - slice.begin_ns))
      .add("args", std::move(args))
      .to_line();
}

// The phases of one rank of this process, by its index there, without those that it did not reach.
Row phases_of(const RunTrace& trace, int local_idx) {
  Row row{trace.first_rank + local_idx, 0, "phases", {}};
  for (const auto& [step_idx, phase] : trace.phases) {
    const auto& [begin_ns, end_ns] = phase.of_rank[static_cast<size_t>(local_idx)];
    if (end_ns != 0) row.slices.push_back({begin_ns, end_ns, phase.name, "phase", {}, step_idx});
  }
  return row;
}

std::vector<Row> make_rows(const RunTrace& trace) {
  std::vector<Row> rows;
  for (int local_idx = 0; local_idx < static_cast<int>(trace.ranks.size()); ++local_idx) {
    const int rank = trace.first_rank + local_idx;
    rows.push_back(phases_of(trace, local_idx));
    const std::vector<BlockTrace>& blocks = trace.ranks[static_cast<size_t>(local_idx)].blocks;
    for (size_t block = 0; block < blocks.size(); ++block)
      rows.push_back({rank, static_cast<int>(block) + 1, "block " + std::to_string(block),
                      arrange(blocks[block], rank)});
  }
  for (Row& row : rows) nest(row.slices);
  return rows;
}

}  // namespace

uint64_t RunTrace::num_dropped() const {
  uint64_t num_dropped = num_dropped_phases;
  for (const RankTrace& rank : ranks)
    for (const BlockTrace& block : rank.blocks) num_dropped += block.num_dropped;
  return num_dropped;
}

// One event per line, each written when it is made: all of them as objects would take many times the memory
// of the file.
std::string to_json(const RunTrace& trace) {
  const std::vector<Row> rows = make_rows(trace);
  uint64_t origin_ns = UINT64_MAX;
  for (const Row& row : rows)
    for (const Slice& slice : row.slices) origin_ns = std::min(origin_ns, slice.begin_ns);

  std::string events;
  const auto add = [&](const std::string& event) {
    events.append(events.empty() ? "" : ",\n").append(event);
  };
  for (size_t i = 0; i < trace.ranks.size(); ++i) {
    const int rank = trace.first_rank + static_cast<int>(i);
    add(metadata("process_name", rank, 0, "name", "rank " + std::to_string(rank)));
    add(metadata("process_sort_index", rank, 0, "sort_index", rank));
  }
  for (const Row& row : rows) {
    add(metadata("thread_name", row.process_idx, row.thread_idx, "name", row.name));
    add(metadata("thread_sort_index", row.process_idx, row.thread_idx, "sort_index", row.thread_idx));
    for (const Slice& slice : row.slices) add(complete_event(row, slice, origin_ns));
  }
  JsonObject about;
  about.add("target", to_string(trace.target))
      .add("device", trace.device)
      .add("origin_ns", origin_ns)
      .add("dropped_events", trace.num_dropped())
      .add("clock", trace.target == Target::kHost ? "one for all ranks" : "of the GPU of each rank");
  return "{\"displayTimeUnit\":\"ns\",\n\"otherData\":" + about.to_line() + ",\n\"traceEvents\":[\n" +
         events + "\n]}\n";
}

Status write_trace(const char* command, const OutputName& output, const RunTrace& trace) {
  if (trace.num_dropped() > 0)
    std::fprintf(stderr, "switchyard %s: --trace: %llu events did not fit; each row has its first %u\n",
                 command, static_cast<unsigned long long>(trace.num_dropped()), kMaxTraceEvents);
  return write_output(output, to_json(trace));
}

}  // namespace switchyard::tools
