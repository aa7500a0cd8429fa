// The side of rank 0. Every connection is served without waiting for any other; whoever does not prove the
// token in time is dropped, and changes nothing.
#include <poll.h>

#include <algorithm>
#include <list>
#include <set>
#include <utility>

#include "channel.hpp"
#include "rendezvous.hpp"
#include "rendezvous_frames.hpp"

namespace switchyard {
namespace {

constexpr uint64_t kPatienceMs = 2000;        // for a greeting
constexpr uint64_t kCrowdedPatienceMs = 200;  // while more want to come in than there is room for
constexpr uint64_t kLingerMs = 1000;          // to tell late ranks why the world was refused
constexpr size_t kMaxStrangers = 64;
constexpr int kPollMs = 100;

struct Guest {
  Channel channel;
  Deadline patience = Deadline::in_ms(kPatienceMs);
  Deadline crowded_patience = Deadline::in_ms(kCrowdedPatienceMs);
  Nonce challenge{};  // what the guest has to prove the token on
  Nonce nonce{};      // what the server has to
  Hello hello{};
  Bytes encoded_hello;
  bool is_seated = false;
  bool is_leaving = false;  // as soon as it has been sent everything
};

class Server {
 public:
  Server(Listener listener, bool is_unix, const Token& token, const Hello& mine)
      : listener_(std::move(listener)), is_unix_(is_unix), token_(token), mine_(mine) {}

  Result<std::vector<Bytes>> run(const Deadline& deadline) {
    while (num_seated() < mine_.n_ranks && refusal_.ok()) {
      if (deadline.has_passed())
        (void)(refusal_ = Status(StatusCode::kDeadlineExceeded,
                                 "rank " + std::to_string(first_missing()) + " did not join in time"));
      else
        serve(deadline);
    }
    if (!refusal_.ok()) return refuse_all(deadline.earlier_of(Deadline::in_ms(kLingerMs)));
    Answer answer;
    answer.hellos.push_back(encode(mine_));
    for (const Guest& guest : guests_)
      if (guest.is_seated) answer.hellos.push_back(guest.encoded_hello);
    for (Guest& guest : guests_) {
      if (!guest.is_seated) continue;
      send(guest, answer);
      (void)guest.channel.flush_until(deadline);  // one that has ended is found out when ranks connect
    }
    return answer.hellos;
  }

 private:
  int num_seated() const {
    int count = mine_.num_ranks;
    for (const Guest& guest : guests_) count += guest.is_seated ? guest.hello.num_ranks : 0;
    return count;
  }
  const Hello* holder_of(int rank) const {
    if (mine_.has_rank(rank)) return &mine_;
    for (const Guest& guest : guests_)
      if (guest.is_seated && guest.hello.has_rank(rank)) return &guest.hello;
    return nullptr;
  }
  int first_missing() const {
    int rank = 0;
    while (holder_of(rank) != nullptr) ++rank;
    return rank;
  }

  void send(Guest& guest, Answer answer) {
    answer.proof = prove(token_, 's', guest.nonce, provable_part(answer));
    guest.channel.send(encode(answer));
  }
  void refuse(Guest& guest, const Status& why) {
    send(guest, {.refusal = why});
    guest.is_leaving = true;
    for (int rank = 0; rank < mine_.n_ranks; ++rank)
      if (guest.hello.has_rank(rank)) refused_ranks_.insert(rank);
  }
  Status refuse_all(const Deadline& deadline) {
    for (Guest& guest : guests_)
      if (guest.is_seated) refuse(guest, refusal_);
    const size_t num_others = static_cast<size_t>(mine_.n_ranks - mine_.num_ranks);
    while ((refused_ranks_.size() < num_others || has_unsent()) && !deadline.has_passed()) serve(deadline);
    return refusal_;
  }
  bool has_unsent() const {
    return std::any_of(guests_.begin(), guests_.end(),
                       [](const Guest& guest) { return guest.is_leaving && guest.channel.has_unsent(); });
  }

  // Waits a little for anything to happen, and does what there is to do.
  void serve(const Deadline& deadline) {
    // Who finds no room waits outside.
    const bool is_crowded = std::exchange(is_short_of_files_, false) ||
                            num_strangers() >= kMaxStrangers + static_cast<size_t>(mine_.n_ranks);
    std::vector<pollfd> polled = {{is_crowded ? -1 : listener_.number(), POLLIN, 0}};
    for (const Guest& guest : guests_)
      polled.push_back({guest.channel.number(),
                        static_cast<int16_t>(POLLIN | (guest.channel.has_unsent() ? POLLOUT : 0)), 0});
    if (poll(polled.data(), polled.size(), std::min(deadline.remaining_ms(), kPollMs)) < 0) return;
    size_t i = 1;
    for (auto guest = guests_.begin(); guest != guests_.end(); ++i)
      guest = polled[i].revents == 0 || stays(*guest) ? std::next(guest) : guests_.erase(guest);
    guests_.remove_if([&](const Guest& guest) {
      return !guest.is_seated && (is_crowded ? guest.crowded_patience : guest.patience).has_passed();
    });
    if (polled[0].revents != 0) accept_guests();
  }

