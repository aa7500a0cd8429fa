// dispatch_async: some blocks send this rank's tokens to the ranks of their experts; one watches until all
// copies for an expert are complete and then tells the expert's owner how many there are. A sender encodes a
// token once (or for each of its experts, where the format asks for it), into shared memory, and bulk copies
// carry the message from there to every expert while the next one is being encoded.
#pragma once

#include "switchyard/detail/ep/expert_counts.hpp"
#include "switchyard/detail/ep/input_scales.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/ep/reach.hpp"
#include "switchyard/detail/ep/tuning.hpp"
#include "switchyard/detail/sync/signal.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct alignas(128) SlottedDispatchAsyncShared {
  uint32_t num_messages[kMaxExperts];    // per expert, of this block's tokens
  uint32_t num_extra_rows[kMaxExperts];  // watcher: repeats of an id within its token
  uint32_t next_slot[kMaxExperts];       // sender: the next slot of its reserved range
  // Behind it: kNumStages messages, each aligned to 128 bytes.

  static constexpr int kNumStages = kEpKernelSizes.message_stages;
  SWITCHYARD_HD static constexpr uint64_t stage_bytes(uint32_t msg_bytes) {
    return align_up<uint64_t>(msg_bytes, 128);
  }
  SWITCHYARD_HD static constexpr uint64_t bytes(uint32_t msg_bytes) {
    return sizeof(SlottedDispatchAsyncShared) + kNumStages * stage_bytes(msg_bytes);
  }
  SWITCHYARD_DEVICE std::byte* stage(int stage_idx, uint32_t msg_bytes) {
    return reinterpret_cast<std::byte*>(this + 1) + static_cast<uint64_t>(stage_idx) * stage_bytes(msg_bytes);
  }
};

// Over a wire every message is sent from here, else only the shared expert's is kept.
template <FixedShape Fixed, typename Format>
SWITCHYARD_DEVICE DispatchSendLayout slotted_send_layout(const ShapeOf<Fixed>& shape, uint32_t msg_bytes) {
  return {shape.max_tokens_per_rank(), kHasWire<Fixed> && EncodesByExpert<Format> ? shape.top_k() + 1 : 1,
          msg_bytes};
}

template <FixedShape Fixed, typename Format>
struct SlottedDispatchAsync {
  using Params = DispatchParams<SlottedDispatchPart, Format>;
  static constexpr int kNumStages = SlottedDispatchAsyncShared::kNumStages;

  const Params& params;
  ShapeOf<Fixed> shape{params.shape};
  EPLocalSyncCounters<Fixed::kShape.n_experts> counters{params.ep_counters};
  MessageLayout message_layout{params.format.encoded_bytes(), shape.top_k()};
  SlottedDispatchAsyncShared& shared = target::shared_storage<SlottedDispatchAsyncShared>();

  SWITCHYARD_DEVICE explicit SlottedDispatchAsync(const Params& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    if (target::num_blocks() == 1) {
      send(0, 1);
      target::sync_block();  // both use the counts in shared memory
      watch();
    } else if (target::block_idx() == 0) {
      watch();
    } else {
      send(target::block_idx() - 1, target::num_blocks() - 1);
    }
  }

  // Returns the id of (token, k), or -1 if it is padding or out of range; the watcher reports the latter.
  SWITCHYARD_DEVICE int expert_of(int token_idx, int k) const {
    const int id = params.topk_ids[static_cast<int64_t>(token_idx) * shape.top_k() + k];
    return mutate<Fixed, LogicMutant::kPaddingDispatched>(shape.expert_of_id(id),
                                                          id < 0 ? 0 : shape.expert_of_id(id));
  }

  // A token that names an expert several times is sent to it once.
  SWITCHYARD_DEVICE bool is_first_mention(int token_idx, int k, int expert_idx) const {
    for (int earlier = 0; earlier < mutate<Fixed, LogicMutant::kRepeatsSentEach>(k, 0); ++earlier)
      if (expert_of(token_idx, earlier) == expert_idx) return false;
    return true;
  }

