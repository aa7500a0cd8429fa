// What is behind an ExpertParallel; for the files that implement it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ep_config.hpp"
#include "exchange_memory.hpp"
#include "lent_rows.hpp"
#include "local_wire.hpp"
#include "peer_deaths.hpp"
#include "peer_tables.hpp"
#include "rank_call.hpp"
#include "runtime/world_impl.hpp"
#include "switchyard/detail/base/fork.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/detail/runtime/trace_recorder.hpp"
#include "switchyard/detail/transport/transport.hpp"
#include "switchyard/expert_parallel.hpp"
#include "switchyard/row_completion.hpp"
#include "switchyard/row_readiness.hpp"

namespace switchyard {

struct ExpertParallel::Impl {
  enum class Step { kIdle, kDispatchSent, kDispatched, kCombineSent };

  // Of a rank of this process.
  struct RankState {
    ExchangeMemory memory;
    DeviceMemory peer_tables;  // what PeerTables::upload() leaves
    // What does not change from step to step: prepare_calls().
    WaitContext wait_context{};
    DispatchCall dispatch_call{};
    CombineCall combine_call{};
    std::optional<TraceRecorder> trace;
    std::atomic<const char*> call_under_way = nullptr;  // of a step
    Step step = Step::kIdle;
    std::vector<int64_t> past_counts;   // [expert]: what expert_counts() had by earlier placements
    int num_tokens = 0;                 // of the step under way
    bool has_narrowed_ids = false;      // its ids came in 64 bits
    const void* expert_rows = nullptr;  // of its combine_async
    const void* lent_rows = nullptr;    // what offer_expert_rows() has accepted for its combine
    LentRows::Found found_rows;         // where ranks find them; no addresses: they lie in the row buffers
    bool has_dispatched = false;        // a step, since the buffers were cleared
    int row_set = 0;                    // of the step under way, or the last one
    bool has_begun = false;             // a step, since create(), other than those that were recorded
    bool is_first_step = false;         // the step under way, or the last one
    bool uses_callers_streams = false;  // of the first flight: some flight does
    bool has_reported_skip = false;     // of the first flight: a step that was skipped may not be ended yet
    std::optional<FaultRecord> skip;    // of the first flight: the last one reported, until the next step
    std::unique_ptr<LentRows> lender;   // of the first flight; null: nobody else can read the caller's memory
    Status failure;
  };

  // The kernels that the calls launch: the protocol's and the formats', those that can trace if that is on.
  struct Kernels {
    const DispatchKernels* dispatch = nullptr;
    const CombineKernels* combine = nullptr;
    const CombineKernels* own_combine = nullptr;  // with the caller's own epilogue; null: there is none
    EarlyCombineKernel early_combine = {};        // CombineStart::kWithExperts
    AllReduceKernel all_reduce = {};
  };

  World& world;
  ExpertParallelConfig config;
  // Of a flight behind the first: the first, whose arenas, faults and placement it shares. Null: this is it.
  Impl* first = nullptr;
  int flight_idx = 0;
  mutable std::mutex skips_lock;  // any thread may ask for what any rank was told
  std::vector<std::unique_ptr<ExpertParallel>> later_flights;  // of the first only
  std::string protocol_reason;
  Kernels kernels;
  std::optional<ExpertPlacement> placement;  // set when the configuration is known to be valid
  ExchangeLayout layout;
  std::vector<int> members;                       // the world's rank behind each of ours
  std::shared_ptr<SymmetricMemory> arenas;        // null: reset() has freed it and could not allocate it anew
  std::vector<int> arena_members;                 // the world's ranks that have one
  uint64_t arena_capacity = 0;                    // bytes of each
  std::vector<std::unique_ptr<RankState>> ranks;  // null: a rank of another process
  std::unique_ptr<PeerDeaths> deaths;             // before the memory that it writes to
  bool has_wire = false;                          // some ranks are far, or too many for a kernel's parameters
  std::unique_ptr<emulator::LocalWire> local_wire;  // host; null: there is none, or the memory has one
  bool is_traced = false;
  uint32_t trace_events_per_block = 0;

