// What the formats with scale groups share: one pass over a token that finds each group's largest magnitude,
// computes its scale and writes codes and scales into the message.
#pragma once

#include <bit>
#include <type_traits>

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/base/e8m0.hpp"
#include "switchyard/detail/base/minifloat.hpp"
#include "switchyard/detail/base/packing.hpp"
#include "switchyard/detail/target/target.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard {

// A scale group whose elements are all finite has a finite amax. Otherwise the scale group is NaN as a whole.
SWITCHYARD_HD constexpr bool is_finite(float amax) { return std::bit_cast<uint32_t>(amax) < 0x7f800000u; }
inline constexpr float kQuietNan = std::bit_cast<float>(0x7fc00000u);

// An encoded token: the codes of all elements, then the scales of all scale groups; both start at a multiple
// of 16 bytes.
template <typename Quantizer>
struct GroupedMessageLayout {
  using Scale = typename Quantizer::Scale;

  int hidden;  // a multiple of Quantizer::kGroupSize

  SWITCHYARD_HD constexpr uint32_t num_scales() const {
    return static_cast<uint32_t>(hidden / Quantizer::kGroupSize);
  }
  SWITCHYARD_HD constexpr uint32_t codes_bytes() const {
    return packed_bytes(static_cast<uint32_t>(hidden), Quantizer::Element::kNumBits);
  }
  SWITCHYARD_HD constexpr uint32_t scales_bytes() const {
    return num_scales() * static_cast<uint32_t>(sizeof(Scale));
  }
  SWITCHYARD_HD constexpr uint32_t scales_offset() const { return align_up(codes_bytes(), 16u); }
  SWITCHYARD_HD constexpr uint32_t bytes() const { return align_up(scales_offset() + scales_bytes(), 16u); }
  template <typename Byte>
  SWITCHYARD_HD auto scales(Byte* message) const {
    if constexpr (std::is_const_v<Byte>)
      return reinterpret_cast<const Scale*>(message + scales_offset());
    else
      return reinterpret_cast<Scale*>(message + scales_offset());
  }
};

}  // namespace switchyard

namespace switchyard::inline SWITCHYARD_TARGET {

// A chunk, which is what a lane takes at a time: two 16-byte loads, and at least 8 bytes of codes.
inline constexpr int kElementsPerLane = 16;

// The bf16 elements of a chunk, as loaded.
struct LaneElements {
  Vec16 halves[2];

  // Elements 2 * i and 2 * i + 1.
  SWITCHYARD_DEVICE uint32_t pair(int i) const { return halves[i / 4].words[i % 4]; }
  SWITCHYARD_DEVICE float value(int i) const {
    return std::bit_cast<float>(i % 2 == 0 ? pair(i / 2) << 16 : pair(i / 2) & 0xffff0000u);
  }
};

// The elements of a chunk as floats that a lane has computed.
struct LaneFloats {
  float values[kElementsPerLane];

