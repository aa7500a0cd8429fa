// ExpertParallel: dispatch and combine for all ranks of a world. A step is a dispatch, then a combine, on
// every rank:
//
//   dispatch(rank, input, output)      = dispatch_async + dispatch_wait in one launch
//   combine(rank, input, destination)  = combine_async + combine_wait in one launch
//
// Ownership. An ExpertParallel owns the memory through which ranks exchange rows, and the row_buffers(). The
//   caller owns the World, which must outlive it, and everything that an input or output points to.
// Streams. Every call of a step enqueues one kernel, on the rank's own stream (Rank::stream()) or on the one
//   that it is given, and returns: it runs behind what is on that stream and before what comes behind it. A
//   dispatch that is asked for src_ranks or for unwritten rows enqueues a second one, and so does one with
//   64-bit ids; per rank, dispatch_async enqueues one in front of its own, and a dispatch that is asked for
//   row_experts or row_weights one behind it. So does every dispatch whose rows the receiver lays out
//   (RowDelivery); combine_async enqueues one in front of its own with reduce_at_owner. All are on the same
//   stream. Nothing else is ordered; in particular, ranks wait for each other only inside the kernels. Calls
//   of one step on several streams must be ordered by the caller, by events. No call of a step waits, copies
//   or allocates, so steps may be captured, by World::capture() or by the caller (cudaStreamBeginCapture). On
//   a GPU all ranks must get to run at once: docs/architecture.md says in which order to enqueue.
// Flights. With steps_in_flight of N as many steps may be under way at once, each in a flight with cells and
//   buffers of its own: flight(0), which is the object itself, to flight(N - 1). A flight has the calls of a
//   step, and its row buffers. Their calls may be interleaved in any order, on one stream or on several; on
//   one stream, kernels that wait for a peer must come in the same order on all ranks, since each holds up
//   those behind it. Calls that are not for a step mean all flights, whichever they are made on.
// Sends that return. dispatch_async and combine_async of the slotted protocol, and combine_async of the
//   direct one, wait for no peer: they end when this rank's rows have been sent, whether others have begun
//   the step or not. Only dispatch_wait and combine_wait find out, at their deadline, that a peer never came.
//   The direct dispatch_async waits for the counts of all ranks.
// Threads. One thread may make the calls of all ranks, or each rank may have a thread of its own: calls for
//   different ranks may overlap. Calls for one rank, in whichever flights, and those for all ranks
//   (synchronize() without a rank, warm_up, reset, enable_trace, take_trace, the destructor), must not
//   overlap with any other for the same rank.
// Errors. A call that is wrong in itself returns an error that names argument, value and limit; nothing has
//   been enqueued then, and the right call may follow. What only a kernel can find (a bad id, a peer that
//   does not arrive, more rows than the output holds) is returned by synchronize() and poll(), also if the
//   kernel is part of a graph that the caller replays. No wait for a peer's signal lasts longer than
//   timeout_ns (first_timeout_ns in the first step). Between groups, NVSHMEM also waits for its network, with
//   no deadline. A rank that is poisoned finishes no further step until reset().
// Lifetimes. What an input or output points to must stay valid until the step has ended on that rank, or as
//   long as a graph that captured it is launched. Row buffers are valid until the ExpertParallel is destroyed
//   or reset with fewer ranks. The destructor waits for what is on the streams of all ranks; if calls were
//   given streams of the caller's, it waits for the whole device, as do all calls that say that they wait for
//   the rank's stream.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/token_format.hpp"
#include "switchyard/types/expert_parallel.hpp"
#include "switchyard/types/expert_placement.hpp"
#include "switchyard/types/fault.hpp"
#include "switchyard/types/trace.hpp"
#include "switchyard/world.hpp"

