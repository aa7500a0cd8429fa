#include "process_transport.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <numeric>

#include "mesh.hpp"
#include "process_memory.hpp"
#include "process_state.hpp"
#include "rendezvous.hpp"
#include "transport/check_members.hpp"
#include "transport/wire_status.hpp"
#include "watcher.hpp"

namespace switchyard {
namespace {

constexpr uint64_t kGoodbyeMs = 100;
// A process that is killed may take seconds to give back what it has on a GPU, and neither its sockets nor
// its pidfd tell before. Where the system says that it is being killed, that shows at once.
constexpr std::chrono::milliseconds kDeathNotice(100), kLateDeathNotice(15'000);

class ProcessTransport : public Transport {
 public:
  ProcessTransport(Device& device, uint64_t timeout_ns, const Hello& mine, std::vector<Peer> peers,
                   FileDescriptor wake_up)
      : device_(device),
        timeout_ns_(timeout_ns),
        mine_(mine),
        peers_(std::move(peers)),
        watcher_(peers_, std::move(wake_up)) {}
  ~ProcessTransport() override {
    const auto* reason = reinterpret_cast<const std::byte*>(reason_.data());
    const Bytes goodbye = encode_message(MessageKind::kGoodbye, 0, 0, Bytes(reason, reason + reason_.size()));
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (!watcher_.check_present({&i, 1}).ok()) continue;
      peers_[i].channel.send(goodbye);
      (void)peers_[i].channel.flush_until(Deadline::in_ms(kGoodbyeMs));
    }
  }

  const char* name() const override { return "process"; }
  int n_ranks() const override { return mine_.n_ranks; }
  int first_local_rank() const override { return mine_.first_rank; }
  int num_local_ranks() const override { return mine_.num_ranks; }
  int num_ranks_on_device_of(int) const override {
    int count = mine_.num_ranks;
    for (const Peer& peer : peers_)
      if (!mine_.device.empty() && peer.hello.device == mine_.device) count += peer.hello.num_ranks;
    return count;
  }

  Result<std::vector<Bytes>> all_gather(std::span<const int> members, const Bytes& mine) override;
  Status barrier(std::span<const int> members) override { return all_gather(members, {}).status(); }
  Result<std::unique_ptr<SymmetricMemory>> allocate(std::span<const int> members, uint64_t bytes,
                                                    uint64_t host_visible_bytes) override;

  std::vector<int> dead_ranks() const override { return watcher_.dead_ranks(); }
  std::vector<int> ending_ranks() const override;
  std::chrono::milliseconds death_notice() const override {
    return state_of_process(getpid()) == ProcessState::kUnknown ? kLateDeathNotice : kDeathNotice;
  }
  Status wait_for_end_of(int rank) override;
  std::shared_ptr<void> watch(std::function<void(int rank)> on_death) override {
    return watcher_.watch(std::move(on_death));
  }

 private:
  // What a process sends, if it sends something, and who waits for whom, in one collective call.
  struct Exchange {
    MessageKind kind;
    std::span<const int> members;
    const Bytes* payload = nullptr;  // null: this process has nothing to send
    std::vector<int> files;
    std::vector<size_t> senders;  // the peers that send something, too
  };
  Result<std::vector<Message>> exchange(const Exchange& call);
  Result<std::vector<Message>> send_and_wait(const Exchange& call, uint64_t group, uint64_t sequence);
  std::vector<size_t> peers_of(std::span<const int> members) const;
  // Fails on all processes of the members if `mine` is an error on one of them.
  Status agree(std::span<const int> members, const Status& mine);
  Status check_sizes(std::span<const int> members, uint64_t bytes, uint64_t host_visible_bytes);
  // Sends the files of the local memory, and maps those of the others; `mapped` says whether that went well.
  Status exchange_files(std::span<const int> members, uint64_t bytes, uint64_t host_visible_bytes,
                        ProcessMemory& memory, Status& mapped);

  Device& device_;
  const uint64_t timeout_ns_;
  const Hello mine_;
  std::string reason_;  // what went wrong last: the others hear it when this process leaves
  std::map<uint64_t, uint64_t> num_calls_;  // by group
  std::vector<Peer> peers_;
  Watcher watcher_;  // after peers_, which it reads from
};

// The other processes of these ranks, by index.
std::vector<size_t> ProcessTransport::peers_of(std::span<const int> members) const {
  std::vector<size_t> peers;
  for (size_t i = 0; i < peers_.size(); ++i)
    if (std::any_of(members.begin(), members.end(), [&](int rank) { return peers_[i].hello.has_rank(rank); }))
      peers.push_back(i);
  return peers;
}

Result<std::vector<Message>> ProcessTransport::exchange(const Exchange& call) {
  const uint64_t group = group_of(call.members), sequence = ++num_calls_[group];
  Result<std::vector<Message>> answers = send_and_wait(call, group, sequence);
  if (answers.ok()) return answers;
  // The others need not wait for this process in vain.
  const Status failure = answers.status();
  const Bytes message = encode_message(MessageKind::kFailed, group, sequence, encode_status(failure));
  for (const size_t peer : peers_of(call.members)) peers_[peer].channel.send(message);
  reason_ = failure.message();
  return failure;
}

Result<std::vector<Message>> ProcessTransport::send_and_wait(const Exchange& call, uint64_t group,
                                                             uint64_t sequence) {
  const Deadline deadline = Deadline::in_ns(timeout_ns_);
  const std::vector<size_t> peers = peers_of(call.members);
  SWITCHYARD_RETURN_IF_ERROR(watcher_.check_present(peers));
  if (call.payload != nullptr) {
    const Bytes message = encode_message(call.kind, group, sequence, *call.payload);
    for (const size_t peer : peers)
      SWITCHYARD_RETURN_IF_ERROR(peers_[peer].channel.send_with_files(message, call.files));
    // One that is gone shows when its answer does not come.
    for (const size_t peer : peers) {
      if (peers_[peer].channel.flush_until(deadline) || !deadline.has_passed()) continue;
      if (peers_[peer].channel.is_short_of_files())
        return resource_exhausted(
            "files for %s: too many are on their way between processes of this user: %s",
            peers_[peer].hello.name().c_str(), describe_file_limit().c_str());
      return Status(StatusCode::kDeadlineExceeded, peers_[peer].hello.name() + " did not answer in time");
    }
  }
  return watcher_.wait_for(call.senders, call.kind, group, sequence, deadline);
}

std::vector<int> ProcessTransport::ending_ranks() const {
  std::vector<int> ranks = watcher_.dead_ranks();
  for (const Peer& peer : peers_)
    for (int rank = peer.hello.first_rank; rank < peer.hello.first_rank + peer.hello.num_ranks; ++rank)
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end() &&
          state_of_process(peer.hello.pid) == ProcessState::kEnds)
        ranks.push_back(rank);
  return ranks;
}

// Sockets close before the process has ended; a pidfd tells when it has. Old kernels have none.
Status ProcessTransport::wait_for_end_of(int rank) {
  const Deadline deadline = Deadline::in_ns(timeout_ns_);
  for (const Peer& peer : peers_) {
    if (!peer.hello.has_rank(rank) || !peer.process.is_open()) continue;
    pollfd ended{peer.process.number(), POLLIN, 0};
    while (poll(&ended, 1, deadline.remaining_ms()) <= 0)
      if (deadline.has_passed())
        return Status(StatusCode::kDeadlineExceeded,
                      peer.hello.name() + " has closed its connections, but did not end in time");
  }
  return Status();
}

Result<std::vector<Bytes>> ProcessTransport::all_gather(std::span<const int> members, const Bytes& mine) {
  SWITCHYARD_RETURN_IF_ERROR(check_members(members, *this));
  if (mine.size() > kMaxPayloadBytes)
    return invalid_argument("all_gather of %zu bytes; at most %zu", mine.size(), kMaxPayloadBytes);
  const std::vector<size_t> peers = peers_of(members);
  Result<std::vector<Message>> answers =
      exchange({.kind = MessageKind::kGather, .members = members, .payload = &mine, .senders = peers});
  if (!answers.ok()) return answers.status();
  std::vector<Bytes> by_member;
  for (const int rank : members) {
    const auto holder = std::find_if(peers.begin(), peers.end(),
                                     [&](size_t peer) { return peers_[peer].hello.has_rank(rank); });
    by_member.push_back(
        holder == peers.end() ? mine : answers.value()[static_cast<size_t>(holder - peers.begin())].payload);
  }
  return by_member;
}

Status ProcessTransport::agree(std::span<const int> members, const Status& mine) {
  const Result<std::vector<Bytes>> all = all_gather(members, encode_status(mine));
  if (!mine.ok()) return mine;
  if (!all.ok()) return all.status();
  for (size_t i = 0; i < members.size(); ++i)
    if (const Status status = decode_status(all.value()[i]); !status.ok())
      return Status(status.code(), "rank " + std::to_string(members[i]) + ": " + status.message());
  return Status();
}

Status ProcessTransport::check_sizes(std::span<const int> members, uint64_t bytes,
                                     uint64_t host_visible_bytes) {
  const Result<std::vector<Bytes>> sizes =
      all_gather(members, ByteWriter().number(bytes).number(host_visible_bytes).take());
  if (!sizes.ok()) return sizes.status();
  for (size_t i = 0; i < members.size(); ++i) {
    ByteReader reader(sizes.value()[i]);
    const auto their_bytes = reader.number<uint64_t>(), their_visible = reader.number<uint64_t>();
    if (their_bytes != bytes || their_visible != host_visible_bytes)
      return invalid_argument(
          "allocate: %llu and %llu host-visible bytes here, %llu and %llu at rank %d; they must be the same",
          static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(host_visible_bytes),
          static_cast<unsigned long long>(their_bytes), static_cast<unsigned long long>(their_visible),
          members[i]);
  }
  return Status();
}

Status ProcessTransport::exchange_files(std::span<const int> members, uint64_t bytes,
                                        uint64_t host_visible_bytes, ProcessMemory& memory, Status& mapped) {
  const auto ranks_of = [&](const Hello& hello) {
    std::vector<int> ranks;
    std::copy_if(members.begin(), members.end(), std::back_inserter(ranks),
                 [&](int rank) { return hello.has_rank(rank); });
    return ranks;
  };
  const std::vector<int> own = ranks_of(mine_);
  size_t num_rounds = own.size();
  for (const Peer& peer : peers_) num_rounds = std::max(num_rounds, ranks_of(peer.hello).size());
  // In each round every process sends the memory of one of its ranks, if it has so many.
  for (size_t round = 0; round < num_rounds; ++round) {
    const Bytes nothing;
    Exchange call{.kind = MessageKind::kMemory, .members = members};
    if (round < own.size()) {
      call.payload = &nothing;
      call.files = memory.files_of(own[round]);
    }
    for (const size_t peer : peers_of(members))
      if (round < ranks_of(peers_[peer].hello).size()) call.senders.push_back(peer);
    Result<std::vector<Message>> answers = exchange(call);
    if (!answers.ok()) return answers.status();
    for (size_t i = 0; i < call.senders.size() && mapped.ok(); ++i) {
      const int rank = ranks_of(peers_[call.senders[i]].hello)[round];
      const Message& answer = answers.value()[i];
      mapped = answer.has_lost_files
                   ? no_file_descriptor("the memory of rank " + std::to_string(rank), EMFILE)
                   : memory.map(device_, rank, bytes, host_visible_bytes, answer.files);
    }
  }
  return Status();
}

Result<std::unique_ptr<SymmetricMemory>> ProcessTransport::allocate(std::span<const int> members,
                                                                    uint64_t bytes,
                                                                    uint64_t host_visible_bytes) {
  SWITCHYARD_RETURN_IF_ERROR(check_members(members, *this));
  SWITCHYARD_RETURN_IF_ERROR(check_sizes(members, bytes, host_visible_bytes));
  auto memory = std::make_unique<ProcessMemory>();
  Status created;
  for (const int rank : members)
    if (is_local(rank) && created.ok()) created = memory->create(device_, rank, bytes, host_visible_bytes);
  SWITCHYARD_RETURN_IF_ERROR(agree(members, created));
  Status mapped;
  SWITCHYARD_RETURN_IF_ERROR(exchange_files(members, bytes, host_visible_bytes, *memory, mapped));
  SWITCHYARD_RETURN_IF_ERROR(agree(members, mapped));
  memory->close_files();
  return std::unique_ptr<SymmetricMemory>(std::move(memory));
}

Result<std::vector<Hello>> gather_hellos(const ProcessOptions& options, const Hello& mine,
                                         const Deadline& deadline) {
  Result<std::vector<Bytes>> gathered = std::vector<Bytes>();
  if (options.all_gather) {
    gathered = options.all_gather(encode(mine));
  } else {
    const Result<Address> address = parse_address(options.rendezvous);
    if (!address.ok()) return address.status();
    const Result<std::optional<Token>> token = find_token(options.token);
    if (!token.ok()) return token.status();
    gathered = meet_at(address.value(), token.value(), mine, deadline);
  }
  if (!gathered.ok()) return gathered.status();
  if (gathered.value().size() > static_cast<size_t>(options.n_ranks))
    return invalid_argument("all_gather returned the bytes of %zu processes; there are %d ranks",
                            gathered.value().size(), options.n_ranks);
  std::vector<Hello> world;
  for (const Bytes& bytes : gathered.value()) {
    Result<Hello> hello = decode_hello(bytes);
    if (!hello.ok()) return hello.status();
    world.push_back(std::move(hello).value());
  }
  SWITCHYARD_RETURN_IF_ERROR(check_world(world));
  return world;
}

}  // namespace