  Impl(World& world_in, const ExpertParallelConfig& config_in);

  // Construction.
  Status choose();
  void watch_peers();
  Status look_up_kernels();
  Status look_up_own_kernels(Kernels& found) const;
  void choose_delivery();
  Status choose_launch();
  Result<int> max_resident_blocks() const;
  Status allocate();
  Status allocate_arenas();
  void use_arena(int rank);
  std::unique_ptr<LentRows> make_lender(int rank) const;
  LentMemory* lent_memory_of(int world_rank) const;
  void make_flights();
  // Tells the later flights what has changed; those are without steps then.
  void update_flights();
  Status clear_buffers();
  Status clear_local_buffers();
  Status prepare_calls(int rank);
  struct PreparedStep;
  void prepare_dispatch(int rank, const PreparedStep& prepared);
  void prepare_combine(int rank, const PreparedStep& prepared);
  WaitContext make_wait_context(int rank, const PeerTables& tables) const;

  // What follows from the configuration.
  const ProcessMark process;
  Impl& whole() { return first != nullptr ? *first : *this; }
  const Impl& whole() const { return first != nullptr ? *first : *this; }
  // What a rank has for all flights.
  CheckedSize arena_bytes() const {
    return CheckedSize(layout.arena_bytes) * CheckedSize(config.steps_in_flight);
  }
  Rank& member(int rank) const { return world.rank(members[static_cast<size_t>(rank)]); }
  RankState& state(int rank) const { return *ranks[static_cast<size_t>(rank)]; }
  int n_ranks() const { return static_cast<int>(members.size()); }
  int n_local_experts() const { return num_seats_per_rank(config, n_ranks()); }
  int num_expert_groups() const { return switchyard::num_expert_groups(config, n_ranks()); }
  int num_groups() const { return num_expert_groups() + (has_group_in_front(config) ? 1 : 0); }
  uint64_t rows_per_set() const { return layout.row_capacity / static_cast<uint64_t>(config.row_sets); }
  bool starts_with_experts() const { return config.combine_start == CombineStart::kWithExperts; }
  bool is_per_rank() const { return config.row_layout == RowLayout::kPerRank; }
  bool is_direct() const { return config.protocol == Protocol::kDirect; }
  SharedExpertTokens shared_expert_tokens(int rank, int num_tokens) const;
  // Of what would be the expert outputs of the sets in front of the step's.
  uint64_t bytes_in_front(int rank) const;
  // To the kernels of a step: the shared expert's, or the rows in front of its set, which no token has.
  SharedExpertTokens group_in_front(int rank, int num_tokens) const;
  LaunchShape launch_shape() const;
  EpShape shape_of_rank(int rank) const;
  EpShape exchange_shape_of(int rank) const;  // as its dispatch and combine know it
  // Whether the world has ranks in other processes.
  bool is_one_of_many() const { return static_cast<int>(world.local_ranks().size()) < world.n_ranks(); }
  // The ranks of this process.
  std::vector<int> local_ranks() const;
  // The arena of a rank as this process reaches it.
  std::byte* arena_of(int rank) const { return arenas->of_rank(members[static_cast<size_t>(rank)]); }
  // The part of it that this flight exchanges rows in.
  std::byte* exchange_of(int rank) const {
    std::byte* arena = arena_of(rank);
    return arena == nullptr ? nullptr : arena + static_cast<uint64_t>(flight_idx) * layout.arena_bytes;
  }
  uint64_t* poison_of(int rank) const {
    return reinterpret_cast<uint64_t*>(arena_of(rank) + layout.poison.offset);
  }
  // Whether kernels of `rank` load from and store to the memory of `peer`.
  bool is_near(int rank, int peer) const;
  Status choose_wire();
  Status choose_groups();
  void make_local_wire();
  emulator::WireEngine* wire_engine() const;
  // The ranks with which this one exchanges rows, itself among them.
  std::vector<int> peers_of(int rank) const;
  Scope signal_scope() const;