namespace switchyard {

struct OwnEpilogue;
struct OwnFormat;
struct RowCompletion;
struct RowReadiness;

// How rows travel. Slotted: messages go to receive slots, and the receiver copies them to rows in any memory.
// Direct: ranks exchange counts first, and then store every row at its final address in row_buffers().
enum class Protocol { kAutomatic, kSlotted, kDirect };

const char* to_string(Protocol protocol);

// Where the rows of a rank's groups lie. Ragged: one group behind the other. Masked: every group has memory
// for max_rows_per_expert rows, so that group g begins at row g x that many, whatever has arrived.
// Per rank: a token comes once to each rank that owns some of its experts. All of a rank's rows are one
// group, by source rank, then token; DispatchOutput::row_experts and row_weights say which local experts each
// is for. The rank sums up what they make of a row, weighted, and combine adds the sums of the token's ranks:
// one row per (token, rank) crosses in each direction, and there is always room (ranks x tokens). This layout
// needs the direct protocol, and ranks that reach each other's memory.
enum class RowLayout { kRagged, kMasked, kPerRank };

const char* to_string(RowLayout layout);

// Who writes the rows of a token that has several on a rank, for its experts there. Sender: the token's rank
// stores each. Receiver: it stores the first, and the rank that owns them copies it to the others, behind
// dispatch: a token crosses a link once. Rows, offsets and bits are the same. Automatic: the sender where all
// ranks share a device, or the emulator, and no wire; else the receiver. For the direct protocol; per rank,
// or in a format that encodes by expert, no two rows of a token on a rank are alike, so the sender stores
// them.
enum class RowDelivery { kAutomatic, kSender, kReceiver };

const char* to_string(RowDelivery delivery);

// When combine takes the rows of an expert: when those of all are complete, that is, behind whatever is in
// front of it on the stream; or when that expert's are (row_completion.hpp), so that it begins while other
// experts work. The latter is for the fused combine of the direct protocol, weighted and in bf16, between
// ranks that reach each other's memory. Its blocks hold their multiprocessors while they wait, so there are
// at most as many of all ranks as the device has; the output has the same bits.
enum class CombineStart { kBehindExperts, kWithExperts };

const char* to_string(CombineStart start);

// Whether there is a shared expert, to which every token goes on its own rank. If it is fused, its rows are
// group 0 of what dispatch writes.
enum class SharedExpert { kNone, kFused };

// Whether tokens go to the ranks of their experts, or every rank has all tokens and works on those that go to
// its own experts. In the latter case combine writes partial sums, which all_reduce() adds up.
enum class Routing { kAllToAll, kSkipAllToAll };

struct ExpertParallelConfig {
  int n_experts = 0;  // of the model
  int top_k = 0;
  int hidden = 0;               // a multiple of 8
  int max_tokens_per_rank = 0;  // no rank dispatches more in a step
  int n_sms = 0;        // blocks per launch and rank; 0: the device's multiprocessors shared by its ranks
  int num_threads = 0;  // per block, a multiple of 32; 0: chosen by target and tokens
  uint64_t timeout_ns = 5'000'000'000;
  // The same for the first step after create(), which a rank may begin a minute after another: kernels are
  // compiled, weights are loaded. 0: 60 s if timeout_ns is left at 5 s, else timeout_ns. A step that is
  // captured never counts as the first.
  uint64_t first_timeout_ns = 0;
  // CUDA: a launch may become resident before the one in front of it has ended (programmatic dependent
  // launch). Two launches of every rank must then fit on the device at once. It is off by default: it pays
  // only where nothing else wants the multiprocessors. (CombineInput::follows_experts says so for one
  // launch.)
  bool dependent_launch = false;
  Protocol protocol = Protocol::kAutomatic;
  // Rows of row_buffers(), as a multiple of a rank's even share (max_tokens_per_rank x top_k). 0: enough for
  // the worst case, so that no step is lost; where there is no memory for that, create() fails and says how
  // much it is, and which settings need less. With a factor, a direct step that does not fit is skipped on
  // all ranks, with an error that says so; the next step may follow.
  double capacity_factor = 0;
  RowLayout row_layout = RowLayout::kRagged;
  // 1..256: groups begin at multiples of it, and of what the format asks for.
  int row_alignment = 1;
  // Masked: the rows of each group. 0: enough for every token of every rank once. It is rounded up to the
  // alignment. A step in which a group has more is treated like one that exceeds the capacity.
  int max_rows_per_expert = 0;
  // Per rank, 1..8: there is room for the rows of so many steps, one behind the other in row_buffers().
  // DispatchInput::row_set says which of them the rows that come to this rank in a step go to; those in the
  // others stay as they are. With more than one, group 0 of a dispatch is what lies in front of the set's
  // rows, and group 1 are the rows. There is no shared expert then, and expert_outputs are for one step.
  int row_sets = 1;
  RowDelivery row_delivery = RowDelivery::kAutomatic;
  // Whether a rank sums up what its experts made of another rank's token before it goes back: weighted, in
  // fp32, in the order of k, rounded once to bf16 or encoded to fp8 (combine_format), so that one row per
  // (token, rank) crosses. The token's rank adds these sums, rows of ranks that have one, weighted, in the
  // order of their first k, and among them its own rows. The output may therefore differ in its last bits
  // from one without it. Combine overwrites expert_rows, weights travel with dispatch
  // (DispatchInput::topk_weights), and there is no unreduced output. For the direct protocol; not per rank,
  // where the caller sums up.
  bool reduce_at_owner = false;
  CombineStart combine_start = CombineStart::kBehindExperts;
  // The format in which tokens are sent, and in which dispatch writes rows (docs/formats.md).
  TokenFormatKind dispatch_format = TokenFormatKind::kBF16;
  float input_scale = 1;  // NVFP4: the tensor scale, 2^-100..2^100
  // NVFP4 by expert: [n_experts], the tensor scale of what goes to each; input_scale is the shared expert's.
  std::vector<float> expert_input_scales = {};
  // The format in which expert rows are sent back. With fp8, the slotted protocol encodes rows of bf16; in
  // the direct protocol the experts write encoded rows (RowBuffers::encoded_outputs).
  CombineFormat combine_format = CombineFormat::kBF16;
  SharedExpert shared_expert = SharedExpert::kNone;
  Routing routing = Routing::kAllToAll;
  // Ranks [0, P), [P, 2P), .. store into each other's memory; between these groups rows go by puts and
  // signals over the transport's wire. It must divide the number of ranks. 0: stores are used wherever
  // they reach.
  int p2p_world_size = 0;
  // Where the all-to-all is skipped: ranks [0, W), [W, 2W), .. have the same tokens, share those of the
  // shared expert evenly, and their partial outputs are added up, by all_reduce() or by the caller. It must
  // divide the number of ranks; 0: all ranks. 1, the default: the caller adds up, and every rank's shared
  // expert works on all of its tokens. A group's sum is whole if its ranks hold all experts; the sums of
  // groups that hold some are the caller's to add. Of an expert's replicas in a group one works, number
  // (expert) % (how many).
  int allreduce_world_size = 1;
  // A token format of the caller's own, own_format<Format>() of own_kernels.hpp; dispatch_format must be left
  // bf16. Null: there is none.
  const OwnFormat* own_format = nullptr;
  // The type of the epilogues that combine may be given, own_epilogue<Epilogue>(); not where the all-to-all
  // is skipped, since combine leaves partial sums then. Null: only those of the library.
  const OwnEpilogue* own_epilogue = nullptr;
  // Which ranks hold which experts. Without a value, every rank holds equally many, in ascending order
  // (ExpertPlacement::even). Rows come by seat: local expert s of rank r is placement().expert_at({r, s}).
  std::optional<ExpertPlacement> placement = {};
  // Seats to reserve on every rank, for set_placement(); 0: as many as the placement needs. The seats of all
  // ranks together are at most 1024.
  int max_experts_per_rank = 0;
  // Whether dispatch counts the rows of each expert, for expert_counts().
  bool counts_experts = false;
  // Steps that may be under way at once, 1..8; flight() has the calls of each. Every flight has exchange
  // buffers, and on a GPU as many launches of each rank must fit at once: if n_sms is 0, flights share the
  // multiprocessors.
  int steps_in_flight = 1;
};

// The protocol that kAutomatic stands for, and why. Only what all ranks share decides.
struct ProtocolChoice {
  Protocol protocol;
  std::string reason;
};
ProtocolChoice choose_protocol(const ExpertParallelConfig& config, int n_ranks);

// What tokens come as. Encoded: in dispatch_format already, as codes and scales, which are sent as they are.
// fp16 is refused.
enum class InputFormat { kBF16, kEncoded, kFP16 };

const char* to_string(InputFormat format);

// Pointers are into the rank's memory, 16-byte aligned, and must stay valid until the step has ended.
struct DispatchInput {
  // [num_tokens][hidden] of bf16; encoded: [num_tokens], the codes of a row of dispatch_format each.
  const void* tokens = nullptr;
  const int32_t* topk_ids = nullptr;  // [num_tokens][top_k]; -1 is padding, repeats are legal
  int num_tokens = 0;
  // [num_tokens][top_k]: per rank, or reduced at the owner, they travel with the rows; otherwise not needed.
  const float* topk_weights = nullptr;
  // Instead of topk_ids. A kernel in front of the dispatch makes 32-bit ids of them, which combine reads,
  // too: CombineOutput::topk_ids is null then.
  const int64_t* topk_ids_64 = nullptr;
  // From a token to the next, a multiple of 16; 0: they are contiguous.
  uint64_t token_stride_bytes = 0;
  InputFormat format = InputFormat::kBF16;
  // Encoded: [num_tokens], the scales of a token side by side, and the bytes from a token's to the next's; 0:
  // they are contiguous.
  const void* scales = nullptr;
  uint64_t scales_stride_bytes = 0;
  // NVFP4: the tensor scale, instead of the configuration's. It must be 2^-100..2^100, which is not checked.
  // An alignment of 4 bytes is enough. Whoever decodes the rows must know the scale.
  const float* input_scale = nullptr;
  // 0..row_sets - 1: where in this rank's row_buffers() the rows of the step begin, row_set x
  // ExpertParallel::rows_per_set(). Every rank chooses for itself.
  int row_set = 0;
  // As DispatchOutput::rank_wait_ns, for the waits of dispatch_async; dispatch has only that of its output.
  uint64_t* rank_wait_ns = nullptr;
};

// The rows of group g begin at row_offsets[g], in order of source rank, and there are row_counts[g] of them.
// Behind them, up to row_offsets[g + 1], come rows that only fill up the group: for its alignment, or,
// masked, to its capacity. They are not written unless `unwritten` asks for it. Groups are the local experts;
// a fused shared expert is group 0, in front of them. Per rank, the tokens of all local experts are one
// group.
struct DispatchOutput {
  void* rows = nullptr;             // [max_rows][hidden] of bf16 or of the format's codes
  int32_t* src_info = nullptr;      // [max_rows][2]: source token, k
  uint32_t max_rows = 0;            // max_recv_rows() is always enough, for each of row_sets
  uint32_t* row_offsets = nullptr;  // [num_groups() + 1]
  int32_t* expert_ids = nullptr;    // [num_groups()]: 0, 1, ..
  void* scales = nullptr;           // of formats that have them, for max_rows rows
  // Tiled scales: [num_groups()], the scale row of each group's first row; null: not wanted.
  uint32_t* scale_row_offsets = nullptr;
  uint32_t* row_counts = nullptr;  // [num_groups()]; null: not wanted
  // [max_rows]: the rank that each row came from; behind a group's rows -1. Null: not wanted.
  int32_t* src_ranks = nullptr;
  UnwrittenRows unwritten = UnwrittenRows::kLeft;
  // Per rank: [rows_per_set()][top_k], for every row of the group of tokens the local expert of each choice,
  // and its weight; -1 and 0 where the choice is padding or another rank's. src_info has the first choice
  // that is local. Null: not wanted.
  int32_t* row_experts = nullptr;
  float* row_weights = nullptr;
  // Per rank: [1 + n_local_experts()]: the rows of the group of tokens, and then how many of them chose each
  // local expert, are added to what is there. Null: not wanted.
  int32_t* expert_totals = nullptr;
  // Direct protocol: [n_local_experts()][n_ranks()], per rank [n_ranks()]: where in their group the rows of
  // each source rank begin, in the upper 32 bits, and how many there are. Null: not wanted.
  uint64_t* source_ranges = nullptr;
  // Direct protocol: [n_local_experts()], per rank [1]: the rows of each group are added to what is there.
  // Null: not wanted.
  int32_t* row_totals = nullptr;
  // [n_ranks()]: the nanoseconds for which the call has waited for each other rank are added to its entry. A
  // wait begins when the first block of the kernel has nothing left to do before it, and ends for each rank
  // when that block sees the rank's signal: a rank that comes 10 ms late adds 10 ms to its entry, and those
  // that came in time add next to nothing. Waits for several ranks overlap, so their sum means little. The
  // slotted protocol waits once, in dispatch_wait, for messages. The direct one waits twice: for the counts
  // of each rank in dispatch_async, where a rank that begins late shows, and for its rows in dispatch_wait.
  // The entries of the rank itself, and of a rank that did not come, stay as they are. Calls of one rank that
  // may run at the same time, on several streams, need an array each. It must be null where the all-to-all
  // is skipped, since no rank waits for another there. Null: not wanted.
  uint64_t* rank_wait_ns = nullptr;
};

struct CombineInput {
  // [rows][hidden] of bf16, row by row the result for DispatchOutput::rows; per rank, the weighted sum of
  // what the row's local experts made of it. Direct with combine_format fp8: [rows][combine_message_bytes()],
  // an encoded token each (docs/formats.md).
  const void* expert_rows = nullptr;
  // As dispatch wrote it. The direct protocol has its own and does not need it.
  const int32_t* src_info = nullptr;
  // With CombineStart::kWithExperts: the launch in front of combine on its stream is the one that completes
  // the rows, such as a GroupedMatmul with `completion`. It was behind everything else that combine reads
  // when it let the next launch in. Combine may then be resident while it still runs.
  bool follows_experts = false;
  // Direct protocol, no wire: combine ends when every rank has read this rank's rows, so that whoever has
  // lent them (offer_expert_rows) may write to them behind it, without a reopen_step. All ranks ask for it,
  // or none does. combine_async has no such end.
  bool awaits_readers = false;
};

struct CombineOutput {
  // As dispatched; not needed per rank, or if those were of 64 bits.
  const int32_t* topk_ids = nullptr;
  const float* topk_weights = nullptr;  // [num_tokens][top_k]; not needed unreduced or per rank
  int num_tokens = 0;                   // as dispatched
  CombineDestination destination = {};  // of an epilogue of one's own: own_destination()
  // As DispatchOutput::rank_wait_ns: both protocols wait once, in combine_wait, for what each rank sends
  // back; with CombineStart::kWithExperts for its combine to begin, and not for its experts. The wait for
  // readers is not counted.
  uint64_t* rank_wait_ns = nullptr;
};

// What the experts made of the rows that dispatch wrote, in memory of the caller's.
struct ExpertRows {
  const void* rows = nullptr;  // [num_rows][hidden] of bf16
  uint64_t num_rows = 0;       // a step that has rows behind them is a fault (kNoExpertRows)
  // 0: they lie as those of row_buffers(); else those of each group begin at a multiple of so many rows.
  uint32_t rows_per_group = 0;
  const uint32_t* row_offsets = nullptr;  // as that dispatch wrote them
  const uint32_t* row_counts = nullptr;   // the same
};

// Memory for the rows of one rank, owned by ExpertParallel.
struct RowBuffers {
  bf16* rows;         // [max_rows][hidden], for DispatchOutput; null where rows are not bf16
  int32_t* src_info;  // [max_rows][2], for DispatchOutput and CombineInput
  // [rows_per_set()][hidden], for CombineInput; `rows` will do for experts that work in place.
  bf16* expert_outputs;
  uint32_t max_rows;
  std::byte* encoded_rows;     // `rows` of any format
  std::byte* scales;           // null where the format has none
  std::byte* encoded_outputs;  // direct with combine_format fp8: for CombineInput, and expert_outputs is null
  // NVFP4 by expert: the tensor scales of the local experts' rows, which follow the placement; else null.
  const float* expert_tensor_scales;
};

// Bytes of a rank's memory, without a few hundred bytes of addresses and fault records.
struct MemoryNeeded {
  uint64_t exchange = 0;     // what create() allocates; direct: with the row buffers
  uint64_t row_buffers = 0;  // what row_buffers() allocates in addition, the first time: slotted

