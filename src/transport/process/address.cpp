#include "address.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "resolve.hpp"

namespace switchyard {
namespace {

constexpr int kBacklog = 1024;
constexpr uint64_t kConnectMs = 2000;
constexpr int kSocketFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

struct UnixName {
  sockaddr_un address{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

UnixName unix_name(const Address& address) {
  UnixName name;
  name.address.sun_family = AF_UNIX;
  const bool is_abstract = address.kind == Address::Kind::kUnixAbstract;
  std::memcpy(name.address.sun_path + (is_abstract ? 1 : 0), address.name.data(), address.name.size());
  name.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.name.size());
  return name;
}

Status refused(const Address& address, const char* call) {
  return unavailable("rendezvous %s: %s: %s", address.text.c_str(), call, std::strerror(errno));
}

Result<FileDescriptor> new_socket(int family) {
  FileDescriptor socket(::socket(family, kSocketFlags, 0));
  if (!socket.is_open()) return no_file_descriptor("join: socket", errno);
  return socket;
}

// Of a name that stands for several addresses the first that can be listened at.
Result<FileDescriptor> listen_tcp(const Address& address, const Deadline& deadline) {
  const Result<AddressList> found = resolve(address, AI_PASSIVE, deadline);
  if (!found.ok()) return found.status();
  Status first_error;
  for (const addrinfo* at = found.value().get(); at != nullptr; at = at->ai_next) {
    Result<FileDescriptor> socket = new_socket(at->ai_family);
    const int yes = 1;
    Status status = socket.status();
    if (status.ok() &&
        (setsockopt(socket.value().number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
         bind(socket.value().number(), at->ai_addr, at->ai_addrlen) != 0))
      status = refused(address, "bind");
    if (status.ok() && listen(socket.value().number(), kBacklog) != 0) status = refused(address, "listen");
    if (status.ok()) return socket;
    if (first_error.ok()) first_error = status;
  }
  return first_error;
}

// Whether a socket file is there at which nobody listens.
Result<bool> is_left_behind(const Address& address) {
  struct stat file {};
  if (lstat(address.name.c_str(), &file) != 0) return false;
  if (!S_ISSOCK(file.st_mode))
    return invalid_argument("rendezvous %s: the file is there and is no socket", address.text.c_str());
  const Result<FileDescriptor> probe = new_socket(AF_UNIX);
  if (!probe.ok()) return probe.status();
  const UnixName name = unix_name(address);
  return connect(probe.value().number(), name.get(), name.size) != 0 && errno == ECONNREFUSED;
}

Result<FileDescriptor> listen_unix(const Address& address) {
  if (address.kind == Address::Kind::kUnixPath) {
    const Result<bool> left_behind = is_left_behind(address);
    if (!left_behind.ok()) return left_behind.status();
    if (left_behind.value()) (void)unlink(address.name.c_str());
  }
  Result<FileDescriptor> socket = new_socket(AF_UNIX);
  if (!socket.ok()) return socket;
  const UnixName name = unix_name(address);
  if (bind(socket.value().number(), name.get(), name.size) != 0) {
    if (errno != EADDRINUSE) return refused(address, "bind");
    return invalid_argument("rendezvous %s: another process with rank 0 listens there", address.text.c_str());
  }
  if (listen(socket.value().number(), kBacklog) != 0) return refused(address, "listen");
  return socket;
}

// Errors that go away when the other side gets ready.
bool may_be_tried_again(int error) {
  return error == ECONNREFUSED || error == ENOENT || error == EAGAIN || error == ETIMEDOUT ||
         error == ECONNRESET || error == EHOSTUNREACH || error == ENETUNREACH || error == EINTR;
}

// Waits for a connection in progress; returns its errno.
int finish_connecting(int socket, const Deadline& deadline) {
  pollfd writable{socket, POLLOUT, 0};
  if (poll(&writable, 1, deadline.remaining_ms()) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0 ? errno : error;
}

Result<Connected> connected_or_error(const Address& address, FileDescriptor socket, int error) {
  if (error == 0) return Connected{std::move(socket)};
  if (may_be_tried_again(error)) return Connected{FileDescriptor(), error};
  errno = error;
  return refused(address, "connect");
}

// An address that does not answer must leave time for the others.
Result<Connected> try_connect_tcp(const Address& address, const Deadline& deadline, size_t attempt) {
  const Result<AddressList> found = resolve(address, 0, deadline);
  if (!found.ok()) return found.status();
  std::vector<const addrinfo*> all;
  for (const addrinfo* at = found.value().get(); at != nullptr; at = at->ai_next) all.push_back(at);
  Result<Connected> last = Connected{FileDescriptor(), ECONNREFUSED};
  for (size_t i = 0; i < all.size(); ++i) {
    const addrinfo& at = *all[(attempt + i) % all.size()];
    Result<FileDescriptor> socket = new_socket(at.ai_family);
    if (!socket.ok()) {
      last = socket.status();
      continue;
    }
    const int number = socket.value().number();
    int error = connect(number, at.ai_addr, at.ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS)
      error = finish_connecting(number, deadline.earlier_of(Deadline::in_ms(kConnectMs)));
    const int yes = 1;
    (void)setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    last = connected_or_error(address, std::move(socket).value(), error);
    if (error == 0) break;
  }
  if (last.ok()) last.value().num_addresses = all.size();
  return last;
}

}  // namespace

Result<Address> parse_address(const std::string& text) {
  Address address;
  address.text = text;
  if (text.starts_with("unix:")) {
    address.name = text.substr(5);
    if (address.name.starts_with("@")) {
      address.kind = Address::Kind::kUnixAbstract;
      address.name.erase(0, 1);
    }
    constexpr size_t kMaxName = sizeof(sockaddr_un::sun_path) - 2;
    if (address.name.empty() || address.name.size() > kMaxName)
      return invalid_argument("rendezvous %s: the name has %zu characters; it must have 1..%zu", text.c_str(),
                              address.name.size(), kMaxName);
    return address;
  }
  const size_t colon = text.rfind(':');
  if (!text.starts_with("tcp:") || colon < 5 || colon + 1 >= text.size())
    return invalid_argument("rendezvous is \"%s\"; it must be unix:/path, unix:@name or tcp:HOST:PORT",
                            text.c_str());
  address.kind = Address::Kind::kTcp;
  address.name = text.substr(4, colon - 4);
  if (address.name.starts_with("[") && address.name.ends_with("]"))
    address.name = address.name.substr(1, address.name.size() - 2);
  address.port = text.substr(colon + 1);
  const bool is_number =
      address.port.size() <= 5 && address.port.find_first_not_of("0123456789") == std::string::npos;
  const int port = is_number ? std::stoi(address.port) : 0;
  if (port < 1 || port > 65535)
    return invalid_argument("rendezvous %s: the port is \"%s\"; it must be 1..65535", text.c_str(),
                            address.port.c_str());
  return address;
}

Result<Listener> Listener::listen_at(const Address& address, const Deadline& deadline) {
  Result<FileDescriptor> socket = address.is_unix() ? listen_unix(address) : listen_tcp(address, deadline);
  if (!socket.ok()) return socket.status();
  const bool has_file = address.kind == Address::Kind::kUnixPath;
  Listener listener(std::move(socket).value(), has_file ? address.name : "");
  struct stat file {};
  if (has_file && lstat(listener.path_.c_str(), &file) == 0) {
    listener.device_ = file.st_dev;
    listener.inode_ = file.st_ino;
  }
  return listener;
}

Listener::~Listener() {
  struct stat file {};
  if (socket_.is_open() && !path_.empty() && lstat(path_.c_str(), &file) == 0 && file.st_dev == device_ &&
      file.st_ino == inode_)
    (void)unlink(path_.c_str());
}

Result<FileDescriptor> Listener::accept_next() const {
  FileDescriptor socket(accept4(number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.is_open() && errno == EMFILE) return no_file_descriptor("join: accept", errno);
  return socket;
}

Result<Connected> try_connect(const Address& address, const Deadline& deadline, size_t attempt) {
  if (!address.is_unix()) return try_connect_tcp(address, deadline, attempt);
  Result<FileDescriptor> socket = new_socket(AF_UNIX);
  if (!socket.ok()) return socket.status();
  const UnixName name = unix_name(address);
  const int error = connect(socket.value().number(), name.get(), name.size) == 0 ? 0 : errno;
  return connected_or_error(address, std::move(socket).value(), error);
}

PeerProcess peer_process_of(int unix_socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(unix_socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return {};
  return {credentials.pid, credentials.uid};
}

}  // namespace switchyard
