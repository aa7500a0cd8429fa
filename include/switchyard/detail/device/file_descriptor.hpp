// A file descriptor that is closed with its owner.
#pragma once

#include <unistd.h>

#include <string>
#include <utility>

#include "switchyard/status.hpp"

namespace switchyard {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~FileDescriptor() { close(); }

  bool is_open() const { return number_ >= 0; }
  int number() const { return number_; }  // -1: none
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_ = -1;
};

// The error of a call that was to give a file descriptor and failed with `error`, an errno. If there are too
// many already, it names the limit.
Status no_file_descriptor(const std::string& call, int error);
// What the limit is, and how it is raised.
std::string describe_file_limit();

}  // namespace switchyard