  uint64_t total() const { return exchange + row_buffers; }
};

// Where the tokens of a rank would go, for callers who ask that before any ExpertParallel is made, as
// DeepEP's interface does; a dispatch needs none of it. Experts lie evenly on the ranks of the world. Ids
// that are no expert's count nowhere. Pointers are into the rank's memory, those of inputs 16-byte aligned.
struct RoutingInput {
  const int64_t* topk_ids = nullptr;  // [num_tokens][top_k]
  int num_tokens = 0;
  int top_k = 0;
  int n_experts = 0;
};
struct RoutingCounts {
  int32_t* tokens_of_rank = nullptr;     // [n_ranks]: tokens with an expert there, added to what is there
  int32_t* choices_of_expert = nullptr;  // [n_experts]: how often it is chosen, added to what is there
  uint8_t* is_token_in_rank = nullptr;   // [num_tokens][n_ranks]: 1 if the token has an expert there, else 0
};

class ExpertParallel {
 public:
  // Enqueues a kernel that counts where the tokens of a rank would go.
  static Status count_routing(World& world, int rank, const RoutingInput& input, const RoutingCounts& counts,
                              Stream stream = {});
  // Returns what create() and row_buffers() would allocate on each rank, to the byte, and allocates nothing.
  static Result<MemoryNeeded> memory_needed(const ExpertParallelConfig& config, int n_ranks);
  // Returns what num_groups() of what create() makes would be.
  static Result<int> num_groups(const ExpertParallelConfig& config, int n_ranks);
  // Allocates the exchange buffers of every rank and returns when all of them are ready to receive.
  static Result<std::unique_ptr<ExpertParallel>> create(World& world, const ExpertParallelConfig& config);
  // The same with the configuration that each rank was given: ranks that differ are refused, with the
  // rank and the field named.
  static Result<std::unique_ptr<ExpertParallel>> create(
      World& world, const std::vector<ExpertParallelConfig>& config_of_rank);
  ~ExpertParallel();