  size_t num_strangers() const {
    return static_cast<size_t>(
        std::count_if(guests_.begin(), guests_.end(), [](const Guest& guest) { return !guest.is_seated; }));
  }
  void accept_guests() {
    for (size_t i = 0; i < kMaxStrangers; ++i) {
      Result<FileDescriptor> accepted = listener_.accept_next();
      if (!accepted.ok()) {
        is_short_of_files_ = true;
        if (num_strangers() == 0 && refusal_.ok()) (void)(refusal_ = accepted.status());
        return;
      }
      FileDescriptor socket = std::move(accepted).value();
      if (!socket.is_open()) return;
      if (is_unix_ && peer_process_of(socket.number()).uid != mine_.uid) continue;
      Guest& guest = guests_.emplace_back(Guest{.channel = Channel(std::move(socket))});
      guest.challenge = random_nonce();
      guest.channel.send(encode_challenge(guest.challenge));
    }
  }

  // Reads what a guest has sent; false: it goes.
  bool stays(Guest& guest) {
    const bool is_there = guest.channel.flush() && guest.channel.receive();
    while (std::optional<Frame> frame = guest.channel.next_frame()) {
      if (guest.is_leaving) continue;
      if (guest.is_seated || !greet(guest, frame->body)) return end_of(guest);
    }
    if (!is_there) return end_of(guest);
    return !guest.is_leaving || guest.channel.has_unsent();
  }
  // A seated guest that goes before all have come takes the world with it.
  bool end_of(const Guest& guest) {
    if (guest.is_seated && !guest.is_leaving && refusal_.ok())
      (void)(refusal_ = unavailable("%s has ended while the others joined", guest.hello.name().c_str()));
    return false;
  }

  // False: this is no greeting.
  bool greet(Guest& guest, const Bytes& body) {
    const std::optional<Greeting> greeting = decode_greeting(body);
    if (!greeting) return false;
    guest.nonce = greeting->nonce;
    if (!is_same(greeting->proof, prove(token_, 'v', guest.challenge, greeting->hello)))
      return refuse(guest, invalid_argument("rank 0 has another token")), true;
    const Result<Hello> hello = decode_hello(greeting->hello);
    if (!hello.ok()) return false;
    guest.hello = hello.value();
    guest.encoded_hello = greeting->hello;
    if (!refusal_.ok()) return refuse(guest, refusal_), true;
    if (Status status = check_alike(mine_, guest.hello); !status.ok()) {
      refusal_ = status;
      return refuse(guest, refusal_), true;
    }
    if (Status status = check_free(guest.hello); !status.ok()) return refuse(guest, status), true;
    guest.is_seated = true;
    return true;
  }
  Status check_free(const Hello& hello) const {
    if (hello.first_rank < 0 || hello.num_ranks < 1 || hello.num_ranks > mine_.n_ranks - hello.first_rank)
      return invalid_argument("%s: it must be 0..%d", hello.name().c_str(), mine_.n_ranks - 1);
    for (int rank = hello.first_rank; rank < hello.first_rank + hello.num_ranks; ++rank)
      if (const Hello* holder = holder_of(rank); holder != nullptr)
        return invalid_argument("rank %d is taken by process %lld; process %lld claims it, too", rank,
                                static_cast<long long>(holder->pid), static_cast<long long>(hello.pid));
    return Status();
  }

  const Listener listener_;
  const bool is_unix_;
  const Token token_;
  const Hello mine_;
  std::list<Guest> guests_;
  bool is_short_of_files_ = false;  // until strangers have gone
  std::set<int> refused_ranks_;
  Status refusal_;  // of the whole world
};

}  // namespace

Result<std::vector<Bytes>> serve_rendezvous(const Address& address, const Token& token, const Hello& mine,
                                            const Deadline& deadline) {
  Result<Listener> listener = Listener::listen_at(address, deadline);
  if (!listener.ok()) return listener.status();
  return Server(std::move(listener).value(), address.is_unix(), token, mine).run(deadline);
}

}  // namespace switchyard
