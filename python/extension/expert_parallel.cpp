// The calls of ExpertParallel over arrays.
#include "expert_parallel.hpp"

#include <algorithm>

#include "ep_config.hpp"
#include "options.hpp"

namespace switchyard::python {
namespace {

constexpr Choice<UnwrittenRows> kUnwritten[] = {
    {"left", UnwrittenRows::kLeft}, {"marked", UnwrittenRows::kMarked}, {"zeroed", UnwrittenRows::kZeroed}};
constexpr Choice<CombineReduction> kReductions[] = {{"weighted", CombineReduction::kWeighted},
                                                    {"unreduced", CombineReduction::kUnreduced}};

const Element& element_of(const TokenFormatInfo& format) {
  switch (format.element) {
    case ElementType::kBF16:
      return kBFloat16;
    case ElementType::kE4M3:
      return kE4M3;
    case ElementType::kE5M2:
      return kE5M2;
    default:
      return kUInt8;  // packed codes
  }
}

std::vector<size_t> row_shape(const TokenFormatInfo& format, uint32_t max_rows, int hidden) {
  const bool is_packed = format.num_bits < 8;
  return {max_rows, is_packed ? format.row_bytes(hidden) : static_cast<size_t>(hidden)};
}

// Scales as they lie in memory (docs/formats.md): a row of them per scale group, or per four, or per row, or
// tiles of bytes.
Tensor scales_of(const TokenFormatInfo& format, const RowBuffers& own, int hidden, Tensor memory) {
  const auto num_scales = static_cast<size_t>(format.num_scales(hidden));
  memory.data = own.scales;
  switch (format.placement) {
    case ScalePlacement::kTransposed:
      memory.element = kFloat32;
      memory.shape = {num_scales, TransposedScaleLayout{static_cast<int>(num_scales), own.max_rows}.stride()};
      break;
    case ScalePlacement::kByRow:
      memory.element = kE8M0;
      memory.shape = {own.max_rows, num_scales};
      break;
    case ScalePlacement::kPacked: {
      const PackedScaleLayout layout{static_cast<int>(num_scales), own.max_rows};
      memory.element = kUInt32;
      memory.shape = {static_cast<size_t>(layout.num_words()), layout.stride()};
      break;
    }
    default:
      memory.element = kUInt8;
      memory.shape = {format.scale_tensor_bytes(own.max_rows, hidden).value()};
  }
  return memory;
}

}  // namespace

EpCore::EpCore(std::shared_ptr<WorldCore> owner, std::unique_ptr<ExpertParallel> made)
    : world(std::move(owner)), ep(made.release()), gate(world->world->n_ranks()) {
  for (int rank = 0; rank < ep->n_ranks(); ++rank) members.push_back(rank);
}

// The destructor of ExpertParallel waits for what is on the streams.
EpCore::~EpCore() {
  nb::gil_scoped_release no_gil;
  ep.reset();
}

EpHandle::EpHandle(std::shared_ptr<Session> session, std::shared_ptr<EpCore> core)
    : session_(std::move(session)), core_(std::move(core)), memory_(core_->members.size()) {}

ExpertParallel& EpHandle::use(const char* call) const {
  session_->use(call);
  return *core_->ep;
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

DispatchInput EpHandle::input_of(Arguments& arguments, nb::handle tokens, nb::handle topk_ids) const {
  const ExpertParallelConfig& config = core_->ep->config();
  const Array array =
      arguments.array(tokens, "tokens", {kBFloat16, {-1, config.hidden}, "(num_tokens, hidden)"});
  const int64_t num_tokens = array.shape[0];
  if (num_tokens > config.max_tokens_per_rank)
    raise(invalid_argument("tokens has %lld rows; max_tokens_per_rank is %d",
                           static_cast<long long>(num_tokens), config.max_tokens_per_rank));
  return {static_cast<const bf16*>(array.data),
          arguments.pointer<const int32_t>(topk_ids, "topk_ids",
                                           {kInt32, {num_tokens, config.top_k}, "(num_tokens, top_k)"}),
          static_cast<int>(num_tokens)};
}

DispatchedRows EpHandle::rows_of(const char* call, int rank, bool src_ranks) {
  ExpertParallel& ep = use(call);
  const int where = world_rank(call, rank);
  const TokenFormatInfo format = info_of(ep.config().dispatch_format);
  const int hidden = ep.config().hidden;
  const RowBuffers own = need(ep.row_buffers(rank));
  RankMemory& memory = memory_of(call, rank);
  if (src_ranks && !memory.src_ranks)
    memory.src_ranks = allocate(*session_, call, where, {own.max_rows}, kInt32);
  const auto of_ep = [&](void* data, std::vector<size_t> shape, const Element& element) {
    return Tensor{data, std::move(shape), element, session_->core()->gpu_of(where), core_};
  };
  DispatchedRows rows{of_ep(own.encoded_rows, row_shape(format, own.max_rows, hidden), element_of(format)),
                      of_ep(own.src_info, {own.max_rows, 2}, kInt32),
                      memory.row_offsets,
                      memory.row_counts,
                      memory.expert_ids,
                      {},
                      memory.scale_row_offsets,
                      {},
                      {}};
  if (src_ranks) rows.src_ranks = memory.src_ranks;
  if (own.scales != nullptr) rows.scales = scales_of(format, own, hidden, rows.rows);
  if (own.expert_outputs != nullptr)
    rows.expert_outputs = of_ep(own.expert_outputs, {own.max_rows, static_cast<size_t>(hidden)}, kBFloat16);
  if (own.encoded_outputs != nullptr)
    rows.expert_outputs = of_ep(own.encoded_outputs, {own.max_rows, ep.combine_message_bytes()}, kUInt8);
  return rows;
}

DispatchOutput EpHandle::output_of(const DispatchedRows& rows, const std::string& unwritten) const {
  const auto pointer = [](const std::optional<Tensor>& tensor) { return tensor ? tensor->data : nullptr; };
  return {.rows = rows.rows.data,
          .src_info = static_cast<int32_t*>(rows.src_info.data),
          .max_rows = static_cast<uint32_t>(rows.rows.shape[0]),
          .row_offsets = static_cast<uint32_t*>(rows.row_offsets.data),
          .expert_ids = static_cast<int32_t*>(rows.expert_ids.data),
          .scales = pointer(rows.scales),
          .scale_row_offsets = static_cast<uint32_t*>(pointer(rows.scale_row_offsets)),
          .row_counts = static_cast<uint32_t*>(rows.row_counts.data),
          .src_ranks = static_cast<int32_t*>(pointer(rows.src_ranks)),
          .unwritten = parse(kUnwritten, "unwritten", unwritten)};
}

void EpHandle::dispatch_async(int rank, nb::handle tokens, nb::handle topk_ids) {
  Arguments arguments("dispatch_async", *session_, world_rank("dispatch_async", rank));
  const DispatchInput input = input_of(arguments, tokens, topk_ids);
  const auto call = core_->gate.enter("dispatch_async", rank);
  need(core_->ep->dispatch_async(rank, input));
  enqueued(arguments);
}

DispatchedRows EpHandle::dispatch_wait(int rank, bool src_ranks, const std::string& unwritten) {
  Arguments arguments("dispatch_wait", *session_, world_rank("dispatch_wait", rank));
  const auto call = core_->gate.enter("dispatch_wait", rank);
  DispatchedRows rows = rows_of("dispatch_wait", rank, src_ranks);
  need(core_->ep->dispatch_wait(rank, output_of(rows, unwritten)));
  enqueued(arguments);
  return rows;
}

DispatchedRows EpHandle::dispatch(int rank, nb::handle tokens, nb::handle topk_ids, bool src_ranks,
                                  const std::string& unwritten) {
  Arguments arguments("dispatch", *session_, world_rank("dispatch", rank));
  const DispatchInput input = input_of(arguments, tokens, topk_ids);
  const auto call = core_->gate.enter("dispatch", rank);
  DispatchedRows rows = rows_of("dispatch", rank, src_ranks);
  need(core_->ep->dispatch(rank, input, output_of(rows, unwritten)));
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
void EpHandle::check_num_rows(const char* call, int rank, int64_t num_rows) {
  ExpertParallel& ep = *core_->ep;
  if (num_rows >= static_cast<int64_t>(need(ep.row_buffers(rank)).max_rows)) return;
  const int where = world_rank(call, rank);
  const Tensor& offsets = memory_of(call, rank).row_offsets;
  auto view = std::make_shared<Buffer<uint32_t>>(
      session_->rank(call, where).view(static_cast<uint32_t*>(offsets.data), offsets.shape[0]));
  auto last = std::make_shared<uint32_t>(0);
  need(session_->wait([core = core_, view, last](CallerThread&) -> Status {
    const Result<std::vector<uint32_t>> values = view->download();
    if (!values.ok()) return values.status();
    *last = values.value().back();
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
  check_num_rows(call, rank, array.shape[0]);
  input.expert_rows = array.data;
  return input;
}

CombineOutput EpHandle::destination_of(const char* call, Arguments& arguments, int rank, nb::handle topk_ids,
                                       nb::handle topk_weights, nb::object& out,
                                       const std::string& reduction) const {
  const ExpertParallelConfig& config = core_->ep->config();
  CombineOutput output;
  output.destination.reduction = parse(kReductions, "reduction", reduction);
  const bool is_unreduced = output.destination.reduction == CombineReduction::kUnreduced;
  const Array ids =
      arguments.array(topk_ids, "topk_ids", {kInt32, {-1, config.top_k}, "(num_tokens, top_k)"});
  const int64_t num_tokens = ids.shape[0];
  output.topk_ids = static_cast<const int32_t*>(ids.data);
  output.num_tokens = static_cast<int>(num_tokens);
  if (!is_unreduced || !topk_weights.is_none())
    output.topk_weights =
        static_cast<const float*>(arguments
                                      .array(topk_weights, "topk_weights",
                                             {kFloat32, {num_tokens, config.top_k}, "(num_tokens, top_k)"})
                                      .data);
  std::vector<int64_t> shape{num_tokens, config.hidden};
  if (is_unreduced) shape.insert(shape.begin() + 1, config.top_k);
  if (out.is_none())
    out = nb::cast(allocate(*session_, call, world_rank(call, rank),
                            std::vector<size_t>(shape.begin(), shape.end()), kBFloat16));
  const char* shape_name = is_unreduced ? "(num_tokens, top_k, hidden)" : "(num_tokens, hidden)";
  output.destination.output =
      static_cast<bf16*>(arguments.array(out, "out", {kBFloat16, shape, shape_name, Access::kWrite}).data);
  return output;
}

void EpHandle::combine_async(int rank, nb::handle expert_rows) {
  Arguments arguments("combine_async", *session_, world_rank("combine_async", rank));
  const auto call = core_->gate.enter("combine_async", rank);
  need(core_->ep->combine_async(rank, expert_rows_of("combine_async", arguments, rank, expert_rows)));
  enqueued(arguments);
}

nb::any EpHandle::combine_wait(int rank, nb::handle topk_ids, nb::handle topk_weights, nb::object out,
                               const std::string& reduction) {
  Arguments arguments("combine_wait", *session_, world_rank("combine_wait", rank));
  const auto call = core_->gate.enter("combine_wait", rank);
  need(core_->ep->combine_wait(
      rank, destination_of("combine_wait", arguments, rank, topk_ids, topk_weights, out, reduction)));
  enqueued(arguments);
  return nb::borrow<nb::any>(out);
}

nb::any EpHandle::combine(int rank, nb::handle expert_rows, nb::handle topk_ids, nb::handle topk_weights,
                          nb::object out, const std::string& reduction) {
  Arguments arguments("combine", *session_, world_rank("combine", rank));
  const auto call = core_->gate.enter("combine", rank);
  const CombineInput input = expert_rows_of("combine", arguments, rank, expert_rows);
  need(core_->ep->combine(
      rank, input, destination_of("combine", arguments, rank, topk_ids, topk_weights, out, reduction)));
  enqueued(arguments);
  return nb::borrow<nb::any>(out);
}

void EpHandle::all_reduce(int rank, nb::handle values) {
  Arguments arguments("all_reduce", *session_, world_rank("all_reduce", rank));
  const Array array =
      arguments.array(values, "values",
                      {kBFloat16, {-1, core_->ep->config().hidden}, "(num_tokens, hidden)", Access::kWrite});
  const auto call = core_->gate.enter("all_reduce", rank);
  need(core_->ep->all_reduce(rank, static_cast<bf16*>(array.data), static_cast<int>(array.shape[0])));
  enqueued(arguments);
}

// The record of the rank itself, or of the rank that stopped it.
void EpHandle::raise_fault(const Status& status, std::optional<int> rank) const {
  const ExpertParallel& ep = *core_->ep;
  std::optional<FaultRecord> fault = rank ? ep.fault(*rank) : std::nullopt;
  for (int other = 0; other < ep.n_ranks() && !fault; ++other) fault = ep.fault(other);
  raise(status, fault);
}

void EpHandle::synchronize(std::optional<int> rank) {
  use("synchronize");
  const int where = rank ? world_rank("synchronize", *rank) : -1;
  const auto call = rank ? core_->gate.enter("synchronize", *rank) : core_->gate.enter_all("synchronize");
  const Status status = session_->wait_for_streams(
      rank ? std::optional<int>(where) : std::nullopt,
      [core = core_, call, rank](CallerThread&) {
        Status result = rank ? core->ep->synchronize(*rank) : core->ep->synchronize();
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
  const auto call = core_->gate.enter_all("reset");
  (void)session_->wait_for_streams(
      {}, [core = core_](CallerThread&) { return core->world->world->synchronize(); },
      [call] { call->abandon(); });
  if (survivors && core_.use_count() > 1)
    raise(failed_precondition(
        "reset: %ld tensors of this object's rows, or graphs that use them, are still referenced; with other "
        "ranks the rows may move, so delete them first",
        core_.use_count() - 1));
  need(session_->wait(
      [core = core_, call, survivors, next, by_world_rank](CallerThread&) {
        Status status = !survivors      ? core->ep->reset()
                        : by_world_rank ? core->ep->reset_to(*survivors, next)
                                        : core->ep->reset(*survivors, next);
        call->leave();
        return status;
      },
      [call] { call->abandon(); }));
  if (!survivors) return;
  std::vector<int> members;
  for (const int rank : *survivors)
    members.push_back(by_world_rank ? rank : core_->members[static_cast<size_t>(rank)]);
  core_->members = std::move(members);
  memory_ = std::vector<std::optional<RankMemory>>(core_->members.size());
}

}  // namespace switchyard::python
