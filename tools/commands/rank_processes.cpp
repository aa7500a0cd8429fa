#include "rank_processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>

#include "switchyard/detail/device/file_descriptor.hpp"

namespace switchyard::tools {
namespace {

// A name that nobody else has, in no file system.
Result<std::string> random_address() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return unavailable("--transport process: no random numbers: %s", std::strerror(errno));
  std::string address = "unix:@switchyard-";
  for (const unsigned char byte : bytes) {
    address += "0123456789abcdef"[byte >> 4];
    address += "0123456789abcdef"[byte & 15];
  }
  return address;
}

constexpr int kNumPipes = 3;  // for stdout, stderr and kExtraOutput
constexpr int kFirstPipeFile = STDOUT_FILENO;

// A process, and the pipes that it writes to.
struct RankProcess {
  pid_t pid = -1;
  std::array<FileDescriptor, kNumPipes> pipes;
  RankOutcome outcome;

  std::string& text_of(int pipe) {
    return pipe == 0 ? outcome.output : pipe == 1 ? outcome.errors : outcome.extra;
  }
  bool has_closed_all() const {
    return std::none_of(pipes.begin(), pipes.end(), [](const FileDescriptor& end) { return end.is_open(); });
  }
};

// What the file is that cannot be run, in words for stderr.
[[noreturn]] void report_no_program(int error) {
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  const std::string message = "cannot run " + std::string(path, static_cast<size_t>(size > 0 ? size : 0)) +
                              ": " + std::strerror(error) + "\n";
  (void)!write(STDERR_FILENO, message.data(), message.size());
  _exit(127);
}

[[noreturn]] void become(const std::vector<std::string>& arguments, pid_t parent,
                         const std::array<FileDescriptor, kNumPipes>& ends) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it has ended before the line above
  // The ends are copied twice, so that none of them is overwritten before it is in its place.
  std::array<int, kNumPipes> copies{};
  for (size_t i = 0; i < kNumPipes; ++i)
    copies[i] = fcntl(ends[i].number(), F_DUPFD_CLOEXEC, kFirstPipeFile + kNumPipes);
  for (int i = 0; i < kNumPipes; ++i) dup2(copies[static_cast<size_t>(i)], kFirstPipeFile + i);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv("/proc/self/exe", argv.data());
  report_no_program(errno);
}

Status start(const std::vector<std::string>& arguments, RankProcess& process) {
  std::array<FileDescriptor, kNumPipes> ends;
  for (size_t i = 0; i < kNumPipes; ++i) {
    int pipe[2] = {-1, -1};
    if (pipe2(pipe, O_CLOEXEC) != 0) return no_file_descriptor("--transport: cannot make a pipe", errno);
    process.pipes[i] = FileDescriptor(pipe[0]);
    ends[i] = FileDescriptor(pipe[1]);
  }
  const pid_t parent = getpid();
  process.pid = fork();
  if (process.pid == 0) become(arguments, parent, ends);
  if (process.pid < 0) return unavailable("--transport: cannot start a process: %s", std::strerror(errno));
  return Status();
}

void reap(RankProcess& process) {
  int status = 0;
  while (waitpid(process.pid, &status, 0) < 0 && errno == EINTR) {
  }
  process.outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  process.outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  process.pid = -1;
}

// Reads what all processes write until they have closed both pipes. When one has failed, the others have some
// time to say so, too, and are then ended: one that has stopped would never end.
void collect_output(std::vector<RankProcess>& processes) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kGrace = std::chrono::seconds(15);
  Clock::time_point end = Clock::time_point::max();
  for (;;) {
    if (Clock::now() > end)
      for (RankProcess& process : processes)
        if (process.pid > 0 && kill(process.pid, SIGKILL) == 0) process.outcome.was_ended = true;
    std::vector<pollfd> polled;
    std::vector<std::pair<RankProcess*, int>> owner;
    for (RankProcess& process : processes)
      for (int i = 0; i < kNumPipes; ++i)
        if (const FileDescriptor& end = process.pipes[static_cast<size_t>(i)]; end.is_open()) {
          polled.push_back({end.number(), POLLIN, 0});
          owner.emplace_back(&process, i);
        }
    if (polled.empty()) return;
    constexpr int kPollMs = 500;
    if (poll(polled.data(), polled.size(), kPollMs) < 0 && errno != EINTR) return;
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      auto [process, pipe] = owner[i];
      char buffer[4096];
      const ssize_t count = read(polled[i].fd, buffer, sizeof(buffer));
      if (count > 0) {
        process->text_of(pipe).append(buffer, static_cast<size_t>(count));
      } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
        process->pipes[static_cast<size_t>(pipe)].close();
        if (!process->has_closed_all()) continue;
        if (process->pid > 0) reap(*process);
        const bool has_failed = process->outcome.signal != 0 || process->outcome.exit_code > 1;
        if (has_failed && end == Clock::time_point::max()) end = Clock::now() + kGrace;
      }
    }
  }
}

}  // namespace

Result<std::vector<RankOutcome>> run_processes(const std::vector<std::vector<std::string>>& arguments) {
  std::vector<RankProcess> processes(arguments.size());
  Status status;
  for (size_t i = 0; i < processes.size() && status.ok(); ++i) status = start(arguments[i], processes[i]);
  if (!status.ok())
    for (const RankProcess& process : processes)
      if (process.pid > 0) kill(process.pid, SIGKILL);
  collect_output(processes);
  std::vector<RankOutcome> outcomes;
  for (RankProcess& process : processes) {
    if (process.pid > 0) reap(process);
    outcomes.push_back(std::move(process.outcome));
  }
  if (!status.ok()) return status;
  return outcomes;
}

Result<std::vector<RankOutcome>> run_rank_processes(int n_ranks, const std::vector<std::string>& arguments) {
  const Result<std::string> address = random_address();
  if (!address.ok()) return address.status();
  std::vector<std::vector<std::string>> of_rank;
  for (int rank = 0; rank < n_ranks; ++rank) {
    std::vector<std::string>& own = of_rank.emplace_back(arguments);
    own.insert(own.end(), {"--rendezvous", address.value(), "--rank", std::to_string(rank)});
  }
  return run_processes(of_rank);
}

std::vector<std::string> own_arguments_without(const std::vector<std::string>& options) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> arguments;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\0', begin), all.size());
    arguments.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  for (const std::string& option : options) {
    for (auto i = arguments.begin(); i != arguments.end();) {
      if (i->rfind(option + "=", 0) == 0) {
        i = arguments.erase(i);
      } else if (*i == option) {
        i = arguments.erase(i);
        if (i != arguments.end() && (i->rfind("--", 0) != 0)) i = arguments.erase(i);
      } else {
        ++i;
      }
    }
  }
  return arguments;
}

}  // namespace switchyard::tools
