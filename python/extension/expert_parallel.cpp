// The calls of ExpertParallel over arrays.
#include "expert_parallel.hpp"

#include <algorithm>
#include <utility>

#include "ep_config.hpp"
#include "formats.hpp"
#include "options.hpp"

namespace switchyard::python {
namespace {

constexpr Choice<UnwrittenRows> kUnwritten[] = {
    {"left", UnwrittenRows::kLeft}, {"marked", UnwrittenRows::kMarked}, {"zeroed", UnwrittenRows::kZeroed}};
constexpr Choice<CombineReduction> kReductions[] = {{"weighted", CombineReduction::kWeighted},
                                                    {"unreduced", CombineReduction::kUnreduced}};

}  // namespace

EpCore::EpCore(std::shared_ptr<WorldCore> owner, ExpertParallel& made)
    : world(std::move(owner)), ep(&made), gate(world->world->n_ranks()) {
  for (int rank = 0; rank < ep->n_ranks(); ++rank) members.push_back(rank);
}
EpCore::EpCore(std::shared_ptr<WorldCore> owner, std::unique_ptr<ExpertParallel> made)
    : EpCore(std::move(owner), *made) {
  own_ep.reset(made.release());
}
EpCore::EpCore(std::shared_ptr<WorldCore> owner, std::unique_ptr<MoeLayer> made)
    : EpCore(std::move(owner), made->ep()) {
  layer.reset(made.release());
}

// The destructors wait for what is on the streams.
EpCore::~EpCore() {
  WithoutGil no_gil;
  layer.reset();
  own_ep.reset();
}

EpHandle::EpHandle(std::shared_ptr<Session> session, std::shared_ptr<EpCore> core, int flight_idx)
    : session_(std::move(session)),
      core_(std::move(core)),
      flight_idx_(flight_idx),
      memory_(core_->members.size()) {}

ExpertParallel& EpHandle::use(const char* call) const {
  session_->use(call);
  core_->gate.check_unchanging(call);
  return flight_idx_ == 0 ? *core_->ep : *need(core_->ep->flight(flight_idx_));
}

int EpHandle::world_rank(const char* call, int rank) const {
  const int n_ranks = use(call).n_ranks();
  if (rank < 0 || rank >= n_ranks)
    raise(invalid_argument("%s: rank is %d; it must be 0..%d", call, rank, n_ranks - 1));
  const int world_rank = core_->members[static_cast<size_t>(rank)];
  (void)session_->rank(call, world_rank);
  return world_rank;
}

EpHandle::RankMemory& EpHandle::memory_of(const char* call, int rank) {
  if (std::exchange(num_changes_, core_->num_changes) != core_->num_changes) {
    memory_.clear();
    memory_.resize(core_->members.size());
  }
  std::optional<RankMemory>& memory = memory_[static_cast<size_t>(rank)];
  if (memory) return *memory;
  const ExpertParallel& ep = use(call);
  const int where = world_rank(call, rank);
  const auto num_groups = static_cast<size_t>(ep.num_groups());
  const auto make = [&](size_t size, const Element& element) {
    return allocate(*session_, call, where, {size}, element);
  };
  RankMemory made{make(num_groups + 1, kUInt32), make(num_groups, kUInt32), make(num_groups, kInt32), {}, {}};
  if (info_of(ep.config().dispatch_format).placement == ScalePlacement::kTiled)
    made.scale_row_offsets = make(num_groups, kUInt32);
  memory = std::move(made);
  return *memory;
}

nb::object EpHandle::rows_of(const char* call, int rank, bool src_ranks) {
  ExpertParallel& ep = use(call);
  RankMemory& memory = memory_of(call, rank);
  nb::object& made = src_ranks ? memory.rows_with_ranks : memory.rows;
  if (made.is_valid()) return made;
  const int where = world_rank(call, rank);
  const TokenFormatInfo format = info_of(ep.config().dispatch_format);
  const int hidden = ep.config().hidden;
  const RowBuffers own = need(ep.row_buffers(rank));
  if (src_ranks && !memory.src_ranks)
    memory.src_ranks = allocate(*session_, call, where, {own.max_rows}, kInt32);
  const auto of_ep = [&](const void* data, ArrayType type) {
    return Tensor{const_cast<void*>(data), std::move(type.shape), type.element,
                  session_->core()->gpu_of(where), core_};
  };
  DispatchedRows rows{of_ep(own.encoded_rows, rows_in(format, own.max_rows, hidden)),
                      of_ep(own.src_info, {kInt32, {own.max_rows, 2}}),
                      memory.row_offsets,
                      memory.row_counts,
                      memory.expert_ids,
                      {},
                      memory.scale_row_offsets,
                      {},
                      {},
                      {}};
  if (src_ranks) rows.src_ranks = memory.src_ranks;
  if (own.scales != nullptr) rows.scales = of_ep(own.scales, scales_in(format, own.max_rows, hidden));
  if (own.expert_outputs != nullptr)
    rows.expert_outputs =
        of_ep(own.expert_outputs, {kBFloat16, {ep.rows_per_set(), static_cast<size_t>(hidden)}});
  if (own.encoded_outputs != nullptr)
    rows.expert_outputs =
        of_ep(own.encoded_outputs, {kUInt8, {ep.rows_per_set(), ep.combine_message_bytes()}});
  if (own.expert_tensor_scales != nullptr)
    rows.expert_tensor_scales =
        of_ep(own.expert_tensor_scales, {kFloat32, {static_cast<size_t>(ep.n_local_experts())}});
  made = nb::cast(std::move(rows));
  return made;
}

// Tokens are bf16, or codes with their scales beside them.
void EpHandle::add_tokens(Arguments& arguments, const GivenTokens& given, DispatchInput& input) const {
  const ExpertParallelConfig& config = core_->ep->config();
  const TokenFormatInfo format = info_of(config.dispatch_format);
  const bool is_encoded = !given.scales.is_none();
  const ArrayType codes = rows_in(format, 1, config.hidden);
  const Array tokens =
      arguments.array(given.tokens, "tokens",
                      {is_encoded ? codes.element : kBFloat16,
                       {-1, is_encoded ? static_cast<int64_t>(codes.shape[1]) : config.hidden},
                       is_encoded ? "(num_tokens, the codes of a row)" : "(num_tokens, hidden)",
                       Access::kRead,
                       nullptr,
                       true});
  const int64_t num_tokens = tokens.shape[0];
  if (num_tokens > config.max_tokens_per_rank)
    raise(invalid_argument("tokens has %lld rows; max_tokens_per_rank is %d",
                           static_cast<long long>(num_tokens), config.max_tokens_per_rank));
  input.tokens = tokens.data;
  input.num_tokens = static_cast<int>(num_tokens);
  input.token_stride_bytes = tokens.row_stride_bytes();
  if (!is_encoded) return;
  if (format.scale == ScaleType::kNone)
    raise(invalid_argument("%s: scales must be None: dispatch_format is %s, which has none", arguments.call(),
                           format.name));
  const Element& scale = format.scale == ScaleType::kFloat  ? kFloat32
                         : format.scale == ScaleType::kE8M0 ? kE8M0
                                                            : kE4M3;
  const Array scales = arguments.array(given.scales, "scales",
                                       {scale,
                                        {num_tokens, format.num_scales(config.hidden)},
                                        "(num_tokens, scales of a row)",
                                        Access::kRead,
                                        nullptr,
                                        true});
  input.format = InputFormat::kEncoded;
  input.scales = scales.data;
  input.scales_stride_bytes = scales.row_stride_bytes();
}

DispatchInput EpHandle::input_of(Arguments& arguments, const GivenTokens& given) const {
  const ExpertParallelConfig& config = core_->ep->config();
  DispatchInput input;
  input.row_set = given.row_set;
  add_tokens(arguments, given, input);
  const int64_t num_tokens = input.num_tokens;
  if (given.needs_ids) {
    const Array ids =
        arguments.array(given.topk_ids, "topk_ids",
                        {kInt32, {num_tokens, config.top_k}, "(num_tokens, top_k)", Access::kRead, &kInt64});
    if (ids.element_bytes() == 8)
      input.topk_ids_64 = static_cast<const int64_t*>(ids.data);
    else
      input.topk_ids = static_cast<const int32_t*>(ids.data);
  }
  input.topk_weights = arguments.pointer<const float>(
      given.topk_weights, "topk_weights", {kFloat32, {num_tokens, config.top_k}, "(num_tokens, top_k)"});
  input.input_scale =
      arguments.pointer<const float>(given.input_scale, "input_scale", {kFloat32, {1}, "(1,)"});
  input.rank_wait_ns = rank_waits_of(arguments, given.rank_wait_ns);
  return input;
}

uint64_t* EpHandle::rank_waits_of(Arguments& arguments, nb::handle rank_wait_ns) const {
  return arguments.pointer<uint64_t>(
      rank_wait_ns, "rank_wait_ns", {kInt64, {core_->ep->n_ranks()}, "(n_ranks,)", Access::kWrite, &kUInt64});
}

DispatchOutput EpHandle::output_of(Arguments& arguments, int rank, const DispatchedRows& rows,
                                   const WantedOutputs& wanted) const {
  const ExpertParallel& ep = *core_->ep;
  const auto pointer = [](const std::optional<Tensor>& tensor) { return tensor ? tensor->data : nullptr; };
  DispatchOutput output{.rows = rows.rows.data,
                        .src_info = static_cast<int32_t*>(rows.src_info.data),
                        .max_rows = static_cast<uint32_t>(rows.rows.shape[0]),
                        .row_offsets = static_cast<uint32_t*>(rows.row_offsets.data),
                        .expert_ids = static_cast<int32_t*>(rows.expert_ids.data),
                        .scales = pointer(rows.scales),
                        .scale_row_offsets = static_cast<uint32_t*>(pointer(rows.scale_row_offsets)),
                        .row_counts = static_cast<uint32_t*>(rows.row_counts.data),
                        .src_ranks = static_cast<int32_t*>(pointer(rows.src_ranks)),
                        .unwritten = parse(kUnwritten, "unwritten", wanted.unwritten)};
  const int64_t rows_per_set = static_cast<int64_t>(ep.rows_per_set()), top_k = ep.config().top_k;
  const int64_t n_ranks = ep.n_ranks();
  const bool is_per_rank = ep.config().row_layout == RowLayout::kPerRank;
  const int64_t num_groups = is_per_rank ? 1 : ep.n_local_experts();
  const auto written = [&]<typename T>(T*& field, const nb::object& array, const char* name,
                                       const Element& element, std::vector<int64_t> shape,
                                       const char* shape_name) {
    field = arguments.pointer<T>(array, name, {element, std::move(shape), shape_name, Access::kWrite});
  };
  written(output.row_experts, wanted.row_experts, "row_experts", kInt32, {rows_per_set, top_k},
          "(rows_per_set, top_k)");
  written(output.row_weights, wanted.row_weights, "row_weights", kFloat32, {rows_per_set, top_k},
          "(rows_per_set, top_k)");
  if (!wanted.source_ranges.is_none())
    output.source_ranges = static_cast<uint64_t*>(
        arguments
            .array(wanted.source_ranges, "source_ranges",
                   {kInt64, {num_groups, n_ranks}, "(groups, n_ranks)", Access::kWrite, &kUInt64})
            .data);
  written(output.expert_totals, wanted.expert_totals, "expert_totals", kInt32, {1 + ep.n_local_experts()},
          "(1 + local experts,)");
  written(output.row_totals, wanted.row_totals, "row_totals", kInt32, {num_groups}, "(groups,)");
  output.rank_wait_ns = rank_waits_of(arguments, wanted.rank_wait_ns);
  (void)rank;
  return output;
}

void EpHandle::dispatch_async(int rank, const GivenTokens& given, nb::handle stream) {
  Arguments arguments("dispatch_async", *session_, world_rank("dispatch_async", rank), stream);
  const DispatchInput input = input_of(arguments, given);
  const auto call = core_->gate.enter("dispatch_async", rank);
  need(use("dispatch_async").dispatch_async(rank, input, arguments.stream()));
  memory_of("dispatch_async", rank).begin_step(input.num_tokens);
  enqueued(arguments);
}

nb::object EpHandle::dispatch_wait(int rank, const WantedOutputs& wanted, nb::handle stream) {
  Arguments arguments("dispatch_wait", *session_, world_rank("dispatch_wait", rank), stream);
  const auto call = core_->gate.enter("dispatch_wait", rank);
  nb::object rows = rows_of("dispatch_wait", rank, wanted.src_ranks);
  const DispatchOutput output = output_of(arguments, rank, nb::cast<DispatchedRows&>(rows), wanted);
  need(use("dispatch_wait").dispatch_wait(rank, output, arguments.stream()));
  enqueued(arguments);
  return rows;
}

nb::object EpHandle::dispatch(int rank, const GivenTokens& given, const WantedOutputs& wanted,
                              nb::handle stream) {
  Arguments arguments("dispatch", *session_, world_rank("dispatch", rank), stream);
  const DispatchInput input = input_of(arguments, given);
  const auto call = core_->gate.enter("dispatch", rank);
  nb::object rows = rows_of("dispatch", rank, wanted.src_ranks);
  const DispatchOutput output = output_of(arguments, rank, nb::cast<DispatchedRows&>(rows), wanted);
  need(use("dispatch").dispatch(rank, input, output, arguments.stream()));
  memory_of("dispatch", rank).begin_step(input.num_tokens);
  enqueued(arguments);
  return rows;
}

// A graph keeps this object, and a share of its rows, so that they stay where they are.
void EpHandle::enqueued(Arguments& arguments) {
  if (session_->is_capturing()) {
    arguments.keep(nb::find(*this));
    arguments.keep(nb::cast(Tensor{nullptr, {0}, kUInt8, -1, core_}));
  }
  arguments.enqueued();
}

// Kernels read as many rows as dispatch has written. Fewer than could have come are enough if fewer did,
// which the host knows once the stream has got there.
void EpHandle::check_num_rows(const char* call, int rank, int64_t num_rows, Stream stream) {
  ExpertParallel& ep = use(call);
  if (num_rows >= static_cast<int64_t>(ep.rows_per_set())) return;
  const int where = world_rank(call, rank);
  const Tensor& offsets = memory_of(call, rank).row_offsets;
  const Rank& owner = session_->rank(call, where);
  auto view =
      std::make_shared<Buffer<uint32_t>>(owner.view(static_cast<uint32_t*>(offsets.data), offsets.shape[0]));
  auto last = std::make_shared<uint32_t>(0);
  const bool has_sets = ep.config().row_sets > 1;
  need(session_->wait([core = core_, &owner, stream, view, last, has_sets](CallerThread&) -> Status {
    if (stream.is_callers()) SWITCHYARD_RETURN_IF_ERROR(owner.synchronize(stream));
    const Result<std::vector<uint32_t>> values = view->download();
    if (!values.ok()) return values.status();
    // Rows in front of the step's set are no rows of this step.
    const size_t first = has_sets ? values.value().size() - 2 : 0;
    *last = values.value().back() - values.value()[first];
    return Status();
  }));
  if (num_rows < static_cast<int64_t>(*last))
    raise(invalid_argument("%s: expert_rows has %lld rows; this step has %u", call,
                           static_cast<long long>(num_rows), *last));
}

CombineInput EpHandle::expert_rows_of(const char* call, Arguments& arguments, int rank,
                                      nb::handle expert_rows) {
  ExpertParallel& ep = use(call);
  const RowBuffers own = need(ep.row_buffers(rank));
  CombineInput input{.expert_rows = nullptr, .src_info = own.src_info};
  if (expert_rows.is_none()) {
    if (ep.config().protocol != Protocol::kDirect) input.expert_rows = own.expert_outputs;
    return input;
  }
  const bool is_encoded = own.encoded_outputs != nullptr;
  const int64_t width = is_encoded ? ep.combine_message_bytes() : ep.config().hidden;
  const Array array = arguments.array(expert_rows, "expert_rows",
                                      {is_encoded ? kUInt8 : kBFloat16,
                                       {-1, width},
                                       is_encoded ? "(rows, combine_message_bytes)" : "(rows, hidden)"});
  if (std::exchange(memory_of(call, rank).offered, nullptr) != array.data)
    check_num_rows(call, rank, array.shape[0], arguments.stream());
  input.expert_rows = array.data;
  return input;
}

// Per rank, and of 64-bit ids, the library has kept the ids.
CombineOutput EpHandle::destination_of(const char* call, Arguments& arguments, int rank, WantedSums& wanted) {
  const ExpertParallelConfig& config = core_->ep->config();
  CombineOutput output;
  output.destination.reduction = parse(kReductions, "reduction", wanted.reduction);
  const bool is_unreduced = output.destination.reduction == CombineReduction::kUnreduced;
  const bool is_per_rank = config.row_layout == RowLayout::kPerRank;
  int64_t num_tokens = memory_of(call, rank).num_tokens;
  if (!wanted.topk_ids.is_none()) {
    const Array ids =
        arguments.array(wanted.topk_ids, "topk_ids",
                        {kInt32, {-1, config.top_k}, "(num_tokens, top_k)", Access::kRead, &kInt64});
    num_tokens = ids.shape[0];
    if (ids.element_bytes() == 4) output.topk_ids = static_cast<const int32_t*>(ids.data);
  }
  output.num_tokens = static_cast<int>(num_tokens);
  const bool needs_weights = !is_unreduced && !is_per_rank;
  if (needs_weights || !wanted.topk_weights.is_none())
    output.topk_weights =
        static_cast<const float*>(arguments
                                      .array(wanted.topk_weights, "topk_weights",
                                             {kFloat32, {num_tokens, config.top_k}, "(num_tokens, top_k)"})
                                      .data);
  std::vector<int64_t> shape{num_tokens, config.hidden};
  if (is_unreduced) shape.insert(shape.begin() + 1, config.top_k);
  arguments.make_output(wanted.out, "out", shape, kBFloat16);
  const char* shape_name = is_unreduced ? "(num_tokens, top_k, hidden)" : "(num_tokens, hidden)";
  const Array written = arguments.array(
      wanted.out, "out", {kBFloat16, shape, shape_name, Access::kWrite, nullptr, !is_unreduced});
  output.destination.output = static_cast<bf16*>(written.data);
  output.destination.output_stride_bytes = written.row_stride_bytes();
  output.rank_wait_ns = rank_waits_of(arguments, wanted.rank_wait_ns);
  return output;
}

void EpHandle::combine_async(int rank, nb::handle expert_rows, nb::handle stream) {
  Arguments arguments("combine_async", *session_, world_rank("combine_async", rank), stream);
  const auto call = core_->gate.enter("combine_async", rank);
  const CombineInput input = expert_rows_of("combine_async", arguments, rank, expert_rows);
  need(use("combine_async").combine_async(rank, input, arguments.stream()));
  enqueued(arguments);
}

nb::any EpHandle::combine_wait(int rank, WantedSums wanted, nb::handle stream) {
  Arguments arguments("combine_wait", *session_, world_rank("combine_wait", rank), stream);
  const auto call = core_->gate.enter("combine_wait", rank);
  const CombineOutput output = destination_of("combine_wait", arguments, rank, wanted);
  need(use("combine_wait").combine_wait(rank, output, arguments.stream()));
  enqueued(arguments);
  return nb::borrow<nb::any>(wanted.out);
}

nb::any EpHandle::combine(int rank, nb::handle expert_rows, WantedSums wanted, bool awaits_readers,
                          nb::handle stream) {
  Arguments arguments("combine", *session_, world_rank("combine", rank), stream);
  const auto call = core_->gate.enter("combine", rank);
  CombineInput input = expert_rows_of("combine", arguments, rank, expert_rows);
  input.awaits_readers = awaits_readers;
  const CombineOutput output = destination_of("combine", arguments, rank, wanted);
  need(use("combine").combine(rank, input, output, arguments.stream()));
  enqueued(arguments);
  return nb::borrow<nb::any>(wanted.out);
}

void EpHandle::all_reduce(int rank, nb::handle values, nb::handle stream) {
  Arguments arguments("all_reduce", *session_, world_rank("all_reduce", rank), stream);
  const Array array =
      arguments.array(values, "values",
                      {kBFloat16, {-1, core_->ep->config().hidden}, "(num_tokens, hidden)", Access::kWrite});
  const auto call = core_->gate.enter("all_reduce", rank);
  need(use("all_reduce")
           .all_reduce(rank, static_cast<bf16*>(array.data), static_cast<int>(array.shape[0]),
                       arguments.stream()));
  enqueued(arguments);
}

void EpHandle::abandon_step(int rank) {
  (void)world_rank("abandon_step", rank);
  const auto call = core_->gate.enter("abandon_step", rank);
  need(use("abandon_step").abandon_step(rank));
}

void EpHandle::call_off_step(int rank, nb::handle stream) {
  Arguments arguments("call_off_step", *session_, world_rank("call_off_step", rank), stream);
  const auto call = core_->gate.enter("call_off_step", rank);
  need(use("call_off_step").call_off_step(rank, arguments.stream()));
  memory_of("call_off_step", rank).begin_step(0);
  enqueued(arguments);
}

void EpHandle::reopen_step(int rank, nb::handle stream) {
  Arguments arguments("reopen_step", *session_, world_rank("reopen_step", rank), stream);
  const auto call = core_->gate.enter("reopen_step", rank);
  need(use("reopen_step").reopen_step(rank, arguments.stream()));
  memory_of("reopen_step", rank).offered = nullptr;
  enqueued(arguments);
}

void EpHandle::store_expert_rows(int rank, nb::handle rows, nb::handle stream) {
  Arguments arguments("store_expert_rows", *session_, world_rank("store_expert_rows", rank), stream);
  ExpertParallel& ep = use("store_expert_rows");
  const bool is_masked = ep.config().row_layout == RowLayout::kMasked;
  const int64_t groups = ep.num_groups(), hidden = ep.config().hidden;
  const Array array = arguments.array(
      rows, "rows",
      {kBFloat16, is_masked ? std::vector<int64_t>{groups, -1, hidden} : std::vector<int64_t>{-1, hidden},
       is_masked ? "(groups, rows of each, hidden)" : "(rows, hidden)"});
  const RankMemory& memory = memory_of("store_expert_rows", rank);
  const auto call = core_->gate.enter("store_expert_rows", rank);
  need(ep.store_expert_rows(
      rank,
      {.rows = array.data,
       .num_rows = static_cast<uint64_t>(is_masked ? array.shape[0] * array.shape[1] : array.shape[0]),
       .rows_per_group = is_masked ? static_cast<uint32_t>(array.shape[1]) : 0,
       .row_offsets = static_cast<const uint32_t*>(memory.row_offsets.data),
       .row_counts = static_cast<const uint32_t*>(memory.row_counts.data)},
      arguments.stream()));
  enqueued(arguments);
}

bool EpHandle::offer_expert_rows(int rank, nb::handle rows, bool is_whole, nb::handle stream) {
  constexpr char kCall[] = "offer_expert_rows";
  Arguments arguments(kCall, *session_, world_rank(kCall, rank), stream);
  const Array array =
      arguments.array(rows, "rows", {kBFloat16, {-1, core_->ep->config().hidden}, "(rows, hidden)"});
  const auto call = core_->gate.enter(kCall, rank);
  if (!is_whole) check_num_rows(kCall, rank, array.shape[0], arguments.stream());
  ExpertParallel& ep = use(kCall);
  std::optional<Result<bool>> answer;
  {
    WithoutGil no_gil;  // to open a ninth allocation it waits
    answer.emplace(ep.offer_expert_rows(rank, array.data, arguments.stream()));
  }
  const bool is_taken = need(std::move(*answer));
  memory_of(kCall, rank).offered = is_taken ? array.data : nullptr;
  return is_taken;
}

}  // namespace switchyard::python
