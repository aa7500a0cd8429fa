// One line on the terminal that shows the progress. It is silent if stderr is not a terminal.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

namespace switchyard::tools {

class Progress {
 public:
  explicit Progress(int num_units) : num_units_(num_units), is_terminal_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() { clear(); }

  // One more unit begins.
  void begin(const std::string& what) {
    note(what, num_begun_);
    if (num_begun_ < num_units_) ++num_begun_;
  }
  // Adds text about the current unit.
  void note(const std::string& what) { note(what, num_begun_ > 0 ? num_begun_ - 1 : 0); }
  void hide() { is_terminal_ = false; }
  void clear() {
    if (is_terminal_) std::fputs("\r\033[K", stderr);
  }

 private:
  void note(const std::string& what, int num_done) {
    if (!is_terminal_) return;
    const int filled = num_units_ > 0 ? num_done * kWidth / num_units_ : 0;
    std::fprintf(stderr, "\r\033[K[%s%s] %s", std::string(filled, '#').c_str(),
                 std::string(kWidth - filled, '.').c_str(), what.c_str());
    std::fflush(stderr);
  }

  static constexpr int kWidth = 24;
  const int num_units_;
  bool is_terminal_;
  int num_begun_ = 0;
};

}  // namespace switchyard::tools
