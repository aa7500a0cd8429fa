// A status as the bytes that processes send each other.
#pragma once

#include <string>

#include "transport/wire_bytes.hpp"

namespace switchyard {

inline Bytes encode_status(const Status& status) {
  return ByteWriter()
      .number(static_cast<uint32_t>(status.code()))
      .text(status.message().substr(0, 1024))
      .take();
}
// An error, or ok; what cannot be read is an error.
inline Status decode_status(const Bytes& bytes) {
  ByteReader reader(bytes);
  const auto code = reader.number<uint32_t>();
  std::string message = reader.text(1024);
  if (!reader.is_at_end() || code > static_cast<uint32_t>(StatusCode::kInternal))
    return internal_error("a status of %zu bytes cannot be read", bytes.size());
  return code == 0 ? Status() : Status(static_cast<StatusCode>(code), std::move(message));
}

}  // namespace switchyard
