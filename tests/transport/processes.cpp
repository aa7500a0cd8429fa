#include "processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace switchyard::testing_support {
namespace {

// As long as a busy machine may take; what passes waits for none of it.
constexpr auto kPatience = std::chrono::seconds(120);

bool wait_until_at_least(const std::atomic<int>& stage, int value) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (stage.load() < value) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

void Shared::say(const std::vector<std::byte>& bytes) {
  const auto slot = static_cast<size_t>(num_speakers.fetch_add(1));
  said[slot].size = bytes.size();
  std::memcpy(said[slot].bytes.data(), bytes.data(), bytes.size());
  num_said.fetch_add(1);
}

Processes::Processes()
    : shared_(static_cast<Shared*>(
          mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}

Processes::~Processes() {
  for (const Child& child : children_) {
    if (!child.is_reaped) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
    close(child.pipe);
  }
  munmap(shared_, sizeof(Shared));
}

void Processes::start(const std::function<std::string()>& body) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid != 0) {
    close(ends[1]);
    children_.push_back({pid, ends[0]});
    return;
  }
  close(ends[0]);
  std::string report;
  try {
    report = body();
  } catch (const std::exception& error) {
    report = std::string("exception: ") + error.what();
  }
  (void)!write(ends[1], report.data(), report.size());
  _exit(0);
}

void Processes::send_signal(size_t i, int signal) const { kill(children_[i].pid, signal); }

std::string Processes::report_of(size_t i) {
  Child& child = children_[i];
  const auto end = std::chrono::steady_clock::now() + kPatience;
  std::string report;
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd readable{child.pipe, POLLIN, 0};
    if (left.count() <= 0 || poll(&readable, 1, static_cast<int>(left.count())) == 0) return "hangs";
    char buffer[4096];
    const ssize_t size = read(child.pipe, buffer, sizeof(buffer));
    if (size <= 0) break;
    report.append(buffer, static_cast<size_t>(size));
  }
  int status = 0;
  waitpid(child.pid, &status, 0);
  child.is_reaped = true;
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status)) : report;
}

std::vector<std::string> Processes::reports() {
  std::vector<std::string> reports;
  for (size_t i = 0; i < children_.size(); ++i) reports.push_back(report_of(i));
  return reports;
}

void Processes::wait_for_any(const std::vector<size_t>& some) const {
  std::vector<pollfd> pipes;
  for (const size_t i : some) pipes.push_back({children_[i].pipe, POLLIN, 0});
  (void)poll(pipes.data(), pipes.size(), std::chrono::milliseconds(kPatience).count());
}

bool Processes::wait_for(const std::atomic<int>& stage, int value) const {
  return wait_until_at_least(stage, value);
}

bool Processes::wait_for_all(std::span<const std::atomic<int>> stages, int value) const {
  return std::all_of(stages.begin(), stages.end(),
                     [&](const std::atomic<int>& stage) { return wait_until_at_least(stage, value); });
}

std::function<Result<std::vector<std::vector<std::byte>>>(const std::vector<std::byte>&)>
Processes::all_gather(int num_processes) const {
  Shared* shared = shared_;
  return [shared,
          num_processes](const std::vector<std::byte>& mine) -> Result<std::vector<std::vector<std::byte>>> {
    shared->say(mine);
    if (!wait_until_at_least(shared->num_said, num_processes)) return unavailable("nobody came");
    std::vector<std::vector<std::byte>> all;
    for (int i = 0; i < num_processes; ++i) {
      const auto& said = shared->said[static_cast<size_t>(i)];
      all.emplace_back(said.bytes.begin(), said.bytes.begin() + static_cast<std::ptrdiff_t>(said.size));
    }
    return all;
  };
}

std::string unique_name() {
  static int count = 0;
  return "switchyard-test-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

std::string unique_address() { return "unix:@" + unique_name(); }

JoinOptions join_options(int rank, int n_ranks, const std::string& rendezvous) {
  JoinOptions options;
  options.target = TargetChoice::kHost;
  options.rank = rank;
  options.n_ranks = n_ranks;
  options.host.num_workers = 1;
  options.rendezvous = rendezvous;
  return options;
}

std::unique_ptr<World> join(const JoinOptions& options) {
  Result<std::unique_ptr<World>> world = World::join(options);
  if (!world.ok()) throw std::runtime_error(world.status().to_string());
  return std::move(world).value();
}

std::unique_ptr<World> join(int rank, int n_ranks, const std::string& rendezvous) {
  return join(join_options(rank, n_ranks, rendezvous));
}

size_t num_open_files() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

std::string what_is_left(size_t files_before) {
  if (num_open_files() != files_before) return "files are left open";
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:switchyard") != std::string::npos) return "memory is left mapped";
  return "";
}

void allow_more_files(size_t count) {
  rlimit limit{};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  const int lowest = dup(0);
  close(lowest);
  limit.rlim_cur = static_cast<rlim_t>(lowest) + count;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

void allow_all_files() {
  rlimit limit{};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

void wait_for_connections(const std::string& name, size_t count) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  size_t num_sockets = 0;  // the listener is one of them
  while (num_sockets < count + 1 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::ifstream sockets("/proc/net/unix");
    num_sockets = 0;
    for (std::string line; std::getline(sockets, line);) num_sockets += line.ends_with(name) ? 1 : 0;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

std::vector<std::string> abstract_listeners() {
  std::vector<std::string> names;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);)
    if (const size_t at = line.find("@switchyard-"); at != std::string::npos)
      names.push_back(line.substr(at + 1));
  return names;
}

}  // namespace switchyard::testing_support
