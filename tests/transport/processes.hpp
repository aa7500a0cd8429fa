// Processes that a test starts, each with a function to run, and what they report.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "switchyard/world.hpp"

namespace switchyard::testing_support {

// Memory that a test shares with the processes it starts later.
struct Shared {
  static constexpr size_t kMaxHello = 1024;
  std::atomic<int> stage[64];
  std::atomic<int> num_speakers;  // who have begun to say something
  std::atomic<int> num_said;
  struct {
    size_t size;
    std::array<std::byte, kMaxHello> bytes;
  } said[64];

  void say(const std::vector<std::byte>& bytes);
};

// The test must have no threads when it starts processes: they are forks of it.
class Processes {
 public:
  Processes();
  // Ends whatever still runs.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  Shared& shared() const { return *shared_; }
  // Runs `body` in a new process; what it returns, or throws, is its report.
  void start(const std::function<std::string()>& body);
  pid_t pid(size_t i) const { return children_[i].pid; }
  void send_signal(size_t i, int signal) const;
  // Waits until the process has ended; "signal 9" if one ended it, "hangs" after 120 s.
  std::string report_of(size_t i);
  std::vector<std::string> reports();
  // Waits until one of these processes has ended, or 120 s.
  void wait_for_any(const std::vector<size_t>& some) const;
  // Waits until `stage`, or each of `stages`, is at least `value`; false after 120 s.
  bool wait_for(const std::atomic<int>& stage, int value) const;
  bool wait_for_all(std::span<const std::atomic<int>> stages, int value) const;

  // An all-gather through the shared memory, among `num_processes`.
  std::function<Result<std::vector<std::vector<std::byte>>>(const std::vector<std::byte>&)> all_gather(
      int num_processes) const;

 private:
  struct Child {
    pid_t pid = -1;
    int pipe = -1;
    bool is_reaped = false;
  };

  Shared* shared_;
  std::vector<Child> children_;
};

// A name for a socket that no other test has, and an address of that name in no file system.
std::string unique_name();
std::string unique_address();
// What a process of one rank joins with: the host target and one worker.
JoinOptions join_options(int rank, int n_ranks, const std::string& rendezvous);
// Throws the error that World::join() returns.
std::unique_ptr<World> join(const JoinOptions& options);
std::unique_ptr<World> join(int rank, int n_ranks, const std::string& rendezvous);

// How many file descriptors this process has open.
size_t num_open_files();
// What this process has kept of the worlds that it was in, when `files_before` were open before it joined
// them; empty if nothing.
std::string what_is_left(size_t files_before);
// From now on this process may open `count` more files, or as many as before.
void allow_more_files(size_t count);
void allow_all_files();
// Waits until so many connections to a Unix socket of this name have been accepted, and then long enough for
// what they sent first to be read.
void wait_for_connections(const std::string& name, size_t count);
// The names of abstract Unix sockets of the library on this machine.
std::vector<std::string> abstract_listeners();

}  // namespace switchyard::testing_support
