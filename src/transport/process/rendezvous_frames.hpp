// What the two sides of a rendezvous send each other, in this order: a challenge (server), a greeting
// (visitor), and an answer (server).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "token.hpp"
#include "transport/hello.hpp"
#include "transport/wire_bytes.hpp"

namespace switchyard {

inline constexpr uint64_t kRendezvousMagic = 0x31766472617968;  // "hyardv1"

inline Bytes encode_challenge(const Nonce& nonce) {
  return ByteWriter().number(kRendezvousMagic).number(nonce[0]).number(nonce[1]).take();
}
inline std::optional<Nonce> decode_challenge(const Bytes& body) {
  ByteReader reader(body);
  const bool is_ours = reader.number<uint64_t>() == kRendezvousMagic;
  Nonce nonce = {reader.number<uint64_t>(), 0};
  nonce[1] = reader.number<uint64_t>();
  return is_ours && reader.is_at_end() ? std::optional(nonce) : std::nullopt;
}

struct Greeting {
  Nonce nonce;  // the visitor's challenge to the server
  Proof proof;
  Bytes hello;
};
inline Bytes encode(const Greeting& greeting) {
  return ByteWriter()
      .number(greeting.nonce[0])
      .number(greeting.nonce[1])
      .number(greeting.proof[0])
      .number(greeting.proof[1])
      .bytes(greeting.hello)
      .take();
}
inline std::optional<Greeting> decode_greeting(const Bytes& body) {
  ByteReader reader(body);
  Greeting greeting{};
  for (uint64_t& word : greeting.nonce) word = reader.number<uint64_t>();
  for (uint64_t& word : greeting.proof) word = reader.number<uint64_t>();
  greeting.hello = reader.bytes(kMaxHelloBytes);
  return reader.is_at_end() ? std::optional(std::move(greeting)) : std::nullopt;
}

// A refusal, or what all processes said.
struct Answer {
  Status refusal;
  std::vector<Bytes> hellos;
  Proof proof{};
};
// What the server proves to have said.
inline Bytes provable_part(const Answer& answer) {
  ByteWriter writer;
  writer.number(static_cast<uint32_t>(answer.refusal.code())).text(answer.refusal.message());
  writer.number(static_cast<uint32_t>(answer.hellos.size()));
  for (const Bytes& hello : answer.hellos) writer.bytes(hello);
  return writer.take();
}
inline Bytes encode(const Answer& answer) {
  return ByteWriter().number(answer.proof[0]).number(answer.proof[1]).bytes(provable_part(answer)).take();
}
inline std::optional<Answer> decode_answer(const Bytes& body, size_t max_hellos) {
  ByteReader outer(body);
  Answer answer;
  for (uint64_t& word : answer.proof) word = outer.number<uint64_t>();
  const Bytes part = outer.bytes(body.size());
  ByteReader reader(part);
  const auto code = reader.number<uint32_t>();
  std::string message = reader.text(1024);
  if (code != 0 && code <= static_cast<uint32_t>(StatusCode::kInternal))
    (void)(answer.refusal = Status(static_cast<StatusCode>(code), std::move(message)));
  const auto count = reader.number<uint32_t>();
  if (count > max_hellos) return std::nullopt;
  for (uint32_t i = 0; i < count; ++i) answer.hellos.push_back(reader.bytes(kMaxHelloBytes));
  return outer.is_at_end() && reader.is_at_end() ? std::optional(std::move(answer)) : std::nullopt;
}

}  // namespace switchyard