  // A call is checked, ..
  Status check_rank(const char* call, int rank) const;
  Status check_call(int rank, const char* call, Step required) const;
  // The same for a call of a step, which no other of the rank may overlap as long as the result exists.
  RankCall begin_call(int rank, const char* call, Step required);
  Status check_tokens(const char* call, int num_tokens, const void* pointer,
                      const char* name = "topk_ids") const;
  Status check_input(const char* call, const DispatchInput& input) const;
  Status check_token_format(const char* call, const DispatchInput& input) const;
  Status check_rank_waits(const char* call, const uint64_t* rank_wait_ns) const;
  Status check_rows_output(int rank, const char* call, const DispatchOutput& output) const;
  Status check_input(int rank, const char* call, const CombineInput& input) const;
  Status check_destination(int rank, const char* call, const CombineOutput& output) const;
  Status check_rows(int rank, const char* call, const DispatchOutput& output) const;
  Status check_start(int rank, const CombineInput& input, const CombineOutput& output) const;
  Status check_epilogue(const char* call, const CombineDestination& destination) const;
  Status check_expert_rows(int rank, const char* call, const void* expert_rows) const;
  int max_early_blocks(int rank) const;
  Status check_early_blocks(int rank, int num_blocks) const;
  // .. filled in ..
  DispatchCall make_dispatch_call(int rank, int num_tokens) const;
  void fill_in(int rank, const DispatchInput& input, DispatchCall& call) const;
  void fill_in(const DispatchOutput& output, DispatchCall& call) const;
  AnnotateRowsParams make_annotation(int rank, const DispatchOutput& output) const;
  CombineCall make_combine_call(int rank) const;
  void fill_in(int rank, const CombineInput& input, CombineCall& call) const;
  void fill_in(const CombineOutput& output, CombineCall& call) const;
  // Those of the epilogue that the output asks for.
  const CombineKernels& combine_to(const CombineOutput& output) const;
  // .. and enqueued; `next` is where the rank's step is then. is_dependent: instead of what the configuration
  // says.
  template <typename Call>
  Status enqueue(int rank, LaunchFunction<Call> launch, Call& call, Step next, Stream stream,
                 std::optional<bool> is_dependent = {}) const {
    RankState& own = state(rank);
    if (own.step == Step::kIdle) own.is_first_step = !own.has_begun;
    call.step.wait_context.timeout_ns = begin_call(rank, stream);
    const Rank& here = member(rank);
    const Result<StreamHandle> handle = here.handle_of(stream);
    if (!handle.ok()) return handle.status();
    const DeviceScope active = device_of(here).activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    LaunchShape shape = launch_shape();
    if (is_dependent) shape.programmatic_dependent = *is_dependent;
    SWITCHYARD_RETURN_IF_ERROR(launch(shape, handle.value(), call));
    own.has_begun |= call.step.wait_context.timeout_ns == first_timeout_ns(config);
    own.num_tokens = call.step.num_tokens;
    own.step = next;
    own.lent_rows = nullptr;
    own.has_dispatched = true;
    if (next == Step::kDispatched) note_dispatch(rank, stream);
    return Status();
  }
  // The same for dispatch, or without an output for dispatch_async, behind what its ids need.
  Status enqueue_dispatch(int rank, LaunchFunction<DispatchCall> launch, const DispatchInput& input,
                          const DispatchOutput* output, Step next, Stream stream) const;
  // The same for combine or combine_async, behind what sums rows up.
  Status enqueue_combine(int rank, LaunchFunction<CombineCall> launch, CombineCall& call, Step next,
                         Stream stream) const;

