#include "token.hpp"

#include <sys/stat.h>

#include <bit>
#include <cstdlib>
#include <fstream>

#include "transport/wire_bytes.hpp"

namespace switchyard {
namespace {

constexpr size_t kTokenDigits = 32;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

struct SipState {
  uint64_t v0, v1, v2, v3;

  void round() {
    v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
    v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
  }
  void absorb(uint64_t word) {
    v3 ^= word;
    round(), round();
    v0 ^= word;
  }
};

}  // namespace

// The text is a secret: no error shows any of it.
Result<Token> parse_token(const std::string& text, const char* source) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  const std::string digits = text.substr(0, end == std::string::npos ? 0 : end + 1);
  if (digits.size() != kTokenDigits)
    return invalid_argument("%s has %zu characters; it must be %zu hex digits", source, digits.size(),
                            kTokenDigits);
  Token token{};
  for (size_t i = 0; i < kTokenDigits; ++i) {
    const int digit = hex_digit(digits[i]);
    if (digit < 0) return invalid_argument("%s must be hex digits; character %zu is not", source, i);
    token[i / 16] = token[i / 16] << 4 | static_cast<uint64_t>(digit);
  }
  return token;
}

namespace {

// A secret that everybody on the machine can read, or write, is none.
Status check_secrecy(const char* path, const std::string& source) {
  struct stat file {};
  if (stat(path, &file) != 0 || !S_ISREG(file.st_mode) || (file.st_mode & (S_IROTH | S_IWOTH)) == 0)
    return Status();
  return invalid_argument(
      "%s has mode %04o, so that every user can read or write it; chmod o-rw keeps it secret", source.c_str(),
      static_cast<unsigned>(file.st_mode & 07777));
}

}  // namespace

Result<std::optional<Token>> find_token(const std::string& given) {
  std::string text = given, source = "token";
  if (const char* path = std::getenv("SWITCHYARD_TOKEN_FILE"); text.empty() && path != nullptr) {
    source = std::string("the file ") + path + " of SWITCHYARD_TOKEN_FILE";
    SWITCHYARD_RETURN_IF_ERROR(check_secrecy(path, source));
    std::ifstream file(path);
    if (!std::getline(file, text)) return invalid_argument("%s cannot be read", source.c_str());
  } else if (const char* value = std::getenv("SWITCHYARD_TOKEN"); text.empty() && value != nullptr) {
    source = "SWITCHYARD_TOKEN";
    text = value;
  } else if (text.empty()) {
    return std::optional<Token>();
  }
  const Result<Token> token = parse_token(text, source.c_str());
  if (!token.ok()) return token.status();
  return std::optional<Token>(token.value());
}

uint64_t sip_hash(const Token& key, const Bytes& message) {
  SipState state{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
                 key[1] ^ 0x7465646279746573};
  uint64_t word = 0;
  for (size_t i = 0; i < message.size(); ++i) {
    word |= std::to_integer<uint64_t>(message[i]) << (8 * (i % 8));
    if (i % 8 == 7) state.absorb(std::exchange(word, 0));
  }
  state.absorb(word | static_cast<uint64_t>(message.size() & 0xff) << 56);
  state.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

Proof prove(const Token& token, char role, const Nonce& challenge, const Bytes& said) {
  Proof proof{};
  for (uint8_t half = 0; half < 2; ++half)
    proof[half] = sip_hash(
        token,
        ByteWriter().number(half).number(role).number(challenge[0]).number(challenge[1]).bytes(said).take());
  return proof;
}

bool is_same(const Proof& a, const Proof& b) {
  const volatile uint64_t difference = (a[0] ^ b[0]) | (a[1] ^ b[1]);
  return difference == 0;
}

}  // namespace switchyard
