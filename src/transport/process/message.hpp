// What processes that have joined a world send each other over the mesh.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "channel.hpp"
#include "transport/wire_bytes.hpp"

namespace switchyard {

enum class MessageKind : uint32_t {
  kGather,   // a contribution to a collective call
  kMemory,   // files of memory, one message per rank
  kFailed,   // the collective call failed at the sender; the payload is its status
  kGoodbye,  // the process leaves in order; the payload is the reason
};

// Collective calls among the same members are numbered from 1; `group` stands for the members.
struct Message {
  MessageKind kind = MessageKind::kGather;
  uint64_t group = 0;
  uint64_t sequence = 0;
  Bytes payload;
  std::vector<FileDescriptor> files;
  bool has_lost_files = false;  // as in Frame
};

inline constexpr size_t kMessageHeaderBytes = 24;  // with the length of the payload
inline constexpr size_t kMaxPayloadBytes = kMaxFrameBytes - kMessageHeaderBytes;

inline Bytes encode_message(MessageKind kind, uint64_t group, uint64_t sequence, const Bytes& payload) {
  return ByteWriter()
      .number(static_cast<uint32_t>(kind))
      .number(group)
      .number(sequence)
      .bytes(payload)
      .take();
}
inline std::optional<Message> decode_message(Frame frame) {
  ByteReader reader(frame.body);
  Message message;
  const auto kind = reader.number<uint32_t>();
  message.kind = static_cast<MessageKind>(kind);
  message.group = reader.number<uint64_t>();
  message.sequence = reader.number<uint64_t>();
  message.payload = reader.bytes(kMaxPayloadBytes);
  message.files = std::move(frame.files);
  message.has_lost_files = frame.has_lost_files;
  if (kind > static_cast<uint32_t>(MessageKind::kGoodbye) || !reader.is_at_end()) return std::nullopt;
  return message;
}

// The same for the same ranks in the same order, on every process.
inline uint64_t group_of(std::span<const int> members) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int rank : members) hash = (hash ^ static_cast<uint64_t>(rank)) * 0x100000001b3;
  return hash;
}

}  // namespace switchyard