  // A flight, 0..steps_in_flight - 1, which the object owns; 0 is the object itself.
  Result<ExpertParallel*> flight(int flight_idx);

  // Whether a dispatch may come next on the rank; else what it would say.
  Status check_may_dispatch(int rank) const;

  // The calls of a step, in this order: dispatch, or its two halves; combine, or its two halves. A call out
  // of order is an error that names the one that must come. `_async` sends what this rank has for others;
  // `_wait` ends when all that others have for it has arrived.
  Status dispatch_async(int rank, const DispatchInput& input, Stream stream = {});
  Status dispatch_wait(int rank, const DispatchOutput& output, Stream stream = {});
  Status dispatch(int rank, const DispatchInput& input, const DispatchOutput& output, Stream stream = {});
  Status combine_async(int rank, const CombineInput& input, Stream stream = {});
  Status combine_wait(int rank, const CombineOutput& output, Stream stream = {});
  Status combine(int rank, const CombineInput& input, const CombineOutput& output, Stream stream = {});

  // Direct protocol, between ranks that reach each other's memory. Ends a step without its combine, behind
  // dispatch or dispatch_wait: nothing is enqueued, and the next dispatch may follow. Every rank of the step
  // does the same.
  Status abandon_step(int rank);
  // The same protocol. Opens a step whose rows are those of the rank's last dispatch, so that combine may
  // follow, also if one did before. It enqueues a dispatch without tokens, and is called by every rank
  // instead of one. A step that was skipped has nothing to combine: it remains skipped on all ranks, whether
  // or not they know of it, and synchronize() says so, again if it has before. With
  // CombineStart::kWithExperts it is refused: nobody would complete the rows again.
  Status reopen_step(int rank, Stream stream = {});
  // The same protocol. Takes part in a step without tokens, instead of a dispatch, and has all ranks skip it:
  // for a rank that cannot do what the others expect of it, such as one with more than max_tokens_per_rank,
  // so that they need not wait for it until their deadline. The other ranks dispatch, or call it off as well.
  // synchronize() and poll() of every rank name the rank, once, as a step that is over capacity is reported.
  // Nothing is poisoned, combine does nothing, and the next step may follow.
  Status call_off_step(int rank, Stream stream = {});
  // Direct protocol with a combine_format of bf16: enqueues a copy of the experts' rows, as many as the step
  // has, to RowBuffers::expert_outputs, where combine finds them. Behind dispatch, dispatch_wait or
  // reopen_step.
  Status store_expert_rows(int rank, const ExpertRows& rows, Stream stream = {});
  // The same kind of step: asks whether peers can read `rows`, [rows][hidden] in memory of the caller's,
  // where they are. If so, the rank's next combine or combine_async may be given them, and they must stay as
  // they are until the rank's next dispatch or reopen_step has ended, or a combine that awaits its readers
  // (CombineInput::awaits_readers). Rows in row_buffers() can be read, and
  // by ranks of one process any. Those of others must have opened the allocation, one of cudaMalloc's, which
  // this call asks them for, and which they do in their next combine: until then the answer is false, and the
  // rows have to be copied. Eight allocations of a rank are open at a time, and are not given back to the GPU
  // while they are; a graph that was captured keeps those that it reads for as long as this object lives. To
  // open a ninth the call waits for the rank's stream and closes one that has not been used for long; in a
  // recording the answer remains false. A process with several of the ranks opens nothing of other processes,
  // nor they of it. If ranks of one process are on several GPUs, the memory must be cudaMalloc's, too. Ranks
  // may differ in what they do.
  Result<bool> offer_expert_rows(int rank, const void* rows, Stream stream = {});

