// What kernels may ask of a token format beyond the TokenFormat concept: the expert of a row, and rows that
// the direct protocol writes where they belong.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/target/vocabulary.hpp"
#include "switchyard/token_format.hpp"

namespace switchyard {

// A row of the output, and whose it is.
struct ExpertRow {
  int64_t row;           // among all rows
  int64_t expert_begin;  // the first row of its group
  int32_t group_idx;     // of the rank's groups: local experts, behind the shared one where there is one
};

// A format that wants to know the expert. What it asks for beyond a TokenFormat: a message for one expert
// only, a decode that knows whose row it writes, and a call per group, by one thread, that exports where the
// group's part of the output starts.
template <typename Format>
concept ExpertTokenFormat = requires(const Format format, const typename Format::Input* token,
                                     std::byte* message, const std::byte* received, ExpertRow place,
                                     int expert_idx, int worker_idx, int num_workers) {
  { format.encoded_bytes() } -> std::convertible_to<uint32_t>;
  { format.row_alignment() } -> std::convertible_to<uint32_t>;
  // expert_idx: of the model, or kSharedExpert.
  {format.encode(token, message, expert_idx, worker_idx, num_workers)};
  {format.decode(received, place, worker_idx, num_workers)};
  {format.publish_expert(place.group_idx, place.expert_begin)};
};
inline constexpr int kSharedExpert = -1;

// What the kernels take.
template <typename Format>
concept DispatchFormat = TokenFormat<Format> || ExpertTokenFormat<Format>;
// A token is not the same to all of its experts, so that it is encoded for each.
template <typename Format>
concept EncodesByExpert = ExpertTokenFormat<Format> && !TokenFormat<Format>;

// A format whose rows the direct protocol writes: codes are the row, and scales go beside it, row by row.
template <typename Format>
concept EncodedRowFormat = DispatchFormat<Format> && requires(const Format format) {
  // Whether the scales of neighbouring rows lie side by side in their tensor: who receives the rows then
  // fetches them, and brings them there with store_scales().
  { Format::kInterleavesRows } -> std::convertible_to<bool>;
  // Bytes of a row of the output, a multiple of 16.
  { format.row_bytes() } -> std::convertible_to<uint32_t>;
  { format.scales_bytes() } -> std::convertible_to<uint32_t>;
};
// A token becomes its codes where it lies in shared memory. By one whole warp.
template <typename Format>
concept InPlaceTokenFormat = EncodedRowFormat<Format> && TokenFormat<Format> &&
    requires(const Format format, std::byte* token, std::byte* scales) {
  {format.encode_in_place(token, scales)};
};
// Or, encoded for one expert after the other, beside it.
template <typename Format>
concept BesideTokenFormat = EncodedRowFormat<Format> && EncodesByExpert<Format> &&
    requires(const Format format, const std::byte* token, std::byte* codes, std::byte* scales,
             int expert_idx) {
  {format.encode_beside(token, codes, scales, expert_idx)};
};

// What store_scales() may ask of the scales it is given: sixteen bytes of a row's.
struct AnyScaleBand {
  Vec16 load(int64_t row, uint32_t first_byte) const;  // a ScaleBand's, ep/direct/staged_scales.hpp
};
// What dispatch_wait needs of a format that interleaves rows. Work comes in units: kStoredRows rows by
// sixteen bytes of their scales, for one warp each, which store_scales() brings to their place.
template <typename Format>
concept InterleavedTokenFormat = EncodedRowFormat<Format> && Format::kInterleavesRows &&
    requires(const Format format, std::byte* rows, std::byte* scales, const AnyScaleBand& band,
             int64_t first_row, int64_t num_rows, uint32_t first_byte) {
  { Format::kStoredRows } -> std::convertible_to<uint32_t>;
  // The same format with other tensors.
  { format.with_output(rows, scales) } -> std::same_as<Format>;
  {format.store_scales(band, first_row, num_rows, first_byte)};
};

// A format whose rows are the tokens as they came.
template <typename Format>
concept PlainTokenFormat = TokenFormat<Format> && Format::kSendsTokensAsTheyAre;

// What the direct protocol's kernels take.
template <typename Format>
concept DirectFormat = PlainTokenFormat<Format> ||
    ((InPlaceTokenFormat<Format> || BesideTokenFormat<Format>)&&(!Format::kInterleavesRows ||
                                                                 InterleavedTokenFormat<Format>));

// Bytes of a row of scales: as in the tensor, or whole 16 bytes where they are to be brought there.
template <typename Format>
SWITCHYARD_HD constexpr uint32_t scale_row_bytes(const Format& format) {
  return Format::kInterleavesRows ? align_up(format.scales_bytes(), 16u) : format.scales_bytes();
}

}  // namespace switchyard
