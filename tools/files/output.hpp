// Where a command's results go: stdout, and files that flags name. A write that fails is an error with its
// reason, whatever it was that was written.
#pragma once

#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>

#include "switchyard/status.hpp"

namespace switchyard::tools {

// A flag that names a file, and the file: "-" is stdout, nothing is no file.
struct OutputName {
  const char* flag;
  std::string path;
};

// Before the work: can all of them be written, each to a place of its own? Nothing is written yet.
Status check_outputs(std::initializer_list<OutputName> outputs);

// A file, or stdout, that is being written.
class OutputFile {
 public:
  explicit OutputFile(const OutputName& name);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // After an error nothing more is written; close() says what it was.
  void write(std::string_view bytes);
  Status close();

 private:
  bool is_stdout() const { return file_ == stdout; }

  const OutputName name_;
  std::FILE* file_;
  int error_ = 0;  // errno of the first call that failed
};

// All of `text`, where `name` names anything.
Status write_output(const OutputName& name, std::string_view text);

// Before anything is opened: a standard stream that is closed must not become somebody else's file.
void keep_standard_streams();
// Whether all that was printed is written.
Status flush_stdout();

}  // namespace switchyard::tools