  // Completes a step that skipped the all-to-all: [num_tokens][hidden] becomes the sum over the ranks of its
  // group (allreduce_world_size), in fp32 in the order of ranks, rounded once. Every rank of the group calls
  // it, with as many tokens as it dispatched. A rank with another number of tokens is a fault that names it.
  Status all_reduce(int rank, bf16* values, int num_tokens, Stream stream = {});

  // Loads every kernel that the calls can launch, and runs a step without tokens on all ranks, with the
  // deadline of the first step if none came before; returns when it has ended. Between two steps, by all
  // processes.
  Status warm_up();

  // Waits for the rank's stream. It returns the fault that this rank found, or that another rank found first;
  // every further call then fails until reset(). It also returns, once, that a step was skipped because it
  // was over capacity or was called off; the next step may follow.
  Status synchronize(int rank);
  // The same, but waits for this stream only. A step that was skipped is reported, but still under way:
  // combine, which does nothing then, or synchronize(rank) ends it.
  Status synchronize(int rank, Stream stream);
  // What synchronize() would return now, without a wait: what this rank or any other has found, and an error
  // of the device. It may be called at any time, also while graphs replay, by the thread of the rank. OK says
  // that nothing has gone wrong so far, not that anything has ended. A step that was skipped is still under
  // way then, as above.
  Status poll(int rank);
  // Does the same as synchronize(rank) for all ranks, and returns the first error.
  Status synchronize();
  // After a fault: waits for all ranks, forgets the broken step and makes all buffers ready again.
  Status reset();
  // The same with fewer ranks: those of `survivors` (ascending, by their present numbers) go on as ranks 0,
  // 1, .. and hold all experts, as the placement says; without a value, as evenly as can be. Memory is
  // allocated anew if the buffers do not fit. Graphs, row buffers and sizes of before are no longer valid.
  Status reset(const std::vector<int>& survivors, std::optional<ExpertPlacement> placement = {});
  // The same with any ranks of the world, by their numbers in the world: so ranks that were left out come
  // back. Where ranks are in several processes none can: the process has ended, and a world is joined once.
  Status reset_to(const std::vector<int>& world_ranks, std::optional<ExpertPlacement> placement = {});
  // Moves and copies experts: from the next step on, rows go where the placement says. Between two steps, by
  // all ranks, with the same placement on each. Nothing is allocated: create() must have been given a
  // placement or max_experts_per_rank, and no rank may get more experts than there are seats for. The order
  // of a rank's experts is that of its list, so that those that stay can keep their seats. Graphs stay valid,
  // and replay with the new placement: only the table that their kernels read changes.
  Status set_placement(const ExpertPlacement& placement);
  // Where the experts are.
  const ExpertPlacement& placement() const;
  // [n_experts]: the rows that this rank has sent to each expert since create() or clear_expert_counts(), by
  // whatever placement; with counts_experts only. The sum over all ranks is the load. Waits for the rank's
  // stream, not for other ranks.
  Result<std::vector<int64_t>> expert_counts(int rank) const;
  Status clear_expert_counts(int rank);
  // From now on kernels record when their roles and waits began and ended, at most `events_per_block` events
  // in each block.
  // Tracing stays on as long as the object lives; it needs steps_in_flight of 1. A graph keeps the tracing
  // mode it was captured with.
  Status enable_trace(uint32_t events_per_block);
  // Waits for all ranks, whether the step is broken or not, and returns what each has recorded since the last
  // call. After a reset() with fewer ranks the traces of the ranks that left are lost.
  Result<std::vector<RankTrace>> take_trace();
  // What the rank itself found wrong in the step that failed; or what synchronize() or poll() of a rank of
  // this process has said of a step that was skipped, until the rank begins another one. Any thread may ask.
  std::optional<FaultRecord> fault(int rank) const;

