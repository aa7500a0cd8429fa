// The secret that the processes of a world share, and the proof that one knows it. The token itself never
// travels: each side sends a keyed hash (SipHash-2-4) of what the other side drew and of what it says.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "switchyard/detail/transport/transport.hpp"
#include "transport/random_bytes.hpp"

namespace switchyard {

using Token = std::array<uint64_t, 2>;

// From 32 hex digits.
Result<Token> parse_token(const std::string& text, const char* source);
// `given` if it is not empty, else the file that SWITCHYARD_TOKEN_FILE names, else SWITCHYARD_TOKEN, else
// none.
Result<std::optional<Token>> find_token(const std::string& given);

using Proof = std::array<uint64_t, 2>;

// `role` keeps the proofs of the two sides apart.
Proof prove(const Token& token, char role, const Nonce& challenge, const Bytes& said);
// Takes as long for any difference.
bool is_same(const Proof& a, const Proof& b);

// SipHash-2-4 of 64 bits.
uint64_t sip_hash(const Token& key, const Bytes& message);

}  // namespace switchyard
