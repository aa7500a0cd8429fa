// EPLocalSyncCounters: the int32 counters through which the blocks of one rank synchronise, one region per
// kernel. dispatch_wait and combine_async share a region: the first leaves there what the second reads. All
// counters are 0 before the first step and after each step, except those that a comment below says last.
//
// The slotted protocol uses all three regions. The direct protocol reserves no slots and knows every row
// before it moves: what it counts, and keeps from step to step, is in the region of dispatch_async only
// (DirectCounters in ep/direct/layout.hpp), and the other two regions stay 0.
#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

// The most ranks that may store to each other's memory. 64 is the largest power of two within a rack of 72
// GPUs that NVLink joins, and a rank then fits into the 6 bits that packed words have for it (ScaleSource in
// ep/direct/layout.hpp).
inline constexpr int MAX_GPUS_PER_NODE = 64;

// Sizes and offsets in int32 elements, for any number of experts.
struct SyncCounterLayout {
  int n_experts;

  SWITCHYARD_HD constexpr int dispatch_async_size() const { return 2 * n_experts + MAX_GPUS_PER_NODE; }
  SWITCHYARD_HD constexpr int dispatch_wait_size() const { return 4 * n_experts + 4; }
  SWITCHYARD_HD constexpr int combine_wait_size() const { return 2 * n_experts; }
  SWITCHYARD_HD constexpr int total_size() const {
    return dispatch_async_size() + dispatch_wait_size() + combine_wait_size();
  }
  SWITCHYARD_HD constexpr int dispatch_wait_offset() const { return dispatch_async_size(); }
  SWITCHYARD_HD constexpr int combine_wait_offset() const {
    return dispatch_wait_offset() + dispatch_wait_size();
  }
};

// A device buffer of counters: world.hpp's Buffer<int32_t> is one.
template <typename T>
concept CounterBuffer = requires(const T& buffer) {
  { buffer.data() } -> std::same_as<int32_t*>;
  { buffer.size() } -> std::convertible_to<size_t>;
};

// The number of experts is part of the type, or a value if the type leaves it open.
inline constexpr int kRunTimeExperts = 0;

template <int kNumExperts>
struct SyncCounterLayoutOf {
  SWITCHYARD_HD static constexpr SyncCounterLayout layout() { return {kNumExperts}; }
};
template <>
struct SyncCounterLayoutOf<kRunTimeExperts> {
  int32_t num_experts = 0;
  SWITCHYARD_HD constexpr SyncCounterLayout layout() const { return {num_experts}; }
};

template <int n_experts = kRunTimeExperts>
struct EPLocalSyncCounters : SyncCounterLayoutOf<n_experts> {
  static_assert(n_experts >= 0);
  static constexpr bool kIsFixed = n_experts != kRunTimeExperts;
  using device_type = EPLocalSyncCounters;

  int32_t* ptr = nullptr;

  EPLocalSyncCounters() = default;
  SWITCHYARD_HD constexpr explicit EPLocalSyncCounters(int32_t* memory) requires(kIsFixed) : ptr(memory) {}
  SWITCHYARD_HD constexpr EPLocalSyncCounters(int32_t* memory, int num_experts) requires(!kIsFixed)
      : SyncCounterLayoutOf<n_experts>{num_experts}, ptr(memory) {}
  // The buffer must hold total_size() elements and outlive the counters.
  template <CounterBuffer Buffer>
  explicit EPLocalSyncCounters(const Buffer& buffer) requires(kIsFixed) : ptr(buffer.data()) {
    assert(buffer.size() >= static_cast<size_t>(total_size()));
  }
  template <CounterBuffer Buffer>
  EPLocalSyncCounters(const Buffer& buffer, int num_experts) requires(!kIsFixed)
      : EPLocalSyncCounters(buffer.data(), num_experts) {
    assert(buffer.size() >= static_cast<size_t>(this->layout().total_size()));
  }
  // Each kind converts to the other: a kernel with a fixed number of experts is launched with counters whose
  // type leaves the number open.
  template <int kOther>
  SWITCHYARD_HD constexpr EPLocalSyncCounters(const EPLocalSyncCounters<kOther>& other)  // NOLINT
      requires(kIsFixed != EPLocalSyncCounters<kOther>::kIsFixed)
      : ptr(other.ptr) {
    if constexpr (!kIsFixed) this->num_experts = kOther;
  }

