#include "address.hpp"

#include <netdb.h>
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

namespace switchyard {
namespace {

constexpr int kBacklog = 1024;
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

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> resolve(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.name.c_str(), address.port.c_str(), &hints, &found);
  if (error != 0) return invalid_argument("rendezvous %s: %s", address.text.c_str(), gai_strerror(error));
  return AddressList(found, &freeaddrinfo);
}

Status refused(const Address& address, const char* call) {
  return unavailable("rendezvous %s: %s: %s", address.text.c_str(), call, std::strerror(errno));
}

Result<FileDescriptor> listen_tcp(const Address& address) {
  const Result<AddressList> found = resolve(address, AI_PASSIVE);
  if (!found.ok()) return found.status();
  const addrinfo& first = *found.value();
  FileDescriptor socket(::socket(first.ai_family, kSocketFlags, 0));
  const int yes = 1;
  if (!socket.is_open() || setsockopt(socket.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      bind(socket.number(), first.ai_addr, first.ai_addrlen) != 0)
    return refused(address, "bind");
  if (listen(socket.number(), kBacklog) != 0) return refused(address, "listen");
  return socket;
}

// Whether a socket file is there at which nobody listens.
Result<bool> is_left_behind(const Address& address) {
  struct stat file {};
  if (lstat(address.name.c_str(), &file) != 0) return false;
  if (!S_ISSOCK(file.st_mode))
    return invalid_argument("rendezvous %s: the file is there and is no socket", address.text.c_str());
  const FileDescriptor probe(::socket(AF_UNIX, kSocketFlags, 0));
  const UnixName name = unix_name(address);
  return connect(probe.number(), name.get(), name.size) != 0 && errno == ECONNREFUSED;
}

Result<FileDescriptor> listen_unix(const Address& address) {
  if (address.kind == Address::Kind::kUnixPath) {
    const Result<bool> left_behind = is_left_behind(address);
    if (!left_behind.ok()) return left_behind.status();
    if (left_behind.value()) (void)unlink(address.name.c_str());
  }
  FileDescriptor socket(::socket(AF_UNIX, kSocketFlags, 0));
  if (!socket.is_open()) return refused(address, "socket");
  const UnixName name = unix_name(address);
  if (bind(socket.number(), name.get(), name.size) != 0) {
    if (errno != EADDRINUSE) return refused(address, "bind");
    return invalid_argument("rendezvous %s: another process with rank 0 listens there", address.text.c_str());
  }
  if (listen(socket.number(), kBacklog) != 0) return refused(address, "listen");
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

Result<Listener> Listener::listen_at(const Address& address) {
  Result<FileDescriptor> socket = address.is_unix() ? listen_unix(address) : listen_tcp(address);
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

FileDescriptor Listener::accept_next() const {
  return FileDescriptor(accept4(number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Result<Connected> try_connect(const Address& address, const Deadline& deadline) {
  FileDescriptor socket;
  int error = 0;
  if (address.is_unix()) {
    socket = FileDescriptor(::socket(AF_UNIX, kSocketFlags, 0));
    const UnixName name = unix_name(address);
    if (connect(socket.number(), name.get(), name.size) != 0) error = errno;
  } else {
    const Result<AddressList> found = resolve(address, 0);
    if (!found.ok()) return found.status();
    const addrinfo& first = *found.value();
    socket = FileDescriptor(::socket(first.ai_family, kSocketFlags, 0));
    if (connect(socket.number(), first.ai_addr, first.ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) error = finish_connecting(socket.number(), deadline);
    const int yes = 1;
    (void)setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  }
  if (error == 0) return Connected{std::move(socket)};
  if (may_be_tried_again(error)) return Connected{FileDescriptor(), error};
  errno = error;
  return refused(address, "connect");
}

PeerProcess peer_process_of(int unix_socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(unix_socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return {};
  return {credentials.pid, credentials.uid};
}

}  // namespace switchyard
