// The thread that reads what the other processes send, and sees when one of them leaves or ends.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "mesh.hpp"
#include "message.hpp"

namespace switchyard {

class Watcher {
 public:
  // Reads from the channels of the peers from now on; only their sending halves are for others to use.
  // `wake_up` is an eventfd.
  Watcher(std::vector<Peer>& peers, FileDescriptor wake_up);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Waits for a message of each of these peers, by their indices, and returns them in that order. Fails by
  // the deadline, as soon as a peer whose message has not come has left or ended, or with the error of a peer
  // whose call has failed. One that leaves or ends behind its message does not matter to this call.
  Result<std::vector<Message>> wait_for(std::span<const size_t> peers, MessageKind kind, uint64_t group,
                                        uint64_t sequence, const Deadline& deadline);
  // The error of the first of these peers that has left or ended.
  Status check_present(std::span<const size_t> peers) const;

  std::vector<int> dead_ranks() const;
  std::shared_ptr<void> watch(std::function<void(int rank)> on_death);

 private:
  enum class State { kPresent, kLeft, kDead };
  struct Correspondent {
    State state = State::kPresent;
    std::string reason;  // of one that has left
    std::deque<Message> inbox;
  };
  // One caller of watch().
  struct Watch {
    std::recursive_mutex mutex;  // the callback may drop its own handle
    std::function<void(int rank)> on_death;
    std::set<int> told;
    bool is_dropped = false;
    void tell(const std::vector<int>& ranks);
  };

  void run();
  void tell_watches();
  // These are called with the mutex held.
  void read_peer(size_t peer, bool has_ended);
  void take_frames(size_t peer, bool is_at_end);
  Status absence_of(size_t peer) const;
  Status absence_among(std::span<const size_t> peers) const;
  // Takes the message out of the inbox of a peer; none: it has not come.
  std::optional<Message> take(size_t peer, MessageKind kind, uint64_t group, uint64_t sequence);

  std::vector<Peer>& peers_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Correspondent> correspondents_;  // of each peer
  std::vector<std::weak_ptr<Watch>> watches_;
  bool ends_ = false;
  FileDescriptor wake_up_;
  std::thread thread_;
};

}  // namespace switchyard