  SWITCHYARD_DEVICE float value(int i) const { return values[i]; }
};

// The largest magnitude of the lane's scale group, which several lanes share if it has more elements than one
// lane takes. Magnitudes compare as integers: NaN is larger than infinity, which is larger than all numbers.
template <int kGroupSize>
SWITCHYARD_DEVICE float group_amax(const LaneElements& elements) {
  static_assert(kGroupSize % kElementsPerLane == 0 && kGroupSize <= kElementsPerLane * kWarpSize);
  constexpr uint32_t kMagnitudes = 0x7fff7fffu;
  uint32_t amax = elements.pair(0) & kMagnitudes;
  for (int i = 1; i < kElementsPerLane / 2; ++i)
    amax = target::max_u16x2(amax, elements.pair(i) & kMagnitudes);
  for (int lane_mask = 1; lane_mask < kGroupSize / kElementsPerLane; lane_mask *= 2)
    amax = target::max_u16x2(amax, target::shuffle_xor(amax, lane_mask));
  return to_float(bf16{static_cast<uint16_t>(target::max_u16x2(amax, amax >> 16))});
}

template <int kGroupSize>
SWITCHYARD_DEVICE float group_amax(const LaneFloats& elements) {
  static_assert(kGroupSize % kElementsPerLane == 0 && kGroupSize <= kElementsPerLane * kWarpSize);
  uint32_t amax = 0;
  const auto include = [&](uint32_t magnitude) { amax = magnitude > amax ? magnitude : amax; };
  SWITCHYARD_UNROLL
  for (int i = 0; i < kElementsPerLane; ++i)
    include(std::bit_cast<uint32_t>(elements.values[i]) & 0x7fffffffu);
  for (int lane_mask = 1; lane_mask < kGroupSize / kElementsPerLane; lane_mask *= 2)
    include(target::shuffle_xor(amax, lane_mask));
  return std::bit_cast<float>(amax);
}

// Elements: LaneElements or LaneFloats.
template <typename Element, typename Elements>
SWITCHYARD_DEVICE void quantize(const Elements& elements, float factor,
                                uint32_t (&words)[kElementsPerLane * Element::kNumBits / 32]) {
  constexpr bool kIsE4M3 = std::is_same_v<Element, e4m3>, kIsE5M2 = std::is_same_v<Element, e5m2>;
  uint8_t codes[kElementsPerLane];
  SWITCHYARD_UNROLL
  for (int i = 0; i < kElementsPerLane / 2; ++i) {
    const float first = elements.value(2 * i) * factor;
    const float second = elements.value(2 * i + 1) * factor;
    if constexpr (kIsE4M3 || kIsE5M2) {
      const uint32_t both = kIsE4M3 ? target::to_e4m3x2(first, second) : target::to_e5m2x2(first, second);
      words[i / 2] = i % 2 == 0 ? both : words[i / 2] | both << 16;
    } else {
      codes[2 * i] = to_minifloat<Element>(first).bits;
      codes[2 * i + 1] = to_minifloat<Element>(second).bits;
    }
  }
  if constexpr (!kIsE4M3 && !kIsE5M2) pack_codes<Element::kNumBits>(codes, words);
}

// The same for bf16 to e2m1, a conversion that Hopper has no instruction for. The code of a magnitude a is
// the least of round(2 a), round(a) + 2, round(a / 2) + 4 and 7: each is exact where e2m1 has that spacing,
// and above the others elsewhere. Adding a float whose unit in the last place is 1 rounds to nearest even and
// leaves the integer in the low bits.
SWITCHYARD_DEVICE void quantize_e2m1(const LaneElements& elements, float factor, uint32_t (&words)[2]) {
  constexpr float kAnchor = 12582912.0f;                      // 1.5 * 2^23
  constexpr uint32_t kAnchorBits = 0x4b400000u;               // its bits, to which the code is then added
  constexpr uint32_t kAnchorSum = kAnchorBits * 0x11111111u;  // the sum of eight of them, 4 bits apart
  SWITCHYARD_UNROLL
  for (int half = 0; half < 2; ++half) {
    const uint32_t(&pairs)[4] = elements.halves[half].words;
    uint32_t codes = 0u - kAnchorSum;
    SWITCHYARD_UNROLL
    for (int i = 0; i < 8; ++i) {
      const uint32_t magnitudes = pairs[i / 2] & 0x7fff7fffu;
      const float magnitude =
          std::bit_cast<float>(i % 2 == 0 ? magnitudes << 16 : magnitudes & 0xffff0000u) * factor;
      const float below_2 = target::add_exact_product(kAnchor, magnitude, 2.0f);
      const float below_4 = magnitude + (kAnchor + 2.0f);
      const float below_6 = target::add_exact_product(kAnchor + 4.0f, magnitude, 0.5f);
      const float code =
          target::min_f32(target::min_f32(below_2, below_4), target::min_f32(below_6, kAnchor + 7.0f));
      codes += std::bit_cast<uint32_t>(code) << (4 * i);
    }
    // Signs: the top bits of the elements' upper bytes.
    const uint32_t even = target::permute_bytes(target::permute_bytes(pairs[0], pairs[1], 0x5151),
                                                target::permute_bytes(pairs[2], pairs[3], 0x5151), 0x5410);
    const uint32_t odd = target::permute_bytes(target::permute_bytes(pairs[0], pairs[1], 0x7373),
                                               target::permute_bytes(pairs[2], pairs[3], 0x7373), 0x5410);
    const uint32_t signs = (even & 0x80808080u) >> 4 | (odd & 0x80808080u);
    words[half] = factor == factor ? codes | signs : 0x77777777u;  // if not: a scale group that is NaN
  }
}

template <int kNumWords>
SWITCHYARD_DEVICE void store_words(std::byte* dst, const uint32_t (&words)[kNumWords]) {
  if constexpr (kNumWords == 4) {
    target::st_16(dst, Vec16{{words[0], words[1], words[2], words[3]}});
  } else if constexpr (kNumWords == 2) {
    target::st(reinterpret_cast<uint64_t*>(dst), words[0] | static_cast<uint64_t>(words[1]) << 32);
  } else {
    for (int i = 0; i < kNumWords; ++i) target::st(reinterpret_cast<uint32_t*>(dst) + i, words[i]);
  }
}

enum class EncodePlace {
  kApart,    // the codes do not overlap the token
  kInPlace,  // one warp writes the codes over the token, from its beginning: it has read what it overwrites
};

// Encodes a token. A quantizer has an Element, a Scale, a kGroupSize, and scale_of(amax), which returns the
// scale to store and the factor by which elements are multiplied.
template <EncodePlace kPlace = EncodePlace::kApart, typename Quantizer>
SWITCHYARD_DEVICE void encode_groups(const Quantizer& quantizer, int hidden, const bf16* token,
                                     std::byte* codes, typename Quantizer::Scale* scales, int worker_idx,
                                     int num_workers) {
  using Element = typename Quantizer::Element;
  constexpr int kNumWords = kElementsPerLane * Element::kNumBits / 32;
  constexpr int kLanesPerGroup = Quantizer::kGroupSize / kElementsPerLane;
  // How many chunks of a lane are in flight; in place, chunks come from shared memory and need no prefetch.
  constexpr int kInFlight = kPlace == EncodePlace::kInPlace ? 1 : 2;
  const int num_chunks = hidden / kElementsPerLane;
  const int lane_idx = worker_idx % kWarpSize;
  // All lanes of a warp iterate together, even those past the end: shuffles need every lane.
  for (int warp_chunk = worker_idx - lane_idx; warp_chunk < num_chunks;
       warp_chunk += kInFlight * num_workers) {
    LaneElements elements[kInFlight];
    SWITCHYARD_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const int chunk_idx = warp_chunk + lane_idx + i * num_workers;
      elements[i] = LaneElements{};
      if (chunk_idx >= num_chunks) continue;
      for (int half = 0; half < 2; ++half)
        elements[i].halves[half] = target::ld_16(token + chunk_idx * kElementsPerLane + half * 8);
    }
    if constexpr (kPlace == EncodePlace::kInPlace) target::sync_warp();
    SWITCHYARD_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const int chunk_idx = warp_chunk + lane_idx + i * num_workers;
      const auto scale = quantizer.scale_of(group_amax<Quantizer::kGroupSize>(elements[i]));
      if (chunk_idx >= num_chunks) continue;
      uint32_t words[kNumWords];
      if constexpr (std::is_same_v<Element, e2m1>)
        quantize_e2m1(elements[i], scale.factor, words);
      else
        quantize<Element>(elements[i], scale.factor, words);
      store_words(codes + chunk_idx * static_cast<int>(sizeof(words)), words);
      if (chunk_idx % kLanesPerGroup == 0) target::st(scales + chunk_idx / kLanesPerGroup, scale.stored);
    }
  }
}

