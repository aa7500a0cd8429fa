// The kernel of sync/output_hash.hpp.
#pragma once

#include "switchyard/detail/sync/output_hash.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

struct CheckOutput {
  const CheckOutputParams& params;
  OutputTally& check = *params.check;

  SWITCHYARD_DEVICE explicit CheckOutput(const CheckOutputParams& params_in) : params(params_in) {}

  SWITCHYARD_DEVICE void run() {
    uint64_t sum = 0;
    for_each_vector(params.output_bytes, [&](uint64_t i) {
      const Vec16 value = target::ld_16(params.output + i * sizeof(Vec16));
      sum += hash_of_word(value.words[0] | uint64_t{value.words[1]} << 32, 2 * i);
      sum += hash_of_word(value.words[2] | uint64_t{value.words[3]} << 32, 2 * i + 1);
    });
    overwrite(params.output, params.output_bytes);
    overwrite(params.scratch, params.scratch_bytes);
    add_to_sum(sum);
    target::sync_block();
    if (target::thread_idx() == 0 && is_last_block()) compare();
  }

  // All threads of the launch share the output, 16 bytes at a time, always in the same way.
  template <typename Work>
  SWITCHYARD_DEVICE static void for_each_vector(uint64_t num_bytes, Work work) {
    const uint64_t num_threads =
        static_cast<uint64_t>(target::num_threads()) * static_cast<uint64_t>(target::num_blocks());
    for (uint64_t i =
             static_cast<uint64_t>(target::block_idx()) * static_cast<uint64_t>(target::num_threads()) +
             static_cast<uint64_t>(target::thread_idx());
         i < num_bytes / sizeof(Vec16); i += num_threads)
      work(i);
  }

  SWITCHYARD_DEVICE static void overwrite(std::byte* memory, uint64_t num_bytes) {
    for_each_vector(num_bytes, [&](uint64_t i) {
      target::st_16(memory + i * sizeof(Vec16),
                    Vec16{{kOverwritten, kOverwritten, kOverwritten, kOverwritten}});
    });
  }

  SWITCHYARD_DEVICE void add_to_sum(uint64_t sum) {
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) sum += target::shuffle_xor(sum, mask);
    if (target::lane_idx() == 0) target::atomic_add_relaxed_device(&check.sum, sum);
  }

  SWITCHYARD_DEVICE bool is_last_block() {
    // acq_rel MM-12: collects what all blocks have added before the last one compares; pairs with itself
    return target::atomic_add_acq_rel_device(&check.blocks_done, 1) == target::num_blocks() - 1;
  }

  SWITCHYARD_DEVICE void compare() {
    if (target::ld_relaxed_device(&check.sum) != check.expected) ++check.num_different;
    ++check.num_checked;
    target::st_relaxed_device(&check.sum, uint64_t{0});
    target::st_relaxed_device(&check.blocks_done, 0);
  }
};

SWITCHYARD_KERNEL void check_output_kernel(CheckOutputParams params) { CheckOutput(params).run(); }

}  // namespace switchyard::inline SWITCHYARD_TARGET
