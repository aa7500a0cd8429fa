#include "output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

namespace switchyard::tools {
namespace {

Status write_error(StatusCode code, const OutputName& name, int error) {
  return Status(code, std::string(name.flag) + ": cannot write " + (name.path == "-" ? "stdout" : name.path) +
                          ": " + std::strerror(error));
}

// Devices such as /dev/null may be named more than once.
bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return std::filesystem::is_regular_file(a, error) && std::filesystem::equivalent(a, b, error);
}

}  // namespace

Status check_output_names(std::initializer_list<OutputName> outputs) {
  std::vector<OutputName> seen;
  for (const OutputName& name : outputs) {
    if (name.path.empty()) continue;
    if (name.path != "-") {
      std::FILE* file = std::fopen(name.path.c_str(), "ab");
      if (file == nullptr) return write_error(StatusCode::kInvalidArgument, name, errno);
      std::fclose(file);
    }
    for (const OutputName& other : seen) {
      if (name.path == "-" && other.path == "-")
        return invalid_argument("%s: stdout is taken by %s; name a file for one of them", name.flag,
                                other.flag);
      if (name.path != "-" && other.path != "-" && is_same_file(name.path, other.path))
        return invalid_argument("%s: %s is the file of %s; name another", name.flag, name.path.c_str(),
                                other.flag);
    }
    seen.push_back(name);
  }
  return Status();
}

OutputFile::OutputFile(const OutputName& name)
    : name_(name), file_(name.path == "-" ? stdout : std::fopen(name.path.c_str(), "wb")) {
  if (file_ == nullptr) error_ = errno;
}

OutputFile::~OutputFile() {
  if (file_ != nullptr && !is_stdout()) std::fclose(file_);
}

void OutputFile::write(std::string_view bytes) {
  if (bytes.empty() || error_ != 0) return;  // empty bytes may have a null address
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) error_ = errno;
}

Status OutputFile::close() {
  if (error_ == 0 && std::fflush(file_) != 0) error_ = errno;
  if (file_ != nullptr && !is_stdout()) {
    if (std::fclose(file_) != 0 && error_ == 0) error_ = errno;
    file_ = nullptr;
  }
  return error_ == 0 ? Status() : write_error(StatusCode::kUnavailable, name_, error_);
}

Status write_output(const OutputName& name, std::string_view text) {
  if (name.path.empty()) return Status();
  OutputFile file(name);
  file.write(text);
  return file.close();
}

void keep_standard_streams() {
  // Help and reports are written at once, so that flush_stdout() knows why it could not be done.
  static char buffer[1 << 16];
  if (fileno(stdout) == STDOUT_FILENO && isatty(STDOUT_FILENO) == 0)
    (void)std::setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    // This takes the lowest free descriptor. Reading from stdout's, or writing to stdin's, is still an error.
    if (fcntl(stream, F_GETFD) < 0) (void)open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

Status flush_stdout() {
  errno = 0;
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written) return Status();
  return unavailable("cannot write stdout: %s", errno != 0 ? std::strerror(errno) : "a write has failed");
}

}  // namespace switchyard::tools