  // Returns the memory for a rank's rows that this object owns. The direct protocol has rows and expert
  // outputs there only, so its calls may leave those pointers null. The slotted protocol takes any memory,
  // and allocates these buffers at the first call.
  Result<RowBuffers> row_buffers(int rank);

  // Direct protocol: what a kernel of `num_blocks` blocks needs to start with an expert before dispatch_wait
  // (row_readiness.hpp). The blocks are counted, since they wait for peers that share the device: each
  // block takes a multiprocessor, and every flight may have such a kernel. Such a kernel must not admit a
  // dependent launch before its last wait. Formats whose scale tensor interleaves rows are refused, since
  // dispatch_wait stores their scales where tokens may be many, and so are rows that the receiver lays out:
  // they are complete behind dispatch_wait.
  Result<RowReadiness> row_readiness(int rank, int num_blocks) const;
  // With CombineStart::kWithExperts: what a kernel of the experts needs to say that the rows of a group are
  // complete. In every step every group that has rows must be completed, on all ranks.
  Result<RowCompletion> row_completion(int rank) const;
  // The most blocks that row_readiness() takes; 0: none, since dispatch itself has all room (n_sms).
  int max_early_blocks(int rank) const;

  // [n_local_experts()][n_ranks()], per rank [n_ranks()]: the row at which those of each source rank begin,
  // among the rows of the rank's last dispatch. They end where the next rank's begin; padding rows of the
  // expert may follow the last rank's. The call waits for the rank's stream.
  Result<std::vector<uint32_t>> source_row_offsets(int rank) const;

