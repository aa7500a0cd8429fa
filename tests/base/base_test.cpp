// Number formats, size arithmetic and the counters' layout.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/base/exp.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/layout.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/detail/sync/counters.hpp"
#include "switchyard/status.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard {
namespace {

TEST(Bf16, EveryValueSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const bf16 value{static_cast<uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide))
      EXPECT_EQ(to_bf16(wide).bits, (bits & 0x8000u) | 0x7fc0u);
    else
      EXPECT_EQ(to_bf16(wide).bits, bits);
  }
}

TEST(Bf16, RoundsToNearestEven) {
  // Between each finite value and the next: below the middle down, above it up, the middle to the even one.
  for (uint32_t bits = 0; bits < 0x7f7f; ++bits) {
    const float low = to_float(bf16{static_cast<uint16_t>(bits)});
    const float high = to_float(bf16{static_cast<uint16_t>(bits + 1)});
    const float middle = static_cast<float>((static_cast<double>(low) + high) / 2);
    EXPECT_EQ(to_bf16(middle).bits, bits % 2 == 0 ? bits : bits + 1);
    EXPECT_EQ(to_bf16(std::nextafter(middle, low)).bits, bits);
    EXPECT_EQ(to_bf16(std::nextafter(middle, high)).bits, bits + 1);
  }
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
}

TEST(Exp, IsWithinOneUnitInTheLastPlace) {
  for (uint32_t bits = 0; bits < 0x42c00000u; bits += 997) {  // up to 96
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      const double exact = std::exp(static_cast<double>(x));
      if (exact > 3.4028e38 || exact < 1.1755e-38) continue;
      const float nearest = static_cast<float>(exact);
      const double unit = std::nextafter(nearest, std::numeric_limits<float>::infinity()) - nearest;
      ASSERT_NEAR(exp_f32(x), exact, unit) << x;
    }
  }
}

TEST(Exp, EndsInZeroAndInfinityAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  for (const float x : {-88.0f, -1e10f, -std::numeric_limits<float>::max(), -infinity})
    EXPECT_EQ(exp_f32(x), 0.0f);
  for (const float x : {89.0f, 1e10f, std::numeric_limits<float>::max(), infinity})
    EXPECT_EQ(exp_f32(x), infinity);
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_LT(exp_f32(0x1.62e42ep+6f), infinity);
  EXPECT_GE(exp_f32(-0x1.5d589ep+6f), std::numeric_limits<float>::min());
}

TEST(CheckedSize, KnowsWhenItOverflows) {
  EXPECT_TRUE((CheckedSize(1ull << 40) * CheckedSize(1ull << 20)).ok());
  EXPECT_FALSE((CheckedSize(1ull << 40) * CheckedSize(1ull << 23)).ok());
  EXPECT_FALSE((CheckedSize(1ull << 40) * CheckedSize(1ull << 40) * CheckedSize(0)).ok());
  EXPECT_FALSE((CheckedSize(UINT64_MAX) + CheckedSize(2)).ok());
}

TEST(Status, SaysWhatAndWhy) {
  EXPECT_EQ(Status().to_string(), "ok");
  EXPECT_EQ(invalid_argument("hidden is %d", 7).to_string(), "invalid argument: hidden is 7");
}

// Sizes in int32 elements, regions, pointers, type name.
TEST(EPLocalSyncCounters, HasTheDocumentedLayout) {
  using Counters = EPLocalSyncCounters<256>;
  static_assert(MAX_GPUS_PER_NODE == 64);
  static_assert(Counters::dispatch_async_size() == 2 * 256 + 64);
  static_assert(Counters::dispatch_wait_size() == 4 * 256 + 4);
  static_assert(Counters::combine_async_size() == Counters::dispatch_wait_size());
  static_assert(Counters::combine_wait_size() == 2 * 256);
  static_assert(Counters::total_size() == 2 * 256 + 64 + 4 * 256 + 4 + 2 * 256);
  static_assert(std::is_same_v<Counters::device_type, Counters>);
  static_assert(std::is_trivially_copyable_v<Counters>);
  EXPECT_EQ(Counters::get_type_name(), "EPLocalSyncCounters[256]");

  std::vector<int32_t> memory(Counters::total_size());
  const Counters counters{memory.data()};
  EXPECT_EQ(counters.get_dispatch_async_ptr(), memory.data());
  EXPECT_EQ(counters.get_dispatch_wait_ptr(), memory.data() + 576);
  EXPECT_EQ(counters.get_combine_async_ptr(), counters.get_dispatch_wait_ptr());
  EXPECT_EQ(counters.get_combine_wait_ptr(), memory.data() + 576 + 1028);

  EXPECT_EQ(counters.reserved(5), counters.get_dispatch_async_ptr() + 5);
  EXPECT_EQ(counters.finished(5), counters.get_dispatch_async_ptr() + 256 + 5);
  int32_t* wait = counters.get_dispatch_wait_ptr();
  EXPECT_EQ(counters.row_end(7), wait + 14);                 // region A
  EXPECT_EQ(counters.row_count(7), wait + 15);               // region A
  EXPECT_EQ(counters.row_count(255), wait + 511);            // the last of region A
  EXPECT_EQ(counters.first_in_expert(0), wait + 512);        // region B
  EXPECT_EQ(counters.extra_rows(0), wait + 768);             // region C
  EXPECT_EQ(counters.blocks_left(), wait + 1024);            // region D
  EXPECT_EQ(counters.offsets_ready(), wait + 1025);          // region E
  EXPECT_EQ(counters.send_buf_ready(), wait + 1026);         // region F
  EXPECT_EQ(counters.shared_expert_started(), wait + 1027);  // region G
  EXPECT_EQ(counters.combine_blocks_left(), counters.get_combine_wait_ptr());
}

