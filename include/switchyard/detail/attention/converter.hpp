// The converters of an attention block with fp8 keys and values: one warpgroup for the keys and one for the
// values. They turn the codes that the producer loads into the bf16 that consumers multiply, a key block at a
// time. To a consumer it is as if the key blocks had been loaded as bf16. Scales are left to the consumer.
#pragma once

#include "switchyard/detail/attention/shared.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

template <typename Config>
class KeyConverter {
 public:
  using Ring = typename CodeStages<Config>::Ring;
  using Stages = unsigned char[Config::kNumKeyStages][Config::kKeyBytes];

  // `full` and `empty` are the barriers of the stages that consumers read.
  SWITCHYARD_DEVICE KeyConverter(Ring& ring, Stages& stages, target::TransferBarrier* full,
                                 target::TransferBarrier* empty)
      : ring_(ring), stages_(stages), full_(full), empty_(empty) {}

  SWITCHYARD_DEVICE void run() {
    for (;;) {
      const uint32_t code_stage = codes_.stage(), stage = keys_.stage();
      // acquire MM-20: the codes of a key block; pairs with the release in the producer's load_panels()
      wait_together(ring_.full[code_stage], codes_.parity());
      if (target::ld(&ring_.is_end[code_stage]) != 0) return;
      // acquire MM-21: the consumers have read the stage; pairs with their release()
      wait_together(empty_[stage], keys_.parity() ^ 1);
      convert(ring_.codes[code_stage], stages_[stage]);
      target::fence_proxy_async_shared();  // before the matrix unit reads the stage
      // release MM-33: a block of keys, or of values; pairs with the consumers' waits for keys_full and
      // values_full
      release(full_[stage]);
      // release MM-21: this warp has read the codes; pairs with the producer's wait before the next load
      release(ring_.empty[code_stage]);
      codes_.advance();
      keys_.advance();
    }
  }

 private:
  static constexpr int kUnitsOfRow = Config::kHeadDim / 16;                              // of 16 codes
  static constexpr int kNumUnits = Config::kTileKeys * kUnitsOfRow / kWarpgroupThreads;  // of a thread
  static constexpr int kAtOnce = 4;
  static_assert(kNumUnits % kAtOnce == 0);

  SWITCHYARD_DEVICE static void release(target::TransferBarrier& barrier) {
    target::sync_warp();
    if (target::lane_idx() == 0) barrier.arrive();
  }
  // Where 16 bytes of a tile's row lie: tiles are [panel][row][8 units].
  SWITCHYARD_DEVICE static int offset_of(int row, int unit) {
    return (unit / 8 * Config::kTileKeys + row) * kPanelRowBytes + target::unit_in_row(row, unit % 8) * 16;
  }
  SWITCHYARD_DEVICE static void convert(const unsigned char* codes, unsigned char* rows) {
    const int thread = target::thread_idx() % kWarpgroupThreads;
    SWITCHYARD_ROLLED
    for (int first = 0; first < kNumUnits; first += kAtOnce) {
      Vec16 loaded[kAtOnce];
      SWITCHYARD_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int unit = (first + i) * kWarpgroupThreads + thread;
        loaded[i] = target::ld_16(codes + offset_of(unit / kUnitsOfRow, unit % kUnitsOfRow));
      }
      SWITCHYARD_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int unit = (first + i) * kWarpgroupThreads + thread;
        const int row = unit / kUnitsOfRow, in_row = unit % kUnitsOfRow;
        // Every other quad of threads begins with its second half: else two would meet at a bank.
        const int half = in_row / 4 % 2;
        target::st_16(rows + offset_of(row, 2 * in_row + half), half_of(loaded[i], half));
        target::st_16(rows + offset_of(row, 2 * in_row + (half ^ 1)), half_of(loaded[i], half ^ 1));
      }
    }
  }
  // Eight codes as bf16.
  SWITCHYARD_DEVICE static Vec16 half_of(const Vec16& codes, int half) {
    const uint32_t first = half == 0 ? codes.words[0] : codes.words[2],
                   second = half == 0 ? codes.words[1] : codes.words[3];
    return {{target::bf16x2_of_e4m3(first), target::bf16x2_of_e4m3(first >> 16),
             target::bf16x2_of_e4m3(second), target::bf16x2_of_e4m3(second >> 16)}};
  }

  Ring& ring_;
  Stages& stages_;
  target::TransferBarrier *full_, *empty_;
  StageCursor<Config::kNumLoadStages> codes_;
  StageCursor<Config::kNumKeyStages> keys_;
};

// converter_idx: 0 converts keys, 1 values.
template <typename Config>
SWITCHYARD_DEVICE void convert_keys(AttentionShared<Config>& shared, int converter_idx) {
  if (converter_idx == 0)
    KeyConverter<Config>(shared.key_codes, shared.keys, shared.keys_full, shared.keys_empty).run();
  else
    KeyConverter<Config>(shared.value_codes, shared.values, shared.values_full, shared.values_empty).run();
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
