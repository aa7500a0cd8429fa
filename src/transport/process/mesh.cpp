#include "mesh.hpp"

#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <utility>

#include "message.hpp"
#include "transport/wire_bytes.hpp"

namespace switchyard {
namespace {

constexpr uint64_t kPatienceMs = 2000;        // for a greeting
constexpr uint64_t kCrowdedPatienceMs = 200;  // while more want to come in than there is room for
constexpr size_t kMaxStrangers = 64;
constexpr int kPollMs = 100;
constexpr int kDeathMs = 20;  // from a closed connection to the end of the process behind it
constexpr size_t kMaxReasonBytes = 1024;

// What both sides send first: who they are, and that they know the other.
struct MeshGreeting {
  int first_rank = 0;
  Nonce own{};
  Nonce other{};
};
Bytes encode(const MeshGreeting& greeting) {
  ByteWriter writer;
  writer.number(greeting.first_rank);
  for (const uint64_t word : greeting.own) writer.number(word);
  for (const uint64_t word : greeting.other) writer.number(word);
  return writer.take();
}
std::optional<MeshGreeting> decode_mesh_greeting(const Bytes& body) {
  ByteReader reader(body);
  MeshGreeting greeting;
  greeting.first_rank = reader.number<int>();
  for (uint64_t& word : greeting.own) word = reader.number<uint64_t>();
  for (uint64_t& word : greeting.other) word = reader.number<uint64_t>();
  return reader.is_at_end() ? std::optional(greeting) : std::nullopt;
}

struct Stranger {
  Channel channel;
  Deadline patience = Deadline::in_ms(kPatienceMs);
  Deadline crowded_patience = Deadline::in_ms(kCrowdedPatienceMs);
};

class MeshBuilder {
 public:
  MeshBuilder(const Listener& listener, const Hello& mine, const std::vector<Hello>& world)
      : listener_(listener), mine_(mine) {
    for (const Hello& hello : world) {
      if (hello.first_rank == mine.first_rank) continue;
      const long process = syscall(SYS_pidfd_open, static_cast<pid_t>(hello.pid), 0);
      has_ended_.push_back(process < 0 && errno == ESRCH);
      if (process < 0 && errno == EMFILE)  // without pidfds, as on old kernels, sockets show deaths, too
        (void)(begun_ = no_file_descriptor("join: the watch of " + hello.name(), errno));
      peers_.push_back({hello, Channel(), FileDescriptor(static_cast<int>(process))});
    }
    is_connected_.resize(peers_.size());
  }

  Result<std::vector<Peer>> run(const Deadline& deadline) {
    Status status = begun_.ok() ? connect_all(deadline) : begun_;
    if (status.ok()) return std::move(peers_);
    // Those who hear it from this process shall know the cause.
    const auto* reason = reinterpret_cast<const std::byte*>(status.message().data());
    const Bytes goodbye =
        encode_message(MessageKind::kGoodbye, 0, 0, Bytes(reason, reason + status.message().size()));
    for (size_t i = 0; i < peers_.size(); ++i)
      if (is_connected_[i]) peers_[i].channel.send(goodbye);
    return status;
  }

 private:
  Status connect_all(const Deadline& deadline) {
    while (std::find(is_connected_.begin(), is_connected_.end(), false) != is_connected_.end()) {
      SWITCHYARD_RETURN_IF_ERROR(check_alive(0));
      for (size_t i = 0; i < peers_.size(); ++i) {
        if (is_lower(peers_[i]) && !peers_[i].channel.is_open())
          SWITCHYARD_RETURN_IF_ERROR(connect_to(peers_[i], deadline));
      }
      if (deadline.has_passed()) return too_late();
      SWITCHYARD_RETURN_IF_ERROR(serve(deadline));
    }
    return Status();
  }
  bool is_lower(const Peer& peer) const { return peer.hello.first_rank < mine_.first_rank; }
  // Looks at all processes for so long that one that is about to end has. If some have ended, it was one of
  // them that the others could not go on without: all are named.
  Status check_alive(int wait_ms) {
    std::vector<pollfd> polled;
    for (const Peer& peer : peers_) polled.push_back({peer.process.number(), POLLIN, 0});
    (void)poll(polled.data(), polled.size(), wait_ms);
    std::string names;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (!has_ended_[i] && polled[i].revents == 0) continue;
      names += (names.empty() ? "" : " and ") + peers_[i].hello.name() + " has ended";
    }
    return names.empty() ? Status() : unavailable("%s while the others joined", names.c_str());
  }
  // Of a peer that has closed its connection: it says why, or has ended, or another one has.
  Status absence_of(Peer& peer) {
    (void)(peer.channel.is_open() && peer.channel.receive());
    while (std::optional<Frame> frame = peer.channel.next_frame())
      if (const std::optional<Message> message = decode_message(std::move(*frame));
          message && message->kind == MessageKind::kGoodbye)
        return unavailable("%s has left while the others joined: %.*s", peer.hello.name().c_str(),
                           static_cast<int>(std::min(message->payload.size(), kMaxReasonBytes)),
                           reinterpret_cast<const char*>(message->payload.data()));
    SWITCHYARD_RETURN_IF_ERROR(check_alive(kDeathMs));
    return unavailable("%s has left while the others joined", peer.hello.name().c_str());
  }
  Status too_late() const {
    const auto missing = std::find(is_connected_.begin(), is_connected_.end(), false);
    return Status(StatusCode::kDeadlineExceeded,
                  peers_[static_cast<size_t>(missing - is_connected_.begin())].hello.name() +
                      " did not connect in time");
  }
  MeshGreeting greeting_for(const Peer& peer) const {
    return {mine_.first_rank, mine_.nonce, peer.hello.nonce};
  }
  bool is_from(const Peer& peer, const Channel& channel, const std::optional<MeshGreeting>& greeting) const {
    const PeerProcess process = peer_process_of(channel.number());
    return greeting && greeting->first_rank == peer.hello.first_rank && process.pid == peer.hello.pid &&
           process.uid == peer.hello.uid && is_equal(greeting->own, peer.hello.nonce) &&
           is_equal(greeting->other, mine_.nonce);
  }
  static bool is_equal(const Nonce& a, const Nonce& b) { return ((a[0] ^ b[0]) | (a[1] ^ b[1])) == 0; }

