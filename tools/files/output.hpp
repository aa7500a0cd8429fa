// Where a command's results go: stdout, and files that flags name. Every write that fails is an error with
// its reason.
#pragma once

#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>

#include "switchyard/status.hpp"

namespace switchyard::tools {

// A flag that names a file, and the file: "-" is stdout, an empty name is no file.
struct OutputName {
  const char* flag;
  std::string path;
};

// Checks, before the work, that all of them can be written and no two are the same file. Nothing is written
// yet.
Status check_output_names(std::initializer_list<OutputName> outputs);

// Writes a file, or stdout.
class OutputFile {
 public:
  explicit OutputFile(const OutputName& name);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // After an error nothing more is written; close() returns the error.
  void write(std::string_view bytes);
  Status close();

 private:
  bool is_stdout() const { return file_ == stdout; }

  const OutputName name_;
  std::FILE* file_;
  int error_ = 0;  // errno of the first call that failed
};

// Writes all of `text`, if `name` is not empty.
Status write_output(const OutputName& name, std::string_view text);

// Called before any file is opened: a file must not get the descriptor of a closed standard stream.
void keep_standard_streams();
// Returns an error if something that was printed could not be written.
Status flush_stdout();

}  // namespace switchyard::tools
