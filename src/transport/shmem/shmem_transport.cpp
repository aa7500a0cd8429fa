#include "shmem_transport.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "mailbox.hpp"
#include "shmem_memory.hpp"
#include "transport/check_members.hpp"
#include "transport/hello.hpp"
#include "transport/wire_bytes.hpp"
#include "transport/wire_status.hpp"

namespace switchyard {
namespace {

constexpr uint64_t kAlignment = 256;
constexpr uint64_t align_up(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class ShmemTransport final : public Transport {
 public:
  ShmemTransport(ShmemProcess process, Device& device, uint64_t timeout_ns)
      : process_(std::move(process)), wire_(*process_.wire), device_(device), timeout_ns_(timeout_ns) {}
  ~ShmemTransport() override;

  // Makes the boxes, compares what the processes say of themselves, and finds out who reaches whom.
  Status meet();

  const char* name() const override { return "shmem"; }
  int n_ranks() const override { return process_.n_pes; }
  int first_local_rank() const override { return process_.pe; }
  int num_local_ranks() const override { return 1; }
  int num_ranks_on_device_of(int) const override { return num_ranks_on_device_; }
  bool reaches(int rank, int peer) const override {
    return reached_[static_cast<size_t>(rank)][static_cast<size_t>(peer)] != std::byte{0};
  }

  Result<std::vector<Bytes>> all_gather(std::span<const int> members, const Bytes& mine) override;
  Status barrier(std::span<const int> members) override;
  Result<std::unique_ptr<SymmetricMemory>> allocate(std::span<const int> members, uint64_t bytes,
                                                    uint64_t host_visible_bytes) override;
  const KernelTable* wired_kernels() const override { return static_cast<const KernelTable*>(api().kernels); }

  // SHMEM does not say.
  std::vector<int> dead_ranks() const override { return {}; }
  std::shared_ptr<void> watch(std::function<void(int rank)>) override { return nullptr; }
  void note_failure(const Status& failure) override {
    std::lock_guard lock(mutex_);
    failure_ = failure;
  }

 private:
  struct Allocation {
    std::byte* memory = nullptr;
    bool is_released = false;  // by this process; SHMEM frees it when all have
  };

  const ShmemApi& api() const { return *process_.api; }
  bool is_on_host() const { return device_.target() == Target::kHost; }
  // Among all PEs.
  Result<std::vector<Bytes>> gather(const Bytes& mine);
  Result<std::vector<Bytes>> gather_by_shmem(const Bytes& mine);
  Result<Bytes> gather_pieces(const Bytes& mine, uint64_t bytes);
  Status agree(const Status& mine);
  // Makes a call of SHMEM that all PEs make.
  Status call_together(const char* what, std::function<void()> function);
  Result<std::byte*> allocate_symmetric(const std::vector<std::byte*>& released, uint64_t bytes);
  Status check_members_are_all(std::span<const int> members) const;
  // Compares sizes, and finds the allocations that all PEs have released.
  Result<std::vector<std::byte*>> plan_allocation(uint64_t bytes, uint64_t host_visible_bytes);
  Result<ShmemMemory::Addresses> addresses_of(std::byte* memory, uint64_t bytes, uint64_t host_visible_bytes);
  Status clear(std::byte* memory, uint64_t bytes);
  Status compare_processes();

  ShmemProcess process_;
  WireThread& wire_;
  Device& device_;
  const uint64_t timeout_ns_;
  ShmemWire engine_{wire_};
  std::optional<Mailbox> mailbox_;  // host
  int num_ranks_on_device_ = 1;
  std::vector<Bytes> reached_;                  // [rank][peer]: not 0 if loads and stores reach
  std::mutex mutex_;                            // of what follows
  std::map<uint64_t, Allocation> allocations_;  // by number, which is the same at all PEs
  uint64_t num_allocations_ = 0;
  Status failure_;  // of a step since all PEs last met
};

// All PEs end SHMEM together or none does: a PE that ended it alone would wait for the others.
ShmemTransport::~ShmemTransport() {
  const Deadline deadline = Deadline::in_ns(timeout_ns_);
  bool is_sound = failure_.ok();
  if (mailbox_) {
    mailbox_->leave(is_sound, failure_.message());
    is_sound = is_sound && mailbox_->wait_until_all_have_left(deadline);
  }
  if (!is_sound || !wire_.end_shmem(deadline)) api().abandon();
}

Status ShmemTransport::check_members_are_all(std::span<const int> members) const {
  SWITCHYARD_RETURN_IF_ERROR(check_members(members, *this));
  if (static_cast<int>(members.size()) == n_ranks()) return Status();
  return failed_precondition("transport shmem: %zu of %d ranks; a world of SHMEM goes on with all or none",
                             members.size(), n_ranks());
}

Result<std::vector<Bytes>> ShmemTransport::gather(const Bytes& mine) {
  Result<std::vector<Bytes>> all =
      mailbox_ ? mailbox_->all_gather(mine, Deadline::in_ns(timeout_ns_)) : gather_by_shmem(mine);
  note_failure(all.status());  // whoever answers is not gone, whatever broke before
  return all;
}

Status ShmemTransport::call_together(const char* what, std::function<void()> function) {
  if (wire_.call(std::move(function), Deadline::in_ns(timeout_ns_))) return Status();
  const Status failure(StatusCode::kDeadlineExceeded, std::string(what) + " of " + api().library +
                                                          " did not return in time: not all ranks came");
  note_failure(failure);
  return failure;
}

// CUDA. A call of SHMEM gives the same number of bytes of each PE.
Result<Bytes> ShmemTransport::gather_pieces(const Bytes& mine, uint64_t bytes) {
  struct Exchange {  // outlives a caller that has given up
    Bytes mine, all;
    int code = 0;
    ShmemError error{};
  };
  auto exchange = std::make_shared<Exchange>();
  exchange->mine = mine;
  exchange->mine.resize(bytes);
  exchange->all.resize(bytes * static_cast<uint64_t>(n_ranks()));
  SWITCHYARD_RETURN_IF_ERROR(call_together("all_gather", [api = &api(), exchange, bytes] {
    exchange->code = api->all_gather(exchange->mine.data(), bytes, exchange->all.data(), &exchange->error);
  }));
  if (exchange->code != 0) return unavailable("all_gather of %s: %s", api().library, exchange->error.text);
  return std::move(exchange->all);
}

Result<std::vector<Bytes>> ShmemTransport::gather_by_shmem(const Bytes& mine) {
  const Result<Bytes> sizes =
      gather_pieces(ByteWriter().number(uint64_t{mine.size()}).take(), sizeof(uint64_t));
  if (!sizes.ok()) return sizes.status();
  std::vector<uint64_t> size_of(static_cast<size_t>(n_ranks()));
  std::memcpy(size_of.data(), sizes.value().data(), sizes.value().size());
  const uint64_t longest = std::max<uint64_t>(1, *std::max_element(size_of.begin(), size_of.end()));
  const Result<Bytes> pieces = gather_pieces(mine, longest);
  if (!pieces.ok()) return pieces.status();
  std::vector<Bytes> all;
  for (size_t pe = 0; pe < size_of.size(); ++pe) {
    const std::byte* piece = pieces.value().data() + pe * longest;
    all.emplace_back(piece, piece + size_of[pe]);
  }
  return all;
}

Status ShmemTransport::agree(const Status& mine) {
  const Result<std::vector<Bytes>> all = gather(encode_status(mine));
  if (!mine.ok()) return mine;
  if (!all.ok()) return all.status();
  for (int rank = 0; rank < n_ranks(); ++rank)
    if (const Status status = decode_status(all.value()[static_cast<size_t>(rank)]); !status.ok())
      return Status(status.code(), "rank " + std::to_string(rank) + ": " + status.message());
  return Status();
}

Result<std::vector<Bytes>> ShmemTransport::all_gather(std::span<const int> members, const Bytes& mine) {
  SWITCHYARD_RETURN_IF_ERROR(check_members_are_all(members));
  Result<std::vector<Bytes>> all = gather(mine);
  if (!all.ok()) return all.status();
  std::vector<Bytes> by_member;
  for (const int rank : members) by_member.push_back(std::move(all.value()[static_cast<size_t>(rank)]));
  return by_member;
}

Status ShmemTransport::barrier(std::span<const int> members) {
  SWITCHYARD_RETURN_IF_ERROR(check_members_are_all(members));
  if (!is_on_host()) return call_together("barrier", api().barrier);
  // A letter arrives behind everything that was put before it.
  return gather({}).status();
}

Result<std::byte*> ShmemTransport::allocate_symmetric(const std::vector<std::byte*>& released,
                                                      uint64_t bytes) {
  auto memory = std::make_shared<void*>(nullptr);
  SWITCHYARD_RETURN_IF_ERROR(call_together("allocate", [api = &api(), released, bytes, memory] {
    for (std::byte* old : released) api->release(old);
    *memory = api->allocate(bytes);
  }));
  if (*memory == nullptr) {
    const char* set = std::getenv(api().heap_variable);
    return Status(StatusCode::kResourceExhausted,
                  std::string(api().library) + " has no room for " + std::to_string(bytes) +
                      " bytes of symmetric memory per rank; " + api().heap_variable + " is " +
                      (set != nullptr ? set : "not set") + ": it must be larger");
  }
  return static_cast<std::byte*>(*memory);
}

Result<std::vector<std::byte*>> ShmemTransport::plan_allocation(uint64_t bytes, uint64_t host_visible_bytes) {
  ByteWriter writer;
  writer.number(bytes).number(host_visible_bytes);
  {
    std::lock_guard lock(mutex_);
    for (const auto& [number, allocation] : allocations_)
      if (allocation.is_released) writer.number(number);
  }
  const Result<std::vector<Bytes>> plans = gather(writer.take());
  if (!plans.ok()) return plans.status();
  std::map<uint64_t, int> num_released;
  for (int rank = 0; rank < n_ranks(); ++rank) {
    const Bytes& plan = plans.value()[static_cast<size_t>(rank)];
    ByteReader reader(plan);
    const auto their_bytes = reader.number<uint64_t>(), their_visible = reader.number<uint64_t>();
    if (their_bytes != bytes || their_visible != host_visible_bytes)
      return invalid_argument(
          "allocate: %llu and %llu host-visible bytes here, %llu and %llu at rank %d; they must be the same",
          static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(host_visible_bytes),
          static_cast<unsigned long long>(their_bytes), static_cast<unsigned long long>(their_visible), rank);
    while (!reader.is_at_end()) ++num_released[reader.number<uint64_t>()];
  }
  std::vector<std::byte*> released;
  std::lock_guard lock(mutex_);
  for (const auto& [number, count] : num_released)
    if (count == n_ranks()) {
      released.push_back(allocations_.at(number).memory);
      allocations_.erase(number);
    }
  return released;
}

Result<ShmemMemory::Addresses> ShmemTransport::addresses_of(std::byte* memory, uint64_t bytes,
                                                            uint64_t host_visible_bytes) {
  ShmemMemory::Addresses addresses;
  auto found = std::make_shared<std::vector<std::byte*>>();
  SWITCHYARD_RETURN_IF_ERROR(call_together("pointer_at", [api = &api(), memory, found, n = n_ranks()] {
    for (int pe = 0; pe < n; ++pe) found->push_back(static_cast<std::byte*>(api->pointer_at(memory, pe)));
  }));
  addresses.of_pe = *found;
  addresses.of_pe[static_cast<size_t>(process_.pe)] = memory;
  addresses.host_visible_of_pe.resize(addresses.of_pe.size());
  if (is_on_host()) {
    for (size_t pe = 0; pe < addresses.of_pe.size(); ++pe)
      if (addresses.of_pe[pe] != nullptr)
        addresses.host_visible_of_pe[pe] = addresses.of_pe[pe] + align_up(bytes);
    return addresses;
  }
  Result<DeviceMemory> visible =
      DeviceMemory::allocate_host_visible(device_, std::max<uint64_t>(host_visible_bytes, 1));
  if (!visible.ok()) return visible.status();
  addresses.host_visible = std::move(visible).value();
  addresses.host_visible_of_pe[static_cast<size_t>(process_.pe)] = addresses.host_visible.as<std::byte>();
  return addresses;
}

Status ShmemTransport::clear(std::byte* memory, uint64_t bytes) {
  if (is_on_host()) {
    std::memset(memory, 0, bytes);
    return Status();
  }
  const Result<StreamHandle> stream = device_.create_stream();
  if (!stream.ok()) return stream.status();
  Status status = device_.fill(memory, 0, bytes, stream.value());
  if (status.ok()) status = device_.synchronize(stream.value());
  device_.destroy_stream(stream.value());
  return status;
}

Result<std::unique_ptr<SymmetricMemory>> ShmemTransport::allocate(std::span<const int> members,
                                                                  uint64_t bytes,
                                                                  uint64_t host_visible_bytes) {
  SWITCHYARD_RETURN_IF_ERROR(check_members_are_all(members));
  const Result<std::vector<std::byte*>> released = plan_allocation(bytes, host_visible_bytes);
  if (!released.ok()) return released.status();
  const uint64_t all_bytes = align_up(bytes) + (is_on_host() ? align_up(host_visible_bytes) : 0);
  const Result<std::byte*> memory = allocate_symmetric(released.value(), std::max(all_bytes, kAlignment));
  // SHMEM has said the same to all PEs, or else all learn of it here.
  SWITCHYARD_RETURN_IF_ERROR(agree(memory.status()));
  Result<ShmemMemory::Addresses> addresses = addresses_of(memory.value(), bytes, host_visible_bytes);
  Status status = addresses.status();
  if (status.ok()) status = clear(memory.value(), std::max(all_bytes, kAlignment));
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = num_allocations_++;
    allocations_[number].memory = memory.value();
    allocations_[number].is_released = !status.ok();
  }
  // Nobody puts anything before all have cleared theirs.
  SWITCHYARD_RETURN_IF_ERROR(agree(status));
  return std::unique_ptr<SymmetricMemory>(std::make_unique<ShmemMemory>(
      std::move(addresses).value(), is_on_host() ? &engine_ : nullptr, [this, number] {
        std::lock_guard lock(mutex_);
        allocations_[number].is_released = true;
      }));
}

Status ShmemTransport::meet() {
  const uint64_t bytes = is_on_host() ? Mailbox::bytes(n_ranks()) : kAlignment;
  const Result<std::byte*> memory = allocate_symmetric({}, bytes);
  if (!memory.ok()) return memory.status();
  if (is_on_host()) {
    std::memset(memory.value(), 0, bytes);
    SWITCHYARD_RETURN_IF_ERROR(call_together("barrier", api().barrier));
    mailbox_.emplace(wire_, memory.value(), process_.pe, n_ranks());
  }
  SWITCHYARD_RETURN_IF_ERROR(compare_processes());
  const Result<ShmemMemory::Addresses> addresses = addresses_of(memory.value(), bytes, 0);
  SWITCHYARD_RETURN_IF_ERROR(agree(addresses.status()));
  Bytes reached;
  for (std::byte* address : addresses.value().of_pe) reached.push_back(std::byte{address != nullptr});
  Result<std::vector<Bytes>> all = gather(reached);
  if (!all.ok()) return all.status();
  reached_ = std::move(all).value();
  return Status();
}

Status ShmemTransport::compare_processes() {
  Hello mine = describe_this_process();
  mine.n_ranks = n_ranks();
  mine.first_rank = process_.pe;
  mine.num_ranks = 1;
  mine.target = device_.target();
  mine.device = device_.uuid();
  const Result<std::vector<Bytes>> hellos = gather(encode(mine));
  if (!hellos.ok()) return hellos.status();
  num_ranks_on_device_ = 0;
  for (const Bytes& bytes : hellos.value()) {
    const Result<Hello> hello = decode_hello(bytes);
    if (!hello.ok()) return hello.status();
    SWITCHYARD_RETURN_IF_ERROR(check_compatible(mine, hello.value()));
    const bool shares_device = !mine.device.empty() && hello.value().device == mine.device;
    if (hello.value().first_rank == process_.pe || shares_device) ++num_ranks_on_device_;
  }
  return Status();
}

}  // namespace

// What each process says: its rank, how many it takes them to be, and, of rank 0, the id or why there is
// none.
Result<ShmemId> agree_on_shmem_id(const ShmemApi& api, int rank, int n_ranks, const AllGather& all_gather) {
  if (api.make_id == nullptr)
    return invalid_argument("all_gather is given, but %s needs the processes of its launcher", api.library);
  ShmemId id{};
  ShmemError error{};
  const bool has_failed = rank == 0 && api.make_id(&id, &error) != 0;
  const auto* begin = reinterpret_cast<const std::byte*>(id.bytes);
  const Result<std::vector<Bytes>> all = all_gather(ByteWriter()
                                                        .number(static_cast<int32_t>(rank))
                                                        .number(static_cast<int32_t>(n_ranks))
                                                        .text(has_failed ? error.text : "")
                                                        .bytes(Bytes(begin, begin + sizeof(id.bytes)))
                                                        .take());
  if (!all.ok()) return all.status();
  if (static_cast<int>(all.value().size()) != n_ranks)
    return invalid_argument("all_gather gave the bytes of %zu processes; n_ranks is %d", all.value().size(),
                            n_ranks);
  std::vector<bool> is_there(static_cast<size_t>(n_ranks));
  for (const Bytes& bytes : all.value()) {
    ByteReader reader(bytes);
    const auto their_rank = reader.number<int32_t>(), their_n_ranks = reader.number<int32_t>();
    const std::string why = reader.text(sizeof(error.text));
    const Bytes their_id = reader.bytes(sizeof(id.bytes));
    if (!reader.is_at_end() || their_id.size() != sizeof(id.bytes))
      return invalid_argument("all_gather gave bytes that no process has said");
    if (their_n_ranks != n_ranks)
      return invalid_argument("n_ranks is %d here and %d at rank %d", n_ranks, their_n_ranks, their_rank);
    if (their_rank < 0 || their_rank >= n_ranks || is_there[static_cast<size_t>(their_rank)])
      return invalid_argument("two processes are rank %d", their_rank);
    is_there[static_cast<size_t>(their_rank)] = true;
    if (!why.empty()) return unavailable("rank 0: %s: %s", api.library, why.c_str());
    if (their_rank == 0) std::memcpy(id.bytes, their_id.data(), sizeof(id.bytes));
  }
  return id;
}

Result<ShmemProcess> start_shmem(const ShmemApi& api, const ShmemRequirements& requirements,
                                 uint64_t timeout_ns) {
  const Deadline deadline = Deadline::in_ns(timeout_ns);
  Result<std::unique_ptr<WireThread>> wire = WireThread::start(api, requirements, deadline);
  if (!wire.ok()) return wire.status();
  struct Answer {
    int pe = 0, n_pes = 0, gpu = -1;
  };
  auto answer = std::make_shared<Answer>();
  const auto ask = [&api, answer] {
    *answer = {api.my_pe(), api.n_pes(), api.gpu != nullptr ? api.gpu() : -1};
  };
  if (!wire.value()->call(ask, deadline))
    return Status(StatusCode::kDeadlineExceeded, std::string(api.library) + " did not answer in time");
  return ShmemProcess{&api, std::move(wire).value(), answer->pe, answer->n_pes, answer->gpu};
}

Result<std::unique_ptr<Transport>> join_shmem(ShmemProcess process, Device& device, uint64_t timeout_ns) {
  auto transport = std::make_unique<ShmemTransport>(std::move(process), device, timeout_ns);
  SWITCHYARD_RETURN_IF_ERROR(transport->meet());
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace switchyard
