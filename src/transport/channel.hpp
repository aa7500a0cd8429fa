// A stream socket that carries frames: a length of four bytes, capped, and as many bytes; a frame may bring
// open files along (Unix sockets). Nothing here blocks: a peer that sends half a frame, or does not read, is
// left alone until there is more.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "deadline.hpp"
#include "switchyard/detail/device/file_descriptor.hpp"
#include "switchyard/detail/transport/transport.hpp"

namespace switchyard {

inline constexpr size_t kMaxFrameBytes = 1 << 20;

struct Frame {
  Bytes body;
  std::vector<FileDescriptor> files;
};

// Sending and receiving share nothing: each half is used by one thread at a time.
class Channel {
 public:
  Channel() = default;
  explicit Channel(FileDescriptor socket);

  bool is_open() const { return socket_.is_open(); }
  int number() const { return socket_.number(); }
  void close() { socket_.close(); }

  // Sends a frame behind those before it, as far as the socket takes it now.
  void send(const Bytes& body, std::span<const int> files = {});
  bool has_unsent() const { return !unsent_.empty(); }
  // Sends more; false: the peer is gone.
  bool flush();
  // Sends everything before the deadline; false: it is not all sent, because of the deadline or the peer.
  bool flush_until(const Deadline& deadline);

  // Reads what there is; false: the peer has closed, or sent what is no frame. Frames from before that can
  // still be taken.
  bool receive();
  std::optional<Frame> next_frame();

 private:
  struct Unsent {
    Bytes bytes;
    size_t num_sent = 0;
    std::vector<FileDescriptor> files;  // with the first byte; ours, for the sender may close its own
  };

  FileDescriptor socket_;
  std::deque<Unsent> unsent_;
  Bytes received_;
  std::deque<std::pair<size_t, FileDescriptor>> files_;  // each with the position it came at
  size_t num_taken_ = 0;                                 // bytes of frames that were taken
};

}  // namespace switchyard
