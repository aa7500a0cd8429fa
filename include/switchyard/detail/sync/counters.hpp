// EPLocalSyncCounters: the int32 counters through which the blocks of one rank synchronise, one region per
// kernel. dispatch_wait and combine_async share a region: the one leaves there what the other reads. All are
// 0 before the first step and, but for what a comment below says lasts, after each.
//
// The slotted protocol uses all three regions. The direct protocol reserves no slots and knows every row
// before it moves: what it counts, and keeps from step to step, lies in the region of dispatch_async alone
// (DirectCounters in ep/direct/layout.hpp), and the other two stay 0.
#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

// Ranks that may form one direct-store group. 64 is the largest power of two within a rack of 72 GPUs that
// NVLink joins, and a rank then fits into the 6 bits that packed words have for it (ScaleSource in
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

// The number of experts is a type's, or a value's where the type leaves it open.
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
  // Of a buffer, which must hold total_size() elements and outlive the counters.
  template <CounterBuffer Buffer>
  explicit EPLocalSyncCounters(const Buffer& buffer) requires(kIsFixed) : ptr(buffer.data()) {
    assert(buffer.size() >= static_cast<size_t>(total_size()));
  }
  template <CounterBuffer Buffer>
  EPLocalSyncCounters(const Buffer& buffer, int num_experts) requires(!kIsFixed)
      : EPLocalSyncCounters(buffer.data(), num_experts) {
    assert(buffer.size() >= static_cast<size_t>(this->layout().total_size()));
  }
  // Either kind of the other: a kernel of a fixed number of experts is launched with the counters of any.
  template <int kOther>
  SWITCHYARD_HD constexpr EPLocalSyncCounters(const EPLocalSyncCounters<kOther>& other)  // NOLINT
      requires(kIsFixed != EPLocalSyncCounters<kOther>::kIsFixed)
      : ptr(other.ptr) {
    if constexpr (!kIsFixed) this->num_experts = kOther;
  }

  static std::string get_type_name() {
    return kIsFixed ? "EPLocalSyncCounters[" + std::to_string(n_experts) + "]" : "EPLocalSyncCounters";
  }

  // In int32 elements. Where the number of experts is left to run time, SyncCounterLayout tells them.
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

  // dispatch_async: slots handed out, and messages copied, per expert. The MAX_GPUS_PER_NODE words behind
  // them are unused.
  SWITCHYARD_HD constexpr int32_t* reserved(int expert_idx) const { return ptr + expert_idx; }
  SWITCHYARD_HD constexpr int32_t* finished(int expert_idx) const {
    return ptr + this->layout().n_experts + expert_idx;
  }

  // dispatch_wait / combine_async, regions A to G. A and B last until the next dispatch_wait. C counts the
  // rows that repeated ids make, until combine_async puts it back. E, F and G are there for the layout: no
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

  // combine_wait. One word, whatever the number of blocks.
  SWITCHYARD_HD constexpr int32_t* combine_blocks_left() const { return get_combine_wait_ptr(); }

 private:
  SWITCHYARD_HD constexpr int32_t* wait_region(int n_experts_before) const {
    return get_dispatch_wait_ptr() + n_experts_before * this->layout().n_experts;
  }
};

}  // namespace switchyard
