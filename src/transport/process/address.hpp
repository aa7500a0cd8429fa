// Addresses of sockets: where a process listens, and how another one connects. All sockets are non-blocking
// and closed on exec.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "switchyard/detail/device/file_descriptor.hpp"
#include "switchyard/status.hpp"
#include "transport/deadline.hpp"

namespace switchyard {

struct Address {
  enum class Kind { kUnixPath, kUnixAbstract, kTcp };
  Kind kind = Kind::kUnixPath;
  std::string text;  // as given
  std::string name;  // a path, an abstract name, or a host
  std::string port;  // TCP

  bool is_unix() const { return kind != Kind::kTcp; }
};

// Of "unix:/path", "unix:@name" or "tcp:HOST:PORT".
Result<Address> parse_address(const std::string& text);

// A socket that listens, and its file, if it has one, which goes with it. A file that a process left behind
// which has ended is replaced; one at which somebody listens is not.
class Listener {
 public:
  // The deadline is for the look-up of a name.
  static Result<Listener> listen_at(const Address& address, const Deadline& deadline);
  Listener(Listener&& other) noexcept = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int number() const { return socket_.number(); }
  // Closed: nobody is waiting. An error: this process may not have another file open.
  Result<FileDescriptor> accept_next() const;

 private:
  Listener(FileDescriptor socket, std::string path) : socket_(std::move(socket)), path_(std::move(path)) {}

  FileDescriptor socket_;
  std::string path_;  // empty: there is no file
  dev_t device_ = 0;  // with inode_: which file it was when it was made
  ino_t inode_ = 0;
};

// What connecting came to.
struct Connected {
  FileDescriptor socket;     // closed: nobody is there yet, or too many are waiting; it may be tried again
  int error = 0;             // why it is closed: an errno
  size_t num_addresses = 1;  // that the name stands for
};
// Of a name that stands for several addresses each is tried, the first one another with every attempt.
Result<Connected> try_connect(const Address& address, const Deadline& deadline, size_t attempt = 0);

// Of the process at the other end of a Unix socket: who connected, or who called listen().
struct PeerProcess {
  int64_t pid = -1;
  uint32_t uid = static_cast<uint32_t>(-1);
};
PeerProcess peer_process_of(int unix_socket);

}  // namespace switchyard
