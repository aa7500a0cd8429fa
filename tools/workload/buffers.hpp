// Allocates buffers of a rank into variables, and fills them.
#pragma once

#include <vector>

#include "switchyard/world.hpp"

namespace switchyard::tools {

template <typename T>
Status allocate_into(Buffer<T>& buffer, const Rank& rank, uint64_t size) {
  Result<Buffer<T>> allocated = rank.allocate<T>(size);
  if (!allocated.ok()) return allocated.status();
  buffer = std::move(allocated).value();
  return Status();
}

template <typename T>
Status upload_into(Buffer<T>& buffer, const Rank& rank, const std::vector<T>& values) {
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffer, rank, values.size()));
  return buffer.upload(values);
}

}  // namespace switchyard::tools
