#include "watcher.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "transport/wire_status.hpp"

namespace switchyard {
namespace {

constexpr size_t kMaxInbox = 1024;  // nobody is that far ahead
constexpr size_t kMaxReasonBytes = 1024;

// poll() refuses more files than RLIMIT_NOFILE, which may have been lowered since they were opened. Then all
// sockets are looked at now and then: a read that finds nothing does no harm.
bool is_to_look_anyway(std::vector<pollfd>& polled) {
  if (errno != EINVAL) return false;
  (void)poll(nullptr, 0, 1);
  for (size_t i = 1; i < polled.size(); i += 2) polled[i].revents = polled[i].fd >= 0 ? POLLIN : 0;
  return true;
}

}  // namespace

Watcher::Watcher(std::vector<Peer>& peers, FileDescriptor wake_up)
    : peers_(peers), correspondents_(peers.size()), wake_up_(std::move(wake_up)) {
  thread_ = std::thread([this] { run(); });
}

Watcher::~Watcher() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  (void)eventfd_write(wake_up_.number(), 1);
  thread_.join();
}

void Watcher::run() {
  // What came together with the last greeting.
  {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < peers_.size(); ++i) take_frames(i, false);
  }
  changed_.notify_all();
  std::vector<pollfd> polled;
  while (true) {
    polled.assign(1, {wake_up_.number(), POLLIN, 0});
    {
      std::lock_guard lock(mutex_);
      if (ends_) return;
      for (size_t i = 0; i < peers_.size(); ++i) {
        // poll() passes over negative numbers.
        const bool is_there = correspondents_[i].state == State::kPresent;
        polled.push_back({is_there ? peers_[i].channel.number() : -1, POLLIN, 0});
        polled.push_back({is_there ? peers_[i].process.number() : -1, POLLIN, 0});
      }
    }
    if (poll(polled.data(), polled.size(), -1) < 0 && !is_to_look_anyway(polled)) continue;
    {
      std::lock_guard lock(mutex_);
      for (size_t i = 0; i < peers_.size(); ++i)
        if (polled[1 + 2 * i].revents != 0 || polled[2 + 2 * i].revents != 0)
          read_peer(i, polled[2 + 2 * i].revents != 0);
    }
    changed_.notify_all();
    tell_watches();
  }
}

// A process that has ended may have sent something before, such as its goodbye.
void Watcher::read_peer(size_t peer, bool has_ended) {
  const bool is_there = peers_[peer].channel.receive();
  take_frames(peer, !is_there || has_ended);
}

void Watcher::take_frames(size_t peer, bool is_at_end) {
  Correspondent& correspondent = correspondents_[peer];
  while (correspondent.state == State::kPresent) {
    std::optional<Frame> frame = peers_[peer].channel.next_frame();
    if (!frame) break;
    std::optional<Message> message = decode_message(std::move(*frame));
    if (!message || correspondent.inbox.size() >= kMaxInbox) {
      is_at_end = true;
      break;
    }
    if (message->kind == MessageKind::kGoodbye) {
      correspondent.state = State::kLeft;
      const size_t size = std::min(message->payload.size(), kMaxReasonBytes);
      correspondent.reason.assign(reinterpret_cast<const char*>(message->payload.data()), size);
    } else {
      correspondent.inbox.push_back(std::move(*message));
    }
  }
  if (is_at_end && correspondent.state == State::kPresent) correspondent.state = State::kDead;
}

Status Watcher::absence_of(size_t peer) const {
  const Correspondent& correspondent = correspondents_[peer];
  const std::string name = peers_[peer].hello.name();
  if (correspondent.state == State::kDead) return unavailable("%s has ended", name.c_str());
  return unavailable("%s has left%s%s", name.c_str(), correspondent.reason.empty() ? "" : ": ",
                     correspondent.reason.c_str());
}

Status Watcher::check_present(std::span<const size_t> peers) const {
  std::lock_guard lock(mutex_);
  return absence_among(peers);
}

// Those that left may have done so because of one that ended.
Status Watcher::absence_among(std::span<const size_t> peers) const {
  for (const State state : {State::kDead, State::kLeft})
    for (const size_t peer : peers)
      if (correspondents_[peer].state == state) return absence_of(peer);
  return Status();
}

std::optional<Message> Watcher::take(size_t peer, MessageKind kind, uint64_t group, uint64_t sequence) {
  std::deque<Message>& inbox = correspondents_[peer].inbox;
  // Those of calls that this process has given up.
  std::erase_if(
      inbox, [&](const Message& message) { return message.group == group && message.sequence < sequence; });
  const auto found = std::find_if(inbox.begin(), inbox.end(), [&](const Message& message) {
    return message.group == group && message.sequence == sequence && message.kind == kind;
  });
  if (found == inbox.end()) return std::nullopt;
  Message message = std::move(*found);
  inbox.erase(found);
  return message;
}

Result<std::vector<Message>> Watcher::wait_for(std::span<const size_t> peers, MessageKind kind,
                                               uint64_t group, uint64_t sequence, const Deadline& deadline) {
  std::vector<Message> messages(peers.size());
  std::vector<size_t> missing(peers.begin(), peers.end());
  std::unique_lock lock(mutex_);
  while (true) {
    for (size_t i = 0; i < peers.size(); ++i)
      if (std::optional<Message> message = take(peers[i], kind, group, sequence)) {
        messages[i] = std::move(*message);
        std::erase(missing, peers[i]);
      }
    if (missing.empty()) return messages;
    for (const size_t peer : missing)
      if (const std::optional<Message> failed = take(peer, MessageKind::kFailed, group, sequence))
        return decode_status(failed->payload);
    if (Status status = absence_among(missing); !status.ok()) return status;
    if (deadline.has_passed())
      return Status(StatusCode::kDeadlineExceeded,
                    peers_[missing.front()].hello.name() + " did not answer in time");
    changed_.wait_until(lock, deadline.at());
  }
}

std::vector<int> Watcher::dead_ranks() const {
  std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (size_t i = 0; i < peers_.size(); ++i)
    for (int j = 0; j < peers_[i].hello.num_ranks && correspondents_[i].state == State::kDead; ++j)
      ranks.push_back(peers_[i].hello.first_rank + j);
  return ranks;
}

void Watcher::Watch::tell(const std::vector<int>& ranks) {
  std::lock_guard lock(mutex);
  for (const int rank : ranks)
    if (!is_dropped && told.insert(rank).second) on_death(rank);
}

void Watcher::tell_watches() {
  const std::vector<int> ranks = dead_ranks();
  if (ranks.empty()) return;
  std::vector<std::shared_ptr<Watch>> watches;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(watches_, [](const std::weak_ptr<Watch>& watch) { return watch.expired(); });
    for (const std::weak_ptr<Watch>& watch : watches_)
      if (std::shared_ptr<Watch> held = watch.lock()) watches.push_back(std::move(held));
  }
  for (const std::shared_ptr<Watch>& watch : watches) watch->tell(ranks);
}

std::shared_ptr<void> Watcher::watch(std::function<void(int rank)> on_death) {
  auto watch = std::make_shared<Watch>();
  watch->on_death = std::move(on_death);
  {
    std::lock_guard lock(mutex_);
    watches_.push_back(watch);
  }
  watch->tell(dead_ranks());
  // Once the handle is dropped, no call is made or under way.
  return std::shared_ptr<void>(watch.get(), [watch](void*) {
    std::lock_guard lock(watch->mutex);
    watch->is_dropped = true;
  });
}

}  // namespace switchyard
