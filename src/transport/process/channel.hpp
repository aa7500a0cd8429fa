// A stream socket that carries frames: a length of four bytes, capped, and as many bytes; a frame may bring
// open files along (Unix sockets). Nothing here blocks: a peer that sends half a frame, or does not read, is
// left alone until there is more.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "switchyard/detail/device/file_descriptor.hpp"
#include "switchyard/detail/transport/transport.hpp"
#include "transport/deadline.hpp"

namespace switchyard {

inline constexpr size_t kMaxFrameBytes = 1 << 20;

struct Frame {
  Bytes body;
  std::vector<FileDescriptor> files;
  bool has_lost_files = false;  // more came with it than this process may have open
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
  void send(const Bytes& body);
  // The same with files, of which the channel keeps copies until they are sent. Fails, and sends nothing, if
  // this process may not have so many open.
  Status send_with_files(const Bytes& body, std::span<const int> files);
  bool has_unsent() const { return !unsent_.empty(); }
  // Sends more; false: the peer is gone.
  bool flush();
  // Sends everything before the deadline; false: it is not all sent, because of the deadline or the peer.
  bool flush_until(const Deadline& deadline);
  // Whether what is unsent waits for files on their way elsewhere to arrive: there may be RLIMIT_NOFILE of
  // them per user.
  bool is_short_of_files() const { return is_short_of_files_; }

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
  bool is_short_of_files_ = false;
  Bytes received_;
  // Each with the position it came at; a closed one stands for those that were lost there.
  std::deque<std::pair<size_t, FileDescriptor>> files_;
  size_t num_taken_ = 0;  // bytes of frames that were taken
};

}  // namespace switchyard