  // In front of a dispatch: makes the ids that it reads of those that it is given. Ids of 64 bits are
  // narrowed first; per rank, choose_ranks reads what is left of them.
  Status prepare_ids(int rank, const DispatchInput& input, Stream stream) const;
  Status narrow_ids(int rank, const DispatchInput& input, Stream stream) const;
  const int32_t* ids_of(int rank, const DispatchInput& input) const;  // in 32 bits
  Result<bool> is_recorded(int rank, Stream stream) const;
  // Notes a call of a step, and returns its deadline.
  uint64_t begin_call(int rank, Stream stream) const;
  // Rows per rank: what comes before and behind a dispatch (rank_choices.cpp).
  KeptChoices kept_choices(int rank) const;
  Status check_choices(const char* call, const DispatchInput& input) const;
  Status check_choices(const char* call, const DispatchOutput& output) const;
  Status choose_ranks(int rank, const DispatchInput& input, Stream stream) const;
  Status fetch_choices(int rank, const DispatchOutput& output, Stream stream) const;
  uint64_t kept_choice_bytes() const { return layout.rank_ids.bytes; }  // of a copy
  // Behind a dispatch: lays out rows that came once (sibling_rows.cpp).
  LinkedRows linked_rows(int rank) const;
  Status fill_siblings(int rank, Stream stream) const;
  // In front of a combine: sums up what is to go back as one row.
  Status reduce_siblings(int rank, const void* expert_rows, Stream stream) const;
  // Behind a dispatch: what `output` asks for besides the rows.
  Status annotate_rows(int rank, const DispatchOutput& output, Stream stream) const;
  Status count_sources(int rank, const DispatchOutput& output, Stream stream) const;
  // Steps without a combine or without tokens (reopened_steps.cpp). `mark` says which kind of step it is.
  Status check_skippable(const char* call) const;
  Status check_reopening(const char* call) const;
  Status enqueue_empty_dispatch(int rank, void (*mark)(DirectDispatchPart&), Stream stream);
  // Expert rows in the caller's memory (caller_rows.cpp).
  Status check_lending(const char* call) const;
  bool is_lent(int rank, const void* expert_rows) const {
    return expert_rows != nullptr && expert_rows == state(rank).lent_rows;
  }
  bool has_in_arena(int rank, const void* rows) const;
  void note_dispatch(int rank, Stream stream) const;
  Status exchange_offers(int rank, const CombineInput& input, Stream stream) const;
  // Waits for what calls of this rank have enqueued, on whatever streams.
  Status wait_for_calls(int rank) const;
  Status wait_for_all_calls() const;

  // When a step has failed.
  std::optional<FaultRecord> fault(int rank) const;
  // What was last reported of a step that was skipped; of the first flight.
  std::optional<FaultRecord> skip_of(int rank) const;
  void keep_skip(int rank, const std::optional<FaultRecord>& skip) const;
  // `have_all_ended`: all that calls of the rank have enqueued; otherwise steps may be under way.
  Status check_fault(int rank, bool have_all_ended);
  Status poll(int rank);
  Status fail(int rank, int reporter, const FaultRecord& record);
  Status fail_without_record(int rank, int poisoner);
  Status fail_poisoned(int rank, int poisoner);
  Status report_skipped_step(int rank);
  Status take_skipped_step(int rank);
  Status end_skipped_step(int rank);
  Status reset(const std::vector<int>& survivors, std::optional<ExpertPlacement> next_placement);
  Status reset_to(const std::vector<int>& next_members, std::optional<ExpertPlacement> next_placement);
  Status restart(const std::vector<int>& next_members);
  Status check_have_ended(const std::vector<int>& next_members) const;
  Status check_can_come_back(const std::vector<int>& next_members) const;
  Status take_members(const std::vector<int>& next_members);

  // Placements.
  bool has_table() const { return layout.seat_table.bytes > 0; }
  // The seat of an expert that this rank sends rows to, counted over all ranks; -1: it sends none.
  int seat_of(int rank, int expert) const;
  // The expert at a seat of those that the rank's kernels count: of all ranks, or its own.
  int expert_of(int rank, int seat_idx) const;
  // The expert that a kernel means in a fault or a trace: with a table it knows the seats of all ranks only.
  int named_expert(int expert_idx) const;
  Status upload_seats(int rank) const;
  Status check_new_placement(const ExpertPlacement& next) const;
  Status set_placement(const ExpertPlacement& next);
  Result<std::vector<int64_t>> expert_counts(int rank) const;
  Status keep_expert_counts(int rank);
  Status clear_expert_counts(int rank) const;
};

}  // namespace switchyard