TEST(EPLocalSyncCounters, EvenOneExpertHasRoomForEveryFlag) {
  using Counters = EPLocalSyncCounters<1>;
  std::vector<int32_t> memory(Counters::total_size());
  const Counters counters{memory.data()};
  EXPECT_LT(counters.combine_blocks_left(), memory.data() + Counters::total_size());
  EXPECT_GT(counters.combine_blocks_left(), counters.shared_expert_started());
}

TEST(EPLocalSyncCounters, ANumberOfExpertsLeftToRunTimeGivesTheSameAddresses) {
  using Fixed = EPLocalSyncCounters<24>;
  std::vector<int32_t> memory(Fixed::total_size());
  const Fixed fixed(std::span<int32_t>{memory});
  EXPECT_EQ(fixed.ptr, memory.data());
  const EPLocalSyncCounters<> given(std::span<int32_t>{memory}, 24), converted = fixed;
  EXPECT_EQ(Fixed(given).ptr, memory.data());
  EXPECT_EQ(given.get_type_name(), "EPLocalSyncCounters");
  for (const EPLocalSyncCounters<>& counters : {given, converted}) {
    EXPECT_EQ(counters.layout().total_size(), Fixed::total_size());
    EXPECT_EQ(counters.get_dispatch_async_ptr(), fixed.get_dispatch_async_ptr());
    EXPECT_EQ(counters.get_dispatch_wait_ptr(), fixed.get_dispatch_wait_ptr());
    EXPECT_EQ(counters.get_combine_async_ptr(), fixed.get_combine_async_ptr());
    EXPECT_EQ(counters.get_combine_wait_ptr(), fixed.get_combine_wait_ptr());
    EXPECT_EQ(counters.finished(7), fixed.finished(7));
    EXPECT_EQ(counters.extra_rows(7), fixed.extra_rows(7));
    EXPECT_EQ(counters.shared_expert_started(), fixed.shared_expert_started());
  }
  static_assert(!std::is_convertible_v<EPLocalSyncCounters<23>, Fixed>);
  // What kernels are launched with.
  static_assert(sizeof(Fixed) == sizeof(int32_t*));
  static_assert(std::is_trivially_copyable_v<EPLocalSyncCounters<>>);
  static_assert(std::is_trivially_copyable_v<DispatchParams<DirectDispatchPart, int>>);
  static_assert(std::is_trivially_copyable_v<CombineParams<DirectCombinePart, int>>);
}

TEST(EPLocalSyncCounters, WhatTheDirectProtocolKeepsFitsIntoItsRegion) {
  for (int n_experts = 1; n_experts <= kMaxExperts; ++n_experts) {
    std::vector<int32_t> memory(static_cast<size_t>(SyncCounterLayout{n_experts}.total_size()));
    const EPLocalSyncCounters<> counters(memory.data(), n_experts);
    const int max_groups = n_experts + 1;  // the shared expert's too
    ASSERT_LT(DirectCounters(counters).row_offset(max_groups), counters.get_dispatch_wait_ptr());
  }
}

TEST(Layout, PartsOfAMessageAreAlignedTo16Bytes) {
  const MessageLayout layout{14336, 8};
  EXPECT_EQ(layout.src_token_offset(), 14336u);
  EXPECT_EQ(layout.expert_ids_offset(), 14352u);
  EXPECT_EQ(layout.bytes(), 14368u);
  EXPECT_EQ((MessageLayout{24, 9}.bytes()), 32u + 16 + 32);
}

TEST(Layout, OffsetsDoNotOverflow32Bits) {
  // 65535 tokens of 16384 bf16, top-32: far beyond 4 GiB.
  const CombineRecvLayout combine{65535, 32, 32768};
  EXPECT_EQ(combine.row(nullptr, 65534, 31) - combine.row(nullptr, 0, 0), (65534ll * 32 + 31) * 32768);
  const DispatchRecvLayout dispatch{1024, 1, 65535, 32864};
  EXPECT_EQ(dispatch.message(nullptr, 1023, 0, 65534) - dispatch.message(nullptr, 0, 0, 0),
            (1023ll * 65535 + 65534) * 32864);
  EXPECT_TRUE(dispatch.bytes().ok());
}

TEST(Layout, ACountIsNeverMistakenForNothing) {
  const ArrivalCount most{65535, 65535u * 31};
  EXPECT_NE(most.pack(), kNothingArrived);
  EXPECT_EQ(ArrivalCount::unpack(most.pack()).num_rows(), 65535u * 32);
  EXPECT_EQ((ArrivalCount{17, 0}.pack()), 17u) << "without repeats the cell is the plain count";
}

TEST(Result, TheValueOfAnErrorThrowsItsText) {
  Result<int> result = invalid_argument("n_ranks is %d; it must be 1..64", 99);
  const auto text_of = [](const auto& take) {
    try {
      take();
    } catch (const BadResult& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  const std::string expected = "invalid argument: n_ranks is 99; it must be 1..64";
  EXPECT_EQ(text_of([&] { (void)result.value(); }), expected);
  EXPECT_EQ(text_of([&] { (void)std::as_const(result).value(); }), expected);
  EXPECT_EQ(text_of([&] { (void)std::move(result).value(); }), expected);
}

}  // namespace
}  // namespace switchyard
