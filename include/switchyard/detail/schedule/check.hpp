// Checks before a launch, on the host: can the tiles of a batch be counted, and have a block each?
#pragma once

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/status.hpp"
#include "switchyard/types/tile_types.hpp"

namespace switchyard {

inline Status check_tile_counts(const MHATileShape& shape, uint64_t batch_size, uint64_t max_seq_len,
                                uint64_t num_rows) {
  if (shape.tile_shape == 0 || shape.num_heads == 0 || shape.num_ctas == 0)
    return invalid_argument("tiles of %u rows, %u heads, %u blocks: each must be at least 1",
                            shape.tile_shape, shape.num_heads, shape.num_ctas);
  const uint64_t num_tiles = max_seq_len / shape.tile_shape + (max_seq_len % shape.tile_shape != 0);
  // A block's last stride leads past the end by as many places as there are blocks; a last tile, past its
  // sequence.
  const CheckedSize places = CheckedSize(batch_size) * CheckedSize(shape.num_heads) * CheckedSize(num_tiles) +
                             CheckedSize(shape.num_ctas);
  const CheckedSize last_row = CheckedSize(num_tiles) * CheckedSize(shape.tile_shape);
  constexpr uint64_t kMaxPlaces = INT32_MAX;  // as many blocks as a grid can have
  const bool fits = places.ok() && places.value() <= kMaxPlaces && last_row.ok() &&
                    last_row.value() <= UINT32_MAX && num_rows <= UINT32_MAX;
  if (!fits)
    return invalid_argument(
        "%llu sequences of up to %llu rows, %llu rows in all, %u heads, tiles of %u rows, %u blocks: more "
        "rows than 32 bits or more tiles than 31 bits can count",
        static_cast<unsigned long long>(batch_size), static_cast<unsigned long long>(max_seq_len),
        static_cast<unsigned long long>(num_rows), shape.num_heads, shape.tile_shape, shape.num_ctas);
  return Status();
}

}  // namespace switchyard
