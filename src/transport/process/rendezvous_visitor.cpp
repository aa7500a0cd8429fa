// The side of all ranks but 0.
#include <poll.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "channel.hpp"
#include "rendezvous.hpp"
#include "rendezvous_frames.hpp"

namespace switchyard {
namespace {

constexpr auto kRetryEvery = std::chrono::milliseconds(5);
constexpr uint64_t kPatienceMs = 2000;  // for a challenge

Status too_late(const Address& address, const std::string& why) {
  return Status(StatusCode::kDeadlineExceeded,
                "rendezvous " + address.text + ": rank 0 did not answer in time: " + why);
}

// The next frame; none: the server has closed, or the deadline has passed.
std::optional<Bytes> wait_for_frame(Channel& channel, const Deadline& deadline) {
  while (true) {
    const bool is_there = channel.flush() && channel.receive();
    if (std::optional<Frame> frame = channel.next_frame()) return std::move(frame->body);
    if (!is_there || deadline.has_passed()) return std::nullopt;
    pollfd polled{channel.number(), static_cast<int16_t>(POLLIN | (channel.has_unsent() ? POLLOUT : 0)), 0};
    (void)poll(&polled, 1, deadline.remaining_ms());
  }
}

struct Visit {
  Channel channel;
  Nonce challenge{};
};

// Connects, and waits for the challenge. A server that is just closing, or a process that is no server, sends
// none: then the visit is made again. A server that has been met and is gone does not come back.
Result<Visit> begin_visit(const Address& address, uint32_t uid, bool was_met, const Deadline& deadline) {
  std::string why = "nobody listens";
  for (size_t attempt = 0; !deadline.has_passed(); ++attempt) {
    Result<Connected> connected = try_connect(address, deadline, attempt);
    if (!connected.ok()) return connected.status();
    if (connected.value().socket.is_open()) {
      Visit visit{Channel(std::move(connected.value().socket))};
      if (address.is_unix() && peer_process_of(visit.channel.number()).uid != uid)
        return invalid_argument("rendezvous %s: user %u listens there; it must be user %u",
                                address.text.c_str(), peer_process_of(visit.channel.number()).uid, uid);
      // Something else may listen at one of several addresses, and say nothing.
      const bool is_sure = connected.value().num_addresses == 1;
      const std::optional<Bytes> frame = wait_for_frame(
          visit.channel, is_sure ? deadline : deadline.earlier_of(Deadline::in_ms(kPatienceMs)));
      const std::optional<Nonce> challenge = frame ? decode_challenge(*frame) : std::nullopt;
      if (challenge) {
        visit.challenge = *challenge;
        return visit;
      }
      why = "what listens there is not this library";
    } else {
      if (was_met) return unavailable("rendezvous %s: rank 0 has ended", address.text.c_str());
      why = std::strerror(connected.value().error);
    }
    std::this_thread::sleep_for(kRetryEvery);
  }
  return too_late(address, why);
}

Result<std::vector<Bytes>> read_answer(const Address& address, const Bytes& frame, const Token& token,
                                       const Nonce& nonce, int n_ranks) {
  std::optional<Answer> answer = decode_answer(frame, static_cast<size_t>(n_ranks));
  if (!answer) return unavailable("rendezvous %s: rank 0 sent no answer", address.text.c_str());
  if (!is_same(answer->proof, prove(token, 's', nonce, provable_part(*answer))))
    return invalid_argument("rendezvous %s: the token is not the one of rank 0", address.text.c_str());
  if (!answer->refusal.ok()) return answer->refusal;
  return std::move(answer->hellos);
}

}  // namespace

Result<std::vector<Bytes>> visit_rendezvous(const Address& address, const Token& token, const Hello& mine,
                                            const Deadline& deadline) {
  const Bytes hello = encode(mine);
  for (bool was_met = false;; was_met = true) {
    Result<Visit> visit = begin_visit(address, mine.uid, was_met, deadline);
    if (!visit.ok()) return visit.status();
    const Nonce nonce = random_nonce();
    const Proof proof = prove(token, 'v', visit.value().challenge, hello);
    visit.value().channel.send(encode(Greeting{nonce, proof, hello}));
    const std::optional<Bytes> frame = wait_for_frame(visit.value().channel, deadline);
    if (frame) return read_answer(address, *frame, token, nonce, mine.n_ranks);
    if (deadline.has_passed()) return too_late(address, "it waits for other ranks, or is stopped");
    // The server has ended, or was crowded and took this for a stranger; which, shows in a second visit.
  }
}

Result<std::vector<Bytes>> meet_at(const Address& address, const std::optional<Token>& token,
                                   const Hello& mine, const Deadline& deadline) {
  if (!address.is_unix() && !token)
    return invalid_argument(
        "rendezvous %s needs a token of 32 hex digits: JoinOptions::token, or the environment's "
        "SWITCHYARD_TOKEN_FILE or SWITCHYARD_TOKEN",
        address.text.c_str());
  const Token key = token.value_or(Token{});
  return mine.first_rank == 0 ? serve_rendezvous(address, key, mine, deadline)
                              : visit_rendezvous(address, key, mine, deadline);
}

}  // namespace switchyard
