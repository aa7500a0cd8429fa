// EPLocalSyncCounters: the int32 counters through which the blocks of one rank synchronise, one region per kernel.
// dispatch_wait and combine_async share a region: the one leaves there what the other reads.
#pragma once

#include <cstdint>
#include <string>

#include "switchyard/base/macros.hpp"

namespace switchyard {

// Ranks that may form one direct-store group (a rack).
inline constexpr int MAX_GPUS_PER_NODE = 64;

// n_experts given at run time: EPLocalSyncCounters<kRunTime>.
inline constexpr int kRunTime = 0;

// The layout, for any number of experts. Offsets and sizes in int32 elements.
struct SyncCounterLayout {
  int n_experts;

  SWITCHYARD_HD constexpr int dispatch_async_size() const { return 2 * n_experts + MAX_GPUS_PER_NODE; }
  SWITCHYARD_HD constexpr int dispatch_wait_size() const { return 4 * n_experts + 4; }
  SWITCHYARD_HD constexpr int combine_async_size() const { return dispatch_wait_size(); }
  SWITCHYARD_HD constexpr int combine_wait_size() const { return 2 * n_experts; }
  SWITCHYARD_HD constexpr int total_size() const {
    return dispatch_async_size() + dispatch_wait_size() + combine_wait_size();
  }

  // dispatch_async: tokens that have a slot, and tokens that have been copied, per expert.
  SWITCHYARD_HD constexpr int reserved() const { return 0; }
  SWITCHYARD_HD constexpr int finished() const { return n_experts; }
  SWITCHYARD_HD constexpr int per_gpu() const { return 2 * n_experts; }

  // dispatch_wait / combine_async.
  SWITCHYARD_HD constexpr int region_a() const { return 0; }                  // per (expert, rank): row end, row count
  SWITCHYARD_HD constexpr int region_b() const { return 2 * n_experts; }      // per (expert, rank): first row in expert
  SWITCHYARD_HD constexpr int region_c() const { return 3 * n_experts; }      // per expert: rows claimed
  SWITCHYARD_HD constexpr int region_d() const { return 4 * n_experts; }      // blocks that have left
  SWITCHYARD_HD constexpr int region_e() const { return 4 * n_experts + 1; }  // offsets are ready
  SWITCHYARD_HD constexpr int region_f() const { return 4 * n_experts + 2; }  // send_buf_ready
  SWITCHYARD_HD constexpr int region_g() const { return 4 * n_experts + 3; }  // shared_expert_started

  // combine_wait: arrivals are complete; blocks that have left.
  SWITCHYARD_HD constexpr int combine_ready() const { return 0; }
  SWITCHYARD_HD constexpr int combine_left() const { return 1; }
};

template <int n_experts>
struct EPLocalSyncCounters {
  using device_type = EPLocalSyncCounters;
  static_assert(n_experts > 0);

  int32_t* ptr = nullptr;

  SWITCHYARD_HD static constexpr SyncCounterLayout layout() { return {n_experts}; }
  static std::string get_type_name() { return "EPLocalSyncCounters[" + std::to_string(n_experts) + "]"; }
  SWITCHYARD_HD static constexpr int dispatch_async_size() { return layout().dispatch_async_size(); }
  SWITCHYARD_HD static constexpr int dispatch_wait_size() { return layout().dispatch_wait_size(); }
  SWITCHYARD_HD static constexpr int combine_async_size() { return layout().combine_async_size(); }
  SWITCHYARD_HD static constexpr int combine_wait_size() { return layout().combine_wait_size(); }
  SWITCHYARD_HD static constexpr int total_size() { return layout().total_size(); }
  SWITCHYARD_HD constexpr int32_t* get_dispatch_async_ptr() const { return ptr; }
  SWITCHYARD_HD constexpr int32_t* get_dispatch_wait_ptr() const { return ptr + dispatch_async_size(); }
  SWITCHYARD_HD constexpr int32_t* get_combine_async_ptr() const { return get_dispatch_wait_ptr(); }
  SWITCHYARD_HD constexpr int32_t* get_combine_wait_ptr() const {
    return get_dispatch_wait_ptr() + dispatch_wait_size();
  }
};

// The same with the number of experts known at run time only.
template <>
struct EPLocalSyncCounters<kRunTime> {
  using device_type = EPLocalSyncCounters;

  int32_t* ptr = nullptr;
  int n_experts = 0;

  SWITCHYARD_HD constexpr SyncCounterLayout layout() const { return {n_experts}; }
  std::string get_type_name() const { return "EPLocalSyncCounters[" + std::to_string(n_experts) + "]"; }
  SWITCHYARD_HD constexpr int dispatch_async_size() const { return layout().dispatch_async_size(); }
  SWITCHYARD_HD constexpr int dispatch_wait_size() const { return layout().dispatch_wait_size(); }
  SWITCHYARD_HD constexpr int combine_async_size() const { return layout().combine_async_size(); }
  SWITCHYARD_HD constexpr int combine_wait_size() const { return layout().combine_wait_size(); }
  SWITCHYARD_HD constexpr int total_size() const { return layout().total_size(); }
  SWITCHYARD_HD constexpr int32_t* get_dispatch_async_ptr() const { return ptr; }
  SWITCHYARD_HD constexpr int32_t* get_dispatch_wait_ptr() const { return ptr + dispatch_async_size(); }
  SWITCHYARD_HD constexpr int32_t* get_combine_async_ptr() const { return get_dispatch_wait_ptr(); }
  SWITCHYARD_HD constexpr int32_t* get_combine_wait_ptr() const {
    return get_dispatch_wait_ptr() + dispatch_wait_size();
  }
};

}  // namespace switchyard
