// What the kernels of dispatch ask of the type of a token format: of the library's, and of one that an
// application brings (own_kernels.hpp). The formats of the library have a TokenFormatKind instead
// (token_format.hpp).
//
// An object of the type says where the output is. It is made on the host for every launch and copied into the
// kernel's parameters, so it is trivially copyable, and its pointers are into memory of the device. It owns
// nothing.
//
// A format needs one pair of functions for each protocol that carries it:
//
//   slotted   encode() writes a token into a message, decode() writes the message into a row of the output
//   direct    encode_in_place() or encode_beside() turns a token in shared memory into its row and its
//             scales, and the kernel copies both to where they belong
//
// Threads. Sizes are asked on the host and in kernels (SWITCHYARD_HD). The other members run inside kernels
//   (SWITCHYARD_DEVICE), in many blocks at once, each on tokens and rows of its own. The comment of a concept
//   says how many threads of a block call a member for one token or row. They come in whole warps, all lanes
//   of which call together, so that lanes may shuffle and meet at sync_warp(); a barrier of the block is not
//   allowed, since its other warps may be elsewhere.
// Errors. There are none inside a kernel: what a format cannot represent it must map to something.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/target/vocabulary.hpp"

namespace switchyard {

// What the slotted protocol asks of a format. encode() and decode() are called by num_workers threads, for
// each token and each row once; worker_idx is 0 .. num_workers - 1, and worker_idx % 32 is the lane. encode()
// gets all threads of a block, decode() some warps of it.
template <typename Format>
concept TokenFormat = requires(const Format format, const typename Format::Input* token, std::byte* message,
                               const std::byte* received, int64_t row, int worker_idx, int num_workers) {
  // Bytes of an encoded token, a multiple of 16.
  { format.encoded_bytes() } -> std::convertible_to<uint32_t>;
  // Each expert's rows start at a multiple of this many rows.
  { format.row_alignment() } -> std::convertible_to<uint32_t>;
  // Writes the token, which is in the caller's memory, into the message, which is in shared memory.
  {format.encode(token, message, worker_idx, num_workers)};
  // Writes the message into row `row` of the output tensors that the format was made over.
  {format.decode(received, row, worker_idx, num_workers)};
};

// A row of the output, and whose it is.
struct ExpertRow {
  int64_t row;           // among all rows
  int64_t expert_begin;  // the first row of its group
  int32_t group_idx;     // of the rank's groups: local experts, behind the shared one where there is one
};

// The expert_idx of the shared expert.
inline constexpr int kSharedExpert = -1;

// What the slotted protocol asks of a format that must know the expert: as a TokenFormat, but encode() is
// called once for each expert of a token, and decode() knows whose row it writes.
template <typename Format>
concept ExpertTokenFormat = requires(const Format format, const typename Format::Input* token,
                                     std::byte* message, const std::byte* received, ExpertRow expert_row,
                                     int expert_idx, int worker_idx, int num_workers) {
  // As in TokenFormat.
  { format.encoded_bytes() } -> std::convertible_to<uint32_t>;
  { format.row_alignment() } -> std::convertible_to<uint32_t>;
  // expert_idx: of the model, or kSharedExpert.
  {format.encode(token, message, expert_idx, worker_idx, num_workers)};
  {format.decode(received, expert_row, worker_idx, num_workers)};
  // Tells the caller where the output of a group begins. Called by one thread, once for each group and step.
  {format.publish_expert(expert_row.group_idx, expert_row.expert_begin)};
};

// What the slotted protocol's kernels take.
template <typename Format>
concept DispatchFormat = TokenFormat<Format> || ExpertTokenFormat<Format>;
// A token is not the same to all of its experts, so that it is encoded for each.
template <typename Format>
concept EncodesByExpert = ExpertTokenFormat<Format> && !TokenFormat<Format>;

// What the direct protocol asks of a format whose tokens become codes: the codes are the row, and scales go
// beside it.
template <typename Format>
concept EncodedRowFormat = DispatchFormat<Format> && requires(const Format format) {
  // Whether the tensor of scales interleaves neighbouring rows. The rank that receives the rows then fetches
  // their scales, and store_scales() writes them there.
  { Format::kInterleavesRows } -> std::convertible_to<bool>;
  // Bytes of a row of the output, a multiple of 16.
  { format.row_bytes() } -> std::convertible_to<uint32_t>;
  // Bytes of a row's scales.
  { format.scales_bytes() } -> std::convertible_to<uint32_t>;
};
// A token becomes its codes where it lies in shared memory, for all of its experts at once. encode_in_place()
// is called by one warp, once for each token: no lane may write where another has yet to read.
template <typename Format>
concept InPlaceTokenFormat = EncodedRowFormat<Format> && TokenFormat<Format> &&
    requires(const Format format, std::byte* token, std::byte* scales) {
  {format.encode_in_place(token, scales)};
};
// A token becomes its codes beside it in shared memory, for one expert after the other. encode_beside() is
// called by one warp, once for each token and expert. Such a format interleaves rows.
template <typename Format>
concept BesideTokenFormat = EncodedRowFormat<Format> && EncodesByExpert<Format> &&
    requires(const Format format, const std::byte* token, std::byte* codes, std::byte* scales,
             int expert_idx) {
  {format.encode_beside(token, codes, scales, expert_idx)};
};

// What store_scales() is given: the scales of neighbouring rows, in shared memory. The kernel's own type has
// the same member.
struct AnyScaleBand {
  // Sixteen bytes of a row's scales, from byte `first_byte` on.
  Vec16 load(int64_t row, uint32_t first_byte) const;
};
// What the direct protocol asks of a format that interleaves rows. store_scales() is called by one warp, once
// for kStoredRows rows from first_row on and sixteen bytes of their scales from first_byte on; rows from
// num_rows on do not exist.
template <typename Format>
concept InterleavedTokenFormat = EncodedRowFormat<Format> && Format::kInterleavesRows &&
    requires(const Format format, std::byte* rows, std::byte* scales, const AnyScaleBand& band,
             int64_t first_row, int64_t num_rows, uint32_t first_byte) {
  // A divisor of 128.
  { Format::kStoredRows } -> std::convertible_to<uint32_t>;
  // The same format over other tensors.
  { format.with_output(rows, scales) } -> std::same_as<Format>;
  {format.store_scales(band, first_row, num_rows, first_byte)};
};

// A format whose rows are the tokens as they came: the direct protocol copies them.
template <typename Format>
concept PlainTokenFormat = TokenFormat<Format> && Format::kSendsTokensAsTheyAre;

// What the direct protocol's kernels take.
template <typename Format>
concept DirectFormat = PlainTokenFormat<Format> ||
    ((InPlaceTokenFormat<Format> || BesideTokenFormat<Format>)&&(!Format::kInterleavesRows ||
                                                                 InterleavedTokenFormat<Format>));

// Bytes of a row of scales in flight: as in the tensor, or whole 16 bytes where store_scales() brings them
// there.
template <typename Format>
SWITCHYARD_HD constexpr uint32_t scale_row_bytes(const Format& format) {
  return Format::kInterleavesRows ? align_up(format.scales_bytes(), 16u) : format.scales_bytes();
}

}  // namespace switchyard
