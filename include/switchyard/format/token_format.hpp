// A token format says how a token travels: its encoded size, and how it is written into a message and out of
// one.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace switchyard {

// Threads call encode and decode together, each with its worker_idx of num_workers; neither may synchronise.
template <typename Format>
concept TokenFormat = requires(const Format format, const typename Format::Input* token, std::byte* message,
                               const std::byte* received, int64_t row, int worker_idx, int num_workers) {
  // Bytes of an encoded token, a multiple of 16.
  { format.encoded_bytes() } -> std::convertible_to<uint32_t>;
  // Each expert's rows start at a multiple of this many rows.
  { format.row_alignment() } -> std::convertible_to<uint32_t>;
  // Writes the token into the message.
  {format.encode(token, message, worker_idx, num_workers)};
  // Writes the message into row `row` of the output tensors the format was made with.
  {format.decode(received, row, worker_idx, num_workers)};
};

}  // namespace switchyard