  static std::string get_type_name() {
    return kIsFixed ? "EPLocalSyncCounters[" + std::to_string(n_experts) + "]" : "EPLocalSyncCounters";
  }

  // Sizes in int32 elements. If the number of experts is known at run time only, SyncCounterLayout has them.
  SWITCHYARD_HD static constexpr int dispatch_async_size() requires(kIsFixed) {
    return SyncCounterLayout{n_experts}.dispatch_async_size();
  }
  SWITCHYARD_HD static constexpr int dispatch_wait_size() requires(kIsFixed) {
    return SyncCounterLayout{n_experts}.dispatch_wait_size();
  }
  SWITCHYARD_HD static constexpr int combine_async_size() requires(kIsFixed) { return dispatch_wait_size(); }
  SWITCHYARD_HD static constexpr int combine_wait_size() requires(kIsFixed) {
    return SyncCounterLayout{n_experts}.combine_wait_size();
  }
  SWITCHYARD_HD static constexpr int total_size() requires(kIsFixed) {
    return SyncCounterLayout{n_experts}.total_size();
  }

  SWITCHYARD_HD constexpr int32_t* get_dispatch_async_ptr() const { return ptr; }
  SWITCHYARD_HD constexpr int32_t* get_dispatch_wait_ptr() const {
    return ptr + this->layout().dispatch_wait_offset();
  }
  SWITCHYARD_HD constexpr int32_t* get_combine_async_ptr() const { return get_dispatch_wait_ptr(); }
  SWITCHYARD_HD constexpr int32_t* get_combine_wait_ptr() const {
    return ptr + this->layout().combine_wait_offset();
  }

  // The counters of the slotted protocol by name. A pair is (local expert, rank): local_expert_idx * n_ranks
  // + rank.

  // dispatch_async: the slots reserved and the messages copied, per expert. The MAX_GPUS_PER_NODE words
  // behind them are unused.
  SWITCHYARD_HD constexpr int32_t* reserved(int expert_idx) const { return ptr + expert_idx; }
  SWITCHYARD_HD constexpr int32_t* finished(int expert_idx) const {
    return ptr + this->layout().n_experts + expert_idx;
  }

  // dispatch_wait and combine_async, regions A to G. A and B last until the next dispatch_wait. C counts the
  // rows of repeated ids, until combine_async resets it. E, F and G are part of the layout but unused: no
  // block waits for another to learn the offsets.
  SWITCHYARD_HD constexpr int32_t* row_end(int pair_idx) const { return wait_region(0) + 2 * pair_idx; }  // A
  SWITCHYARD_HD constexpr int32_t* row_count(int pair_idx) const {                                        // A
    return wait_region(0) + 2 * pair_idx + 1;
  }
  SWITCHYARD_HD constexpr int32_t* first_in_expert(int pair_idx) const {
    return wait_region(2) + pair_idx;
  }                                                                                                      // B
  SWITCHYARD_HD constexpr int32_t* extra_rows(int pair_idx) const { return wait_region(3) + pair_idx; }  // C
  SWITCHYARD_HD constexpr int32_t* blocks_left() const { return wait_region(4); }                        // D
  SWITCHYARD_HD constexpr int32_t* offsets_ready() const { return wait_region(4) + 1; }                  // E
  SWITCHYARD_HD constexpr int32_t* send_buf_ready() const { return wait_region(4) + 2; }                 // F
  SWITCHYARD_HD constexpr int32_t* shared_expert_started() const { return wait_region(4) + 3; }          // G

  // combine_wait: one word, whatever the number of blocks.
  SWITCHYARD_HD constexpr int32_t* combine_blocks_left() const { return get_combine_wait_ptr(); }

 private:
  SWITCHYARD_HD constexpr int32_t* wait_region(int num_experts_before) const {
    return get_dispatch_wait_ptr() + num_experts_before * this->layout().n_experts;
  }
};

}  // namespace switchyard
