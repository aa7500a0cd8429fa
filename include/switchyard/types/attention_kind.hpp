// The kinds of attention kernels. A shape has one (AttentionChoice::kind in attention.hpp): the lengths and
// the mask decide.
#pragma once

namespace switchyard {

enum class AttentionKind {
  kFull,    // every query sees every key
  kMasked,  // causal, sliding window, or both
  kDecode,  // few queries per sequence, or any number where keys are codes or latents: the query heads of a
            // K/V head share a tile, keys may be split over blocks
  kShortMasked,  // masked, of short sequences: head dimension 64 only, since with 192-row tiles too many rows
                 // would be fully masked; two blocks fit on a multiprocessor
};
inline constexpr int kNumAttentionKinds = 4;

// What keys and values are stored as: bf16, or e4m3 codes with a scale for each K/V head.
enum class KvFormat { kBF16, kFP8 };

constexpr const char* to_string(KvFormat format) { return format == KvFormat::kBF16 ? "bf16" : "fp8"; }
constexpr const char* to_string(AttentionKind kind) {
  constexpr const char* kNames[] = {"full", "masked", "decode", "short masked"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace switchyard