// Encodes a token into a message of GroupedMessageLayout<Quantizer>.
template <typename Quantizer>
SWITCHYARD_DEVICE void encode_message(const Quantizer& quantizer, int hidden, const bf16* token,
                                      std::byte* message, int worker_idx, int num_workers) {
  encode_groups(quantizer, hidden, token, message, GroupedMessageLayout<Quantizer>{hidden}.scales(message),
                worker_idx, num_workers);
}

// Encodes a token in place, by one warp; `scales` must not overlap it.
template <typename Quantizer>
SWITCHYARD_DEVICE void encode_in_place(const Quantizer& quantizer, int hidden, std::byte* token,
                                       std::byte* scales) {
  encode_groups<EncodePlace::kInPlace>(quantizer, hidden, reinterpret_cast<const bf16*>(token), token,
                                       reinterpret_cast<typename Quantizer::Scale*>(scales),
                                       target::lane_idx(), kWarpSize);
}

// Copies bytes in units as wide as their number allows: both ends must be aligned to the largest power of
// two, up to 16, that divides it.
SWITCHYARD_DEVICE void copy_bytes(void* dst, const void* src, uint32_t num_bytes, int worker_idx,
                                  int num_workers) {
  const auto copy_as = [&](auto unit) {
    using Unit = decltype(unit);
    for (uint32_t i = static_cast<uint32_t>(worker_idx); i < num_bytes / sizeof(Unit);
         i += static_cast<uint32_t>(num_workers))
      target::st(static_cast<Unit*>(dst) + i, target::ld(static_cast<const Unit*>(src) + i));
  };
  if (num_bytes % 16 == 0)
    target::copy_row(dst, src, num_bytes, worker_idx, num_workers);
  else if (num_bytes % 4 == 0)
    copy_as(uint32_t{});
  else
    copy_as(uint8_t{});
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
