// EPLocalSyncCounters: the int32 counters through which the blocks of one rank synchronise, one region per
// kernel. dispatch_wait and combine_async share a region: the one leaves there what the other reads.
#pragma once

#include <cstdint>
#include <string>

#include "switchyard/base/macros.hpp"

namespace switchyard {

// Ranks that may form one direct-store group (a rack).
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

// The counters by name, as kernels use them. A pair is (local expert, rank): local_expert_idx * n_ranks +
// rank.
struct SyncCounters {
  int32_t* ptr;
  SyncCounterLayout layout;

  // dispatch_async: slots handed out, and messages copied, per expert.
  SWITCHYARD_HD int32_t* reserved(int expert_idx) const { return ptr + expert_idx; }
  SWITCHYARD_HD int32_t* finished(int expert_idx) const { return ptr + layout.n_experts + expert_idx; }

  // dispatch_wait / combine_async, regions A to G. C counts the rows that repeated ids
  // make. E, F and G are there for the layout: no block waits for another to learn the offsets.
  SWITCHYARD_HD int32_t* row_end(int pair_idx) const { return wait_region(0) + 2 * pair_idx; }        // A
  SWITCHYARD_HD int32_t* row_count(int pair_idx) const { return wait_region(0) + 2 * pair_idx + 1; }  // A
  SWITCHYARD_HD int32_t* first_in_expert(int pair_idx) const { return wait_region(2) + pair_idx; }    // B
  SWITCHYARD_HD int32_t* extra_rows(int pair_idx) const { return wait_region(3) + pair_idx; }         // C
  SWITCHYARD_HD int32_t* blocks_left() const { return wait_region(4); }                               // D
  SWITCHYARD_HD int32_t* offsets_ready() const { return wait_region(4) + 1; }                         // E
  SWITCHYARD_HD int32_t* send_buf_ready() const { return wait_region(4) + 2; }                        // F
  SWITCHYARD_HD int32_t* shared_expert_started() const { return wait_region(4) + 3; }                 // G

  // combine_wait. One word, whatever the number of blocks.
  SWITCHYARD_HD int32_t* combine_blocks_left() const { return ptr + layout.combine_wait_offset(); }

 private:
  SWITCHYARD_HD int32_t* wait_region(int n_experts_before) const {
    return ptr + layout.dispatch_wait_offset() + n_experts_before * layout.n_experts;
  }
};

template <int n_experts>
struct EPLocalSyncCounters {
  static_assert(n_experts > 0);
  using device_type = EPLocalSyncCounters;

  int32_t* ptr = nullptr;

  static std::string get_type_name() { return "EPLocalSyncCounters[" + std::to_string(n_experts) + "]"; }

  SWITCHYARD_HD static constexpr int dispatch_async_size() { return kLayout.dispatch_async_size(); }
  SWITCHYARD_HD static constexpr int dispatch_wait_size() { return kLayout.dispatch_wait_size(); }
  SWITCHYARD_HD static constexpr int combine_async_size() { return dispatch_wait_size(); }
  SWITCHYARD_HD static constexpr int combine_wait_size() { return kLayout.combine_wait_size(); }
  SWITCHYARD_HD static constexpr int total_size() { return kLayout.total_size(); }

  SWITCHYARD_HD constexpr int32_t* get_dispatch_async_ptr() const { return ptr; }
  SWITCHYARD_HD constexpr int32_t* get_dispatch_wait_ptr() const {
    return ptr + kLayout.dispatch_wait_offset();
  }
  SWITCHYARD_HD constexpr int32_t* get_combine_async_ptr() const { return get_dispatch_wait_ptr(); }
  SWITCHYARD_HD constexpr int32_t* get_combine_wait_ptr() const {
    return ptr + kLayout.combine_wait_offset();
  }

  // The counters by name.
  SWITCHYARD_HD constexpr SyncCounters view() const { return {ptr, kLayout}; }

 private:
  static constexpr SyncCounterLayout kLayout{n_experts};
};

}  // namespace switchyard