Result<std::unique_ptr<Transport>> join_processes(const ProcessOptions& options) {
  const Deadline deadline = Deadline::in_ns(options.timeout_ns);
  Hello mine = describe_this_process();
  mine.n_ranks = options.n_ranks;
  mine.first_rank = options.first_rank;
  mine.num_ranks = options.num_local_ranks;
  mine.target = options.device->target();
  mine.device = options.device->uuid();
  const Result<Listener> listener = Listener::listen_at(mesh_address_of(mine), deadline);
  if (!listener.ok()) return listener.status();
  const Result<std::vector<Hello>> world = gather_hellos(options, mine, deadline);
  if (!world.ok()) return world.status();
  Result<std::vector<Peer>> peers = connect_mesh(listener.value(), mine, world.value(), deadline);
  if (!peers.ok()) return peers.status();
  FileDescriptor wake_up(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_up.is_open()) return no_file_descriptor("join: eventfd", errno);
  auto transport = std::make_unique<ProcessTransport>(*options.device, options.timeout_ns, mine,
                                                      std::move(peers).value(), std::move(wake_up));
  // All have joined, or none has.
  std::vector<int> all(static_cast<size_t>(options.n_ranks));
  std::iota(all.begin(), all.end(), 0);
  SWITCHYARD_RETURN_IF_ERROR(transport->barrier(all));
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace switchyard
