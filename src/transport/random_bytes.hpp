// Numbers that nobody can guess.
#pragma once

#include <sys/random.h>

#include <array>
#include <cstdint>
#include <cstdlib>

namespace switchyard {

using Nonce = std::array<uint64_t, 2>;

inline Nonce random_nonce() {
  Nonce nonce{};
  // The kernel has as many bytes as this at once; without them there is no secret to go on with.
  if (getrandom(nonce.data(), sizeof(nonce), 0) != static_cast<ssize_t>(sizeof(nonce))) std::abort();
  return nonce;
}

}  // namespace switchyard