  Status connect_to(Peer& peer, const Deadline& deadline) {
    Result<Connected> connected = try_connect(mesh_address_of(peer.hello), deadline);
    if (!connected.ok()) return connected.status();
    if (connected.value().error == ECONNREFUSED) return absence_of(peer);  // it listened before it was known
    if (!connected.value().socket.is_open()) return Status();              // many wait there: later
    peer.channel = Channel(std::move(connected.value().socket));
    peer.channel.send(encode(greeting_for(peer)));
    return Status();
  }

  // Waits a little for anything to happen, and does what there is to do.
  Status serve(const Deadline& deadline) {
    // Who finds no room waits outside.
    const bool is_crowded =
        std::exchange(is_short_of_files_, false) || strangers_.size() >= kMaxStrangers + peers_.size();
    std::vector<pollfd> polled = {{is_crowded ? -1 : listener_.number(), POLLIN, 0}};
    for (size_t i = 0; i < peers_.size(); ++i) {
      // What a connected peer sends is read later; here only its end counts.
      const bool reads = is_lower(peers_[i]) && !is_connected_[i];
      polled.push_back({peers_[i].channel.number(), static_cast<int16_t>(reads ? POLLIN : 0), 0});
      polled.push_back({peers_[i].process.number(), POLLIN, 0});
    }
    for (const Stranger& stranger : strangers_) polled.push_back({stranger.channel.number(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), std::min(deadline.remaining_ms(), kPollMs)) < 0)
      return errno == EINVAL ? no_file_descriptor("join: poll", EMFILE) : Status();
    for (size_t i = 0; i < peers_.size(); ++i)
      if (polled[1 + 2 * i].revents != 0) SWITCHYARD_RETURN_IF_ERROR(read_peer(i));
    size_t at = 1 + 2 * peers_.size();
    for (auto stranger = strangers_.begin(); stranger != strangers_.end(); ++at)
      stranger =
          polled[at].revents == 0 || stays(*stranger) ? std::next(stranger) : strangers_.erase(stranger);
    strangers_.remove_if([&](const Stranger& stranger) {
      return (is_crowded ? stranger.crowded_patience : stranger.patience).has_passed();
    });
    return polled[0].revents != 0 ? accept_strangers() : Status();
  }

  // Of a connected peer only the end is polled for; of another one the greeting is read.
  Status read_peer(size_t i) {
    Peer& peer = peers_[i];
    if (is_connected_[i]) return absence_of(peer);
    const bool is_there = peer.channel.receive();
    const std::optional<Frame> frame = peer.channel.next_frame();
    if (!frame) return is_there ? Status() : absence_of(peer);
    if (!is_from(peer, peer.channel, decode_mesh_greeting(frame->body)))
      return unavailable("what listens for %s is another process", peer.hello.name().c_str());
    is_connected_[i] = true;
    return Status();
  }

  Status accept_strangers() {
    for (size_t i = 0; i < kMaxStrangers; ++i) {
      Result<FileDescriptor> accepted = listener_.accept_next();
      if (!accepted.ok()) {
        is_short_of_files_ = true;
        return strangers_.empty() ? accepted.status() : Status();
      }
      FileDescriptor socket = std::move(accepted).value();
      if (!socket.is_open()) break;
      if (peer_process_of(socket.number()).uid == mine_.uid)
        strangers_.push_back({Channel(std::move(socket))});
    }
    return Status();
  }
  // Makes a peer of a stranger that greets as one; false: it goes, here or to the peers.
  bool stays(Stranger& stranger) {
    const bool is_there = stranger.channel.receive();
    const std::optional<Frame> frame = stranger.channel.next_frame();
    if (!frame) return is_there;
    const std::optional<MeshGreeting> greeting = decode_mesh_greeting(frame->body);
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (is_lower(peers_[i]) || is_connected_[i] || !is_from(peers_[i], stranger.channel, greeting))
        continue;
      peers_[i].channel = std::move(stranger.channel);
      peers_[i].channel.send(encode(greeting_for(peers_[i])));
      is_connected_[i] = true;
      break;
    }
    return false;
  }

  const Listener& listener_;
  const Hello& mine_;
  Status begun_;
  std::vector<Peer> peers_;
  std::vector<bool> has_ended_;  // before there was a pidfd of it
  std::vector<bool> is_connected_;
  std::list<Stranger> strangers_;
  bool is_short_of_files_ = false;  // until strangers have gone
};

}  // namespace

Address mesh_address_of(const Hello& hello) {
  return {Address::Kind::kUnixAbstract, "of " + hello.name(), hello.listener, ""};
}

Result<std::vector<Peer>> connect_mesh(const Listener& listener, const Hello& mine,
                                       const std::vector<Hello>& world, const Deadline& deadline) {
  return MeshBuilder(listener, mine, world).run(deadline);
}

}  // namespace switchyard