  // config().protocol is never automatic: it has been chosen, for this reason. row_delivery is never
  // automatic either. With masked rows, config().max_rows_per_expert is the capacity of each group.
  const std::string& protocol_reason() const;
  const ExpertParallelConfig& config() const;
  int n_ranks() const;
  // The seats of each rank: the most experts that one holds, or can hold.
  int n_local_experts() const;
  // The groups of a rank's rows: the local experts (per rank, one of all of them), and the shared one if it
  // is fused, or what lies in front of a set's rows if there are several.
  int num_groups() const;
  // Returns which tokens of a rank its shared expert works on: all of them, or the rank's share of them.
  SharedExpertTokens shared_expert_tokens(int rank, int num_tokens) const;
  int n_sms() const;
  // Returns how many rows a rank can receive at most: every token of every rank, top_k times (per rank,
  // once), its own tokens once more for the shared expert, and the padding that aligns them.
  uint64_t max_recv_rows() const;
  // The rows of row_buffers() from a set to the next; with one set, all of them.
  uint64_t rows_per_set() const;
  // The bytes of a dispatched message, with its header if the protocol has one, and of a combined row.
  uint32_t dispatch_message_bytes() const;
  uint32_t combine_message_bytes() const;
  // The bytes of each rank's exchange memory.
  uint64_t bytes_per_rank() const;

 private:
  friend struct ExpertParallelTestAccess;
  struct Impl;

  explicit ExpertParallel(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
