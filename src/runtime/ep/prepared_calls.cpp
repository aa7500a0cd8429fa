// What the kernels of a rank are told at every step: addresses, shapes and deadlines, filled in once, when
// the ranks are known.
#include "expert_parallel_impl.hpp"

namespace switchyard {
// What dispatch and combine have in common.
struct ExpertParallel::Impl::PreparedStep {
  EpShape shape;
  int my_idx;  // among the peers
  std::vector<std::byte*> arena_of_peer;
  EPLocalSyncCounters<> ep_counters;
  WaitContext wait_context;
  Peers peers;

  // A buffer of the arena as this rank's kernels see it.
  template <typename T>
  RankPointers<T> pointers_to(const ArenaPart& part) const {
    RankPointers<T> pointers{};
    if (part.bytes == 0) return pointers;
    const auto at = [&](size_t peer) { return reinterpret_cast<T*>(arena_of_peer[peer] + part.offset); };
    pointers.mine = at(static_cast<size_t>(my_idx));
    for (size_t peer = 0; peer < arena_of_peer.size() && peer < kMaxDirectRanks; ++peer)
      if (arena_of_peer[peer] != nullptr) pointers.of_rank[peer] = at(peer);
    return pointers;
  }
  template <typename Step>
  void fill_in(Step& step, Scope signal_scope) const {
    step.shape = shape;
    step.my_rank = my_idx;
    step.signal_scope = signal_scope;
    step.ep_counters = ep_counters;
    step.wait_context = wait_context;
    step.peers = peers;
  }
};

Status ExpertParallel::Impl::prepare_calls(int rank) {
  RankState& own = state(rank);
  if (own.peer_tables.bytes() < PeerTables::bytes(n_ranks())) own.peer_tables = {};  // ranks have come back
  std::vector<std::byte*> arena_of_rank;
  std::vector<bool> is_near_rank;
  for (int peer = 0; peer < n_ranks(); ++peer) {
    arena_of_rank.push_back(arena_of(peer));
    is_near_rank.push_back(is_near(rank, peer));
  }
  Result<PeerTables> tables = PeerTables::upload(member(rank), rank, arena_of_rank, is_near_rank,
                                                 layout.poison.offset, own.peer_tables);
  if (!tables.ok()) return tables.status();
  tables.value().wire.engine = wire_engine();
  own.wait_context = make_wait_context(rank, tables.value());

  const std::vector<int> peers = peers_of(rank);
  PreparedStep prepared{.shape = exchange_shape_of(rank),
                        .my_idx = peers.size() == 1 ? 0 : rank,
                        .ep_counters = own.memory.ep_counters(exchange_shape_of(rank)),
                        .wait_context = own.wait_context,
                        .peers = {tables.value().arena_of_rank, tables.value().wire}};
  for (const int peer : peers) prepared.arena_of_peer.push_back(exchange_of(peer));
  // These kernels know only the ranks that this one exchanges rows with.
  prepared.wait_context.first_rank = peers.front();
  prepared.wait_context.first_expert =
      config.routing == Routing::kSkipAllToAll ? rank * n_local_experts() : 0;
  prepare_dispatch(rank, prepared);
  prepare_combine(rank, prepared);
  return Status();
}

void ExpertParallel::Impl::prepare_dispatch(int rank, const PreparedStep& prepared) {
  RankState& own = state(rank);
  DispatchCall& call = own.dispatch_call = {};
  DispatchStep& step = call.step;
  prepared.fill_in(step, signal_scope());
  step.max_rows = static_cast<uint32_t>(layout.row_capacity);
  step.group_layout = group_layout(config, n_ranks());
  step.expert_counts = own.memory.at<int64_t>(layout.expert_counts);
  step.recv_bufs = prepared.pointers_to<std::byte>(is_direct() ? layout.row_memory : layout.dispatch_recv);
  step.recv_counts = prepared.pointers_to<uint64_t>(layout.dispatch_counts);
  std::get<SlottedDispatchPart>(call.parts).send_buf = own.memory.at<std::byte>(layout.send);
  std::get<DirectDispatchPart>(call.parts) = {
      .count_tables = prepared.pointers_to<uint64_t>(layout.count_table),
      .src_infos = prepared.pointers_to<int32_t>(layout.src_info),
      .row_of = own.memory.at<uint32_t>(layout.row_of),
      .scales_offset = layout.scales_offset,
      .token_scales_offset = layout.token_scales_offset,
      .scale_sources_offset = layout.scale_sources_offset,
      .sends_scales = sends_scales(config, n_ranks()),
      .row_links_offset = layout.row_links_offset,
      .carries_once = config.row_delivery == RowDelivery::kReceiver,
      .arrived_scales_offset = layout.expert_outputs_offset,
      .arrived_scales_stride = layout.has_encoded_outputs ? combine_bytes(config) : token_bytes(config),
      .topk_weights = nullptr,  // a call has its own
      .row_weights_offset = layout.row_weights_offset,
      .wire = {.counts_ready = own.memory.at<uint64_t>(layout.counts_ready),
               .kept_rows = own.memory.at<std::byte>(layout.kept_rows),
               .kept_scales = own.memory.at<std::byte>(layout.kept_scales),
               .kept_sources = own.memory.at<uint64_t>(layout.kept_sources),
               .kept_scale_sources = own.memory.at<uint32_t>(layout.kept_scale_sources),
               .kept_links = own.memory.at<uint32_t>(layout.kept_links),
               .kept_row_weights = own.memory.at<float>(layout.kept_row_weights),
               .arrived_scales = own.memory.at<std::byte>(layout.arrived_scales)}};
  step.topk_ids = kept_choices(rank).rank_ids;  // per rank; else a call has its own
  call.tensors.max_rows = step.max_rows;
  call.tensors.tensor_scale = config.input_scale;
  call.tensors.expert_scales = own.memory.at<float>(layout.expert_scales);
}

void ExpertParallel::Impl::prepare_combine(int rank, const PreparedStep& prepared) {
  RankState& own = state(rank);
  CombineCall& call = own.combine_call = {};
  CombineStep& step = call.step;
  prepared.fill_in(step, signal_scope());
  step.recv_bufs = prepared.pointers_to<std::byte>(is_direct() ? layout.row_memory : layout.combine_recv);
  step.recv_counts = prepared.pointers_to<uint64_t>(layout.combine_counts);
  step.topk_ids = kept_choices(rank).rank_ids;  // as in dispatch
  step.topk_weights = kept_choices(rank).rank_weights;
  std::get<SlottedCombinePart>(call.parts).send_buf = own.memory.at<std::byte>(layout.combine_send);
  std::get<DirectCombinePart>(call.parts) = {
      .row_of = own.memory.at<uint32_t>(layout.row_of),
      .wire = {.count_table = own.memory.at<uint64_t>(layout.count_table),
               .src_info = own.memory.at<int32_t>(layout.src_info),
               .recv_buf = is_direct() ? own.memory.at<std::byte>(layout.combine_recv) : nullptr,
               .links = is_direct()
                            ? reinterpret_cast<const uint32_t*>(step.recv_bufs.mine + layout.row_links_offset)
                            : nullptr}};
}

WaitContext ExpertParallel::Impl::make_wait_context(int rank, const PeerTables& tables) const {
  const RankState& own = state(rank);
  WaitContext context{};
  context.record = own.memory.faults;
  context.skipped = context.record + 1;
  context.my_poison = poison_of(rank);
  context.poison_of_rank = tables.poison_of_rank;
  context.wire = tables.wire;
  context.my_rank = rank;
  context.n_ranks = n_ranks();
  context.timeout_ns = config.timeout_ns;
  if (own.trace) context.trace = own.trace->buffer();
  return context;
}

}  // namespace switchyard
