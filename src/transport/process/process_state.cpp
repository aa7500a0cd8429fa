#include "process_state.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace switchyard {
namespace {

// Of the flags in /proc/PID/stat (proc(5)); those of a process that lives are never all clear.
constexpr unsigned long kIsExiting = 0x4;

std::string read_proc(int64_t pid, const char* name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// SIGKILL stays pending until the process comes out of what it does in the kernel.
bool is_killed(const std::string& status) {
  for (const char* name : {"\nSigPnd:", "\nShdPnd:"}) {
    const size_t at = status.find(name);
    if (at == std::string::npos) continue;
    const unsigned long long pending =
        std::strtoull(status.c_str() + at + std::char_traits<char>::length(name), nullptr, 16);
    if ((pending >> (SIGKILL - 1) & 1) != 0) return true;
  }
  return false;
}

}  // namespace

ProcessState state_of_process(int64_t pid) {
  const std::string stat = read_proc(pid, "stat");
  if (stat.empty()) return read_proc(getpid(), "stat").empty() ? ProcessState::kUnknown : ProcessState::kEnds;
  // PID (NAME) STATE and six numbers more; the name may have parentheses.
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  char state = 0;
  long skipped = 0;
  unsigned long flags = 0;
  fields >> state >> skipped >> skipped >> skipped >> skipped >> skipped >> flags;
  if (state == 'Z' || state == 'X' || (flags & kIsExiting) != 0) return ProcessState::kEnds;
  if (is_killed(read_proc(pid, "status"))) return ProcessState::kEnds;
  return flags == 0 ? ProcessState::kUnknown : ProcessState::kRuns;
}

}  // namespace switchyard
