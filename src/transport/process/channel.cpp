#include "channel.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace switchyard {
namespace {

constexpr size_t kHeaderBytes = 4;
constexpr size_t kMaxFilesPerFrame = 16;
constexpr size_t kReadBytes = 1 << 16;

// The file descriptors that came with a message.
std::vector<FileDescriptor> files_of(msghdr& message) {
  std::vector<FileDescriptor> files;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      files.emplace_back(number);
    }
  }
  return files;
}

// What the first header says, if it is there.
std::optional<size_t> body_bytes_of(const Bytes& received) {
  if (received.size() < kHeaderBytes) return std::nullopt;
  size_t bytes = 0;
  for (size_t i = 0; i < kHeaderBytes; ++i) bytes |= std::to_integer<size_t>(received[i]) << (8 * i);
  return bytes;
}

ssize_t send_some(int socket, const std::byte* bytes, size_t size, const std::vector<int>& files) {
  iovec part{const_cast<std::byte*>(bytes), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFilesPerFrame * sizeof(int))] = {};
  if (!files.empty()) {
    const size_t file_bytes = files.size() * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(file_bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(file_bytes);
    std::memcpy(CMSG_DATA(header), files.data(), file_bytes);
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

}  // namespace

Channel::Channel(FileDescriptor socket) : socket_(std::move(socket)) {}

void Channel::send(const Bytes& body) { (void)send_with_files(body, {}); }

Status Channel::send_with_files(const Bytes& body, std::span<const int> files) {
  Unsent unsent;
  unsent.bytes.reserve(kHeaderBytes + body.size());
  for (size_t i = 0; i < kHeaderBytes; ++i)
    unsent.bytes.push_back(static_cast<std::byte>(body.size() >> (8 * i) & 0xff));
  unsent.bytes.insert(unsent.bytes.end(), body.begin(), body.end());
  for (const int file : files) {
    unsent.files.emplace_back(fcntl(file, F_DUPFD_CLOEXEC, 0));
    if (!unsent.files.back().is_open()) return no_file_descriptor("a file for another process: dup", errno);
  }
  unsent_.push_back(std::move(unsent));
  (void)flush();  // a peer that is gone shows when it is read from
  return Status();
}

bool Channel::flush() {
  while (!unsent_.empty()) {
    Unsent& first = unsent_.front();
    std::vector<int> files;
    for (const FileDescriptor& file : first.files)
      if (first.num_sent == 0) files.push_back(file.number());
    const ssize_t sent =
        send_some(number(), first.bytes.data() + first.num_sent, first.bytes.size() - first.num_sent, files);
    is_short_of_files_ = sent < 0 && errno == ETOOMANYREFS;
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS;
    first.num_sent += static_cast<size_t>(sent);
    if (first.num_sent == first.bytes.size()) unsent_.pop_front();
  }
  return true;
}

bool Channel::flush_until(const Deadline& deadline) {
  while (true) {
    if (!flush()) return false;
    if (!has_unsent()) return true;
    if (deadline.has_passed()) return false;
    pollfd writable{number(), POLLOUT, 0};
    if (is_short_of_files_)
      (void)poll(nullptr, 0, 1);  // the socket itself takes more
    else
      (void)poll(&writable, 1, deadline.remaining_ms());
  }
}

bool Channel::receive() {
  // Strangers are found out before they fill the memory.
  while (body_bytes_of(received_).value_or(0) <= kMaxFrameBytes) {
    if (received_.size() > kHeaderBytes + kMaxFrameBytes) return true;  // first a frame must be taken
    const size_t size_before = received_.size();
    received_.resize(size_before + kReadBytes);
    iovec part{received_.data() + size_before, kReadBytes};
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxFilesPerFrame * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t size = recvmsg(number(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const int error = errno;
    received_.resize(size_before + static_cast<size_t>(size > 0 ? size : 0));
    if (size < 0 && error == EINTR) continue;
    if (size < 0) return error == EAGAIN || error == EWOULDBLOCK;
    if (size == 0) return false;
    // A read ends behind the bytes that files came with.
    std::vector<FileDescriptor> files = files_of(message);
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      if (files.size() == kMaxFilesPerFrame) return false;  // no frame of ours has more
      files.emplace_back();
    }
    for (FileDescriptor& file : files)
      files_.emplace_back(num_taken_ + received_.size() - 1, std::move(file));
  }
  return false;
}

std::optional<Frame> Channel::next_frame() {
  const std::optional<size_t> body_bytes = body_bytes_of(received_);
  if (!body_bytes || received_.size() < kHeaderBytes + *body_bytes) return std::nullopt;
  const size_t frame_bytes = kHeaderBytes + *body_bytes;
  Frame frame;
  frame.body.assign(received_.begin() + kHeaderBytes,
                    received_.begin() + static_cast<std::ptrdiff_t>(frame_bytes));
  received_.erase(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(frame_bytes));
  num_taken_ += frame_bytes;
  while (!files_.empty() && files_.front().first < num_taken_) {
    FileDescriptor& file = files_.front().second;
    if (file.is_open())
      frame.files.push_back(std::move(file));
    else
      frame.has_lost_files = true;
    files_.pop_front();
  }
  return frame;
}

}  // namespace switchyard