  // Counts, per expert, the messages of tokens first_token, first_token + stride, ... Returns false if an
  // earlier step broke and has not been reset: its counters mean nothing.
  SWITCHYARD_DEVICE bool count_messages(int first_token, int stride) {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchAsync, TraceName::kCountMessages);
    const bool is_healthy = is_unpoisoned<Fixed, LogicMutant::kDispatchIgnoresPoison>(params.wait_context);
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads()) {
      shared.num_messages[expert_idx] = 0;
      shared.num_extra_rows[expert_idx] = 0;
    }
    if (!sync_block_all(is_healthy)) return false;
    for (int64_t token_idx = first_token + static_cast<int64_t>(target::thread_idx()) * stride;
         token_idx < params.num_tokens; token_idx += static_cast<int64_t>(target::num_threads()) * stride) {
      for (int k = 0; k < shape.top_k(); ++k) {
        const int token = static_cast<int>(token_idx);
        const int expert_idx = expert_of(token, k);
        if (expert_idx < 0) continue;
        const bool first = is_first_mention(token, k, expert_idx);
        target::atomic_add_relaxed_block(
            first ? &shared.num_messages[expert_idx] : &shared.num_extra_rows[expert_idx], 1u);
      }
    }
    target::sync_block();
    return true;
  }

  SWITCHYARD_DEVICE void send(int sender_idx, int num_senders) {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchAsync, TraceName::kSend);
    if (!count_messages(sender_idx, num_senders)) return;
    // Reserves one range of slots per expert and block; within it slots are dealt in shared memory.
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads()) {
      const uint32_t count = shared.num_messages[expert_idx];
      if (count > 0)
        shared.next_slot[expert_idx] = static_cast<uint32_t>(
            target::atomic_add_relaxed_device(counters.reserved(expert_idx), static_cast<int32_t>(count)));
    }
    target::sync_block();
    int stage_idx = 0;
    for (int token_idx = sender_idx; token_idx < params.num_tokens; token_idx += num_senders)
      for (int message_idx = 0; message_idx < num_messages_of_token(); ++message_idx) {
        if (!has_message(token_idx, message_idx)) continue;
        std::byte* message = shared.stage(stage_idx, message_layout.bytes());
        // The copies out of this stage, two messages ago, have read it; the other stage's may be in flight.
        if (target::warp_idx() == 0)
          target::bulk_wait_read<mutate<Fixed, LogicMutant::kStageNotWaitedFor>(kNumStages - 1,
                                                                                kNumStages)>();
        target::sync_block();
        write_message(token_idx, message_idx, message);
        target::fence_proxy_async();  // the copies read what ordinary stores wrote
        target::sync_block();
        if constexpr (kHasWire<Fixed>) keep_for_wire(token_idx, message_idx, message);
        if (target::warp_idx() == 0) copy_to_experts(token_idx, message_idx, message);
        stage_idx ^= 1;
      }
    if (target::warp_idx() == 0) target::bulk_wait<0>();
    target::sync_block();
    if constexpr (kHasWire<Fixed>) settle_block(params.peers.wire);
    for (int expert_idx = target::thread_idx(); expert_idx < shape.n_experts();
         expert_idx += target::num_threads()) {
      const uint32_t count = shared.num_messages[expert_idx];
      // release MM-01: publishes this block's copies for the expert; pairs with the acquire in watch()
      if (count > 0) DeviceSignal{counters.finished(expert_idx)}.add(static_cast<int32_t>(count));
    }
  }

  // There is one message for all of a token's experts, or message k for its choice k and one more for the
  // shared expert.
  SWITCHYARD_DEVICE int num_messages_of_token() const {
    return EncodesByExpert<Format> ? shape.top_k() + 1 : 1;
  }
  SWITCHYARD_DEVICE bool has_message(int token_idx, int message_idx) const {
    if (!EncodesByExpert<Format>) return true;
    if (message_idx == shape.top_k()) return is_for_shared_expert(token_idx);
    const int expert_idx = expert_of(token_idx, message_idx);
    return expert_idx >= 0 && is_first_mention(token_idx, message_idx, expert_idx);
  }
  SWITCHYARD_DEVICE bool is_for(int message_idx, int k) const {
    return !EncodesByExpert<Format> || message_idx == k;
  }
  SWITCHYARD_DEVICE bool is_for_shared_expert(int token_idx) const {
    return params.send_buf != nullptr && params.shared_expert.row_of(token_idx) >= 0;
  }

  SWITCHYARD_DEVICE void encode(int token_idx, [[maybe_unused]] int message_idx, std::byte* message) const {
    const std::byte* input = static_cast<const std::byte*>(params.input_tokens) +
                             static_cast<uint64_t>(token_idx) * params.token_stride;
    const auto* token = reinterpret_cast<const typename Format::Input*>(input);
    if constexpr (InPlaceTokenFormat<Format>)
      if (params.input_scales != nullptr) return take_encoded(token_idx, input, message);
    if constexpr (EncodesByExpert<Format>)
      params.format.encode(token, message,
                           message_idx == shape.top_k()
                               ? kSharedExpert
                               : shape.id_of_expert(expert_of(token_idx, message_idx)),
                           target::thread_idx(), target::num_threads());
    else
      params.format.encode(token, message, target::thread_idx(), target::num_threads());
  }

  // For a token that came as codes: the message is what encoding would have made.
  SWITCHYARD_DEVICE void take_encoded(int token_idx, const std::byte* codes, std::byte* message) const {
    const uint32_t codes_bytes = params.format.row_bytes();
    target::copy_row(message, codes, codes_bytes, target::thread_idx(), target::num_threads());
    take_input_scales<Fixed>(params, token_idx, params.format.scales_bytes(),
                             message + align_up(codes_bytes, 16u), target::thread_idx(),
                             target::num_threads());
  }

  // Encodes the token, and stores its index and its expert ids behind it.
  SWITCHYARD_DEVICE void write_message(int token_idx, int message_idx, std::byte* message) {
    encode(token_idx, message_idx, message);
    if (target::thread_idx() == 0)
      target::st(reinterpret_cast<int32_t*>(message + message_layout.src_token_offset()), token_idx);
    for (int k = target::thread_idx(); k < shape.top_k(); k += target::num_threads()) {
      const int expert_idx = expert_of(token_idx, k);
      target::st(reinterpret_cast<uint16_t*>(message + message_layout.expert_ids_offset()) + k,
                 expert_idx < 0 ? kPaddingId : static_cast<uint16_t>(expert_idx));
    }
  }

  // Lane k of one warp takes a slot of the token's choice k and starts the copy into it.
  SWITCHYARD_DEVICE void copy_to_experts(int token_idx, int message_idx, const std::byte* message) {
    const int k = target::lane_idx();
    const int expert_idx = k < shape.top_k() && is_for(message_idx, k) ? expert_of(token_idx, k) : -1;
    const auto slot_in = [&](std::byte* recv_buf, int expert, uint32_t slot) {
      return recv_layout().message(recv_buf, shape.local_expert(expert), params.my_rank,
                                   mutate<Fixed, LogicMutant::kSlotOffByOne>(slot, slot + 1));
    };
    uint32_t slot = 0;
    bool goes_far = false;
    if (expert_idx >= 0 && is_first_mention(token_idx, k, expert_idx)) {
      slot = target::atomic_add_relaxed_block(&shared.next_slot[expert_idx], 1u);
      std::byte* recv_buf = peer_pointer<Fixed>(params, params.recv_bufs, shape.owner_rank(expert_idx));
      goes_far = kHasWire<Fixed> && recv_buf == nullptr;
      if (!goes_far) target::bulk_store(slot_in(recv_buf, expert_idx, slot), message, message_layout.bytes());
    }
    if constexpr (kHasWire<Fixed>)
      for_each_far_lane(goes_far, [&](int lane) {
        const int expert = target::shuffle(expert_idx, lane);
        target::wire_put_warp(params.peers.wire, shape.owner_rank(expert),
                              slot_in(params.recv_bufs.mine, expert, target::shuffle(slot, lane)),
                              kept(token_idx, message_idx), message_layout.bytes());
      });
    // The shared expert reads the message from here.
    if (!kHasWire<Fixed> && k == 0 && is_for_shared_expert(token_idx) && is_for(message_idx, shape.top_k()))
      target::bulk_store(kept(token_idx, message_idx), message, message_layout.bytes());
    target::bulk_commit();
  }

  // Where the message stays until the peer, or the shared expert, has it.
  SWITCHYARD_DEVICE std::byte* kept(int token_idx, int message_idx) const {
    return slotted_send_layout<Fixed, Format>(shape, message_layout.bytes())
        .message(params.send_buf, token_idx, message_idx);
  }
  // A network cannot read shared memory.
  SWITCHYARD_DEVICE void keep_for_wire(int token_idx, int message_idx, const std::byte* message) const {
    target::copy_row(kept(token_idx, message_idx), message, message_layout.bytes(), target::thread_idx(),
                     target::num_threads());
    target::sync_block();
  }

  // Waits for each expert until all copies for it are complete, then signals its owner.
  SWITCHYARD_DEVICE void watch() {
    const TraceSlice slice(params.wait_context.trace, Phase::kDispatchAsync, TraceName::kWatch);
    if (!count_messages(0, 1)) return;
    if constexpr (kChecked) report_bad_ids();
    const DispatchCountLayout counts{shape.n_experts(), shape.n_ranks()};
    const int num_experts_rounded = ceil_div(shape.n_experts(), kWarpSize) * kWarpSize;
    for (int expert_idx = target::thread_idx(); expert_idx < num_experts_rounded;
         expert_idx += target::num_threads()) {
      const bool is_expert = expert_idx < shape.n_experts();
      const int32_t expected = is_expert ? static_cast<int32_t>(shared.num_messages[expert_idx]) : 0;
      bool finished = false;
      if (is_expert) {
        int32_t seen = 0;
        // acquire MM-01: all copies for this expert; pairs with the release at the end of send()
        finished = DeviceSignal{counters.finished(expert_idx)}.wait_until(
            params.wait_context,
            {Phase::kDispatchAsync, params.my_rank, expert_idx, static_cast<uint64_t>(expected)}, seen,
            [&](int32_t value) {
              return mutate<Fixed, LogicMutant::kSignalsBeforeFinished>(value == expected, true);
            });
      }
      target::sync_warp();  // the lanes of a warp then share the cost of the release
      if (!finished) continue;
      target::st_relaxed_device(counters.reserved(expert_idx),
                                mutate<Fixed, LogicMutant::kReservedNotPutBack>(0, expected));
      target::st_relaxed_device(counters.finished(expert_idx),
                                mutate<Fixed, LogicMutant::kFinishedNotPutBack>(0, expected));
      const ArrivalCount count{static_cast<uint32_t>(expected), shared.num_extra_rows[expert_idx]};
      add_to_expert_count<Fixed>(params, expert_idx, count.num_rows());
      // release MM-02: hands the owner everything this rank sent to the expert; pairs with collect_counts()
      // over there
      publish<Fixed>(
          params, params.recv_counts, shape.owner_rank(expert_idx),
          [&](uint64_t* cells) { return counts.cell(cells, shape.local_expert(expert_idx), params.my_rank); },
          count.pack());
    }
  }

  SWITCHYARD_DEVICE void report_bad_ids() {
    const int64_t num_ids = static_cast<int64_t>(params.num_tokens) * shape.top_k();
    for (int64_t i = target::thread_idx(); i < num_ids; i += target::num_threads()) {
      const int id = params.topk_ids[i];
      if (!shape.is_id(id)) {
        raise_fault(params.wait_context, FaultKind::kBadExpertId,
                    {Phase::kDispatchAsync, params.my_rank, -1, static_cast<uint64_t>(shape.num_ids())},
                    static_cast<uint64_t>(static_cast<int64_t>(id)), 0);
        return;
      }
    }
  }

  SWITCHYARD_DEVICE DispatchRecvLayout recv_layout() const {
    return {shape.n_local_experts(), shape.n_ranks(), shape.max_tokens_per_rank(), message_layout.bytes()};
  }
};

}  // namespace switchyard::inline SWITCHYARD_TARGET
