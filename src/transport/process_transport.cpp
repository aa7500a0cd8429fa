#include "process_transport.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "check_members.hpp"
#include "mesh.hpp"
#include "process_memory.hpp"
#include "rendezvous.hpp"
#include "watcher.hpp"

namespace switchyard {
namespace {

constexpr uint64_t kGoodbyeMs = 100;

class ProcessTransport : public Transport {
 public:
  ProcessTransport(Device& device, uint64_t timeout_ns, const Hello& mine, std::vector<Peer> peers)
      : device_(device), timeout_ns_(timeout_ns), mine_(mine), peers_(std::move(peers)), watcher_(peers_) {}
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
  std::shared_ptr<void> watch(std::function<void(int rank)> on_death) override {
    return watcher_.watch(std::move(on_death));
  }

  // What the others are told when this process leaves.
  void set_reason(std::string reason) { reason_ = std::move(reason); }

 private:
  Deadline deadline() const { return Deadline::in_ns(timeout_ns_); }
  std::vector<size_t> peers_of(std::span<const int> members) const;
  Status send(size_t peer, const Bytes& message, std::span<const int> files, std::span<const size_t> peers,
              const Deadline& deadline);
  // Fails on all processes of the members if `mine` is an error on one of them.
  Status agree(std::span<const int> members, const Status& mine);
  Status exchange_files(std::span<const int> members, uint64_t bytes, uint64_t host_visible_bytes,
                        ProcessMemory& memory);

  Device& device_;
  const uint64_t timeout_ns_;
  const Hello mine_;
  std::string reason_;
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

Status ProcessTransport::send(size_t peer, const Bytes& message, std::span<const int> files,
                              std::span<const size_t> peers, const Deadline& deadline) {
  peers_[peer].channel.send(message, files);
  if (peers_[peer].channel.flush_until(deadline)) return Status();
  if (deadline.has_passed())
    return Status(StatusCode::kDeadlineExceeded, peers_[peer].hello.name() + " did not read in time");
  // The socket is broken; the watcher is about to see that, too.
  Result<Message> never = watcher_.wait_for(peer, MessageKind::kGoodbye, 0, 0, peers, deadline);
  return never.status();
}

Result<std::vector<Bytes>> ProcessTransport::all_gather(std::span<const int> members, const Bytes& mine) {
  SWITCHYARD_RETURN_IF_ERROR(check_members(members, *this));
  if (mine.size() > kMaxPayloadBytes)
    return invalid_argument("all_gather of %zu bytes; at most %zu", mine.size(), kMaxPayloadBytes);
  const Deadline until = deadline();
  const std::vector<size_t> peers = peers_of(members);
  const uint64_t group = group_of(members), sequence = ++num_calls_[group];
  SWITCHYARD_RETURN_IF_ERROR(watcher_.check_present(peers));
  const Bytes message = encode_message(MessageKind::kGather, group, sequence, mine);
  for (const size_t peer : peers) SWITCHYARD_RETURN_IF_ERROR(send(peer, message, {}, peers, until));
  std::map<size_t, Bytes> gathered;
  for (const size_t peer : peers) {
    Result<Message> answer = watcher_.wait_for(peer, MessageKind::kGather, group, sequence, peers, until);
    if (!answer.ok()) return answer.status();
    gathered[peer] = std::move(answer.value().payload);
  }
  std::vector<Bytes> by_member;
  for (const int rank : members) {
    const auto holder = std::find_if(peers.begin(), peers.end(),
                                     [&](size_t peer) { return peers_[peer].hello.has_rank(rank); });
    by_member.push_back(holder == peers.end() ? mine : gathered[*holder]);
  }
  return by_member;
}

Status ProcessTransport::agree(std::span<const int> members, const Status& mine) {
  const Bytes said =
      ByteWriter().number(static_cast<uint32_t>(mine.code())).text(mine.message().substr(0, 1024)).take();
  const Result<std::vector<Bytes>> all = all_gather(members, said);
  if (!mine.ok()) return mine;
  if (!all.ok()) return all.status();
  for (size_t i = 0; i < members.size(); ++i) {
    ByteReader reader(all.value()[i]);
    const auto code = reader.number<uint32_t>();
    const std::string message = reader.text(1024);
    if (code != 0)
      return Status(static_cast<StatusCode>(std::min(code, static_cast<uint32_t>(StatusCode::kInternal))),
                    "rank " + std::to_string(members[i]) + ": " + message);
  }
  return Status();
}

Status ProcessTransport::exchange_files(std::span<const int> members, uint64_t bytes,
                                        uint64_t host_visible_bytes, ProcessMemory& memory) {
  const Deadline until = deadline();
  const std::vector<size_t> peers = peers_of(members);
  const uint64_t group = group_of(members), sequence = ++num_calls_[group];
  for (const int rank : members) {
    if (!is_local(rank)) continue;
    const Bytes message =
        encode_message(MessageKind::kMemory, group, sequence, ByteWriter().number(rank).take());
    for (const size_t peer : peers)
      SWITCHYARD_RETURN_IF_ERROR(send(peer, message, memory.files_of(rank), peers, until));
  }
  Status failure;
  for (const size_t peer : peers) {
    for (const int rank : members) {
      if (!peers_[peer].hello.has_rank(rank)) continue;
      Result<Message> answer = watcher_.wait_for(peer, MessageKind::kMemory, group, sequence, peers, until);
      if (!answer.ok()) return answer.status();
      const int sent_rank = ByteReader(answer.value().payload).number<int>();
      Status status = sent_rank != rank
                          ? internal_error("rank %d sent memory as rank %d", rank, sent_rank)
                          : memory.map(device_, rank, bytes, host_visible_bytes, answer.value().files);
      if (!status.ok() && failure.ok()) failure = status;
    }
  }
  return failure;
}

Result<std::unique_ptr<SymmetricMemory>> ProcessTransport::allocate(std::span<const int> members,
                                                                    uint64_t bytes,
                                                                    uint64_t host_visible_bytes) {
  SWITCHYARD_RETURN_IF_ERROR(check_members(members, *this));
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
  auto memory = std::make_unique<ProcessMemory>();
  Status created;
  for (const int rank : members)
    if (is_local(rank) && created.ok()) created = memory->create(device_, rank, bytes, host_visible_bytes);
  SWITCHYARD_RETURN_IF_ERROR(agree(members, created));
  SWITCHYARD_RETURN_IF_ERROR(agree(members, exchange_files(members, bytes, host_visible_bytes, *memory)));
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
  const Result<Listener> listener = Listener::listen_at(mesh_address_of(mine));
  if (!listener.ok()) return listener.status();
  const Result<std::vector<Hello>> world = gather_hellos(options, mine, deadline);
  if (!world.ok()) return world.status();
  Result<std::vector<Peer>> peers = connect_mesh(listener.value(), mine, world.value(), deadline);
  if (!peers.ok()) return peers.status();
  auto transport =
      std::make_unique<ProcessTransport>(*options.device, options.timeout_ns, mine, std::move(peers).value());
  // All have joined, or none has.
  std::vector<int> all(static_cast<size_t>(options.n_ranks));
  std::iota(all.begin(), all.end(), 0);
  if (Status status = transport->barrier(all); !status.ok()) {
    transport->set_reason(status.message());
    return status;
  }
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace switchyard
