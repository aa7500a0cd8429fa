#include "fake_shmem.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "switchyard/version.hpp"

namespace switchyard::testing_support {
namespace {

constexpr uint64_t kAlignment = 256;

// What is under way from a PE.
struct InFlight {
  int pe;
  std::byte* dst;
  const std::byte* src;  // null: a signal
  uint64_t number;       // bytes, or the value
  uint64_t epoch;        // how many fences came before it
};

struct Pe {
  std::unique_ptr<std::byte[]> heap;
  uint64_t num_used = 0;
  uint64_t mailbox_end = 0;  // of what was allocated first
  uint64_t bytes_put_beside_mailbox = 0;
  // Of the wire thread of the PE.
  std::vector<InFlight> in_flight;
  uint64_t epoch = 0;
  std::mt19937 random;
};

thread_local int my_number = -1;

}  // namespace

struct FakeShmem::State {
  FakeShmemOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<Pe>> pes;
  int num_inside = 0, generation = 0;  // of the barrier
  int num_finalized = 0, num_abandoned = 0, num_released = 0;

  static State* current;

  Pe& mine() { return *pes[static_cast<size_t>(my_number)]; }
  std::byte* base_of(int pe) { return pes[static_cast<size_t>(pe)]->heap.get() + kAlignment; }
  std::byte* at(int pe, const void* symmetric) {
    return base_of(pe) + (static_cast<const std::byte*>(symmetric) - base_of(my_number));
  }

  // What is under way arrives while a PE waits for the others.
  void meet() {
    deliver_all();
    std::unique_lock lock(mutex);
    const int before = generation;
    if (++num_inside == options.n_pes) {
      num_inside = 0;
      ++generation;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return generation != before; });
  }

  void deliver(const InFlight& sent) {
    if (sent.src != nullptr)
      std::memcpy(sent.dst, sent.src, sent.number);
    else
      __atomic_store_n(reinterpret_cast<uint64_t*>(sent.dst), sent.number, __ATOMIC_RELEASE);
  }
  // Delivers one of those that no fence holds back, whichever the seed says.
  void deliver_one() {
    std::vector<InFlight>& all = mine().in_flight;
    // Without fences puts wait for a signal that comes before them.
    if (all.empty() || (!options.fence_orders && all.back().src != nullptr)) return;
    // Without fences the last comes first: a signal before what it should follow.
    const size_t chosen = options.fence_orders ? mine().random() % all.size() : all.size() - 1;
    const auto is_first = [&](size_t i) {
      return std::none_of(all.begin(), all.end(), [&](const InFlight& other) {
        return options.fence_orders && other.pe == all[i].pe && other.epoch < all[i].epoch;
      });
    };
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t candidate = (chosen + i) % all.size();
      if (!is_first(candidate)) continue;
      deliver(all[candidate]);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(candidate));
      return;
    }
  }
  void deliver_all() {
    while (!mine().in_flight.empty() && options.fence_orders) deliver_one();
    for (const InFlight& sent : mine().in_flight) deliver(sent);
    mine().in_flight.clear();
  }
};

FakeShmem::State* FakeShmem::State::current = nullptr;

namespace {

using State = FakeShmem::State;

constexpr char kId[] = "fake";
int make_id(ShmemId* id, ShmemError* error) {
  if (!State::current->options.makes_ids) {
    std::strcpy(error->text, "no id today");
    return 1;
  }
  std::memcpy(id->bytes, kId, sizeof(kId));
  return 0;
}

int init(const ShmemRequirements* requirements, ShmemError* error) {
  std::lock_guard lock(State::current->mutex);
  auto& pes = State::current->pes;
  my_number = 0;
  if (requirements->n_ranks != 0) {
    my_number = requirements->rank;
    if (std::memcmp(requirements->id.bytes, kId, sizeof(kId)) == 0 &&
        requirements->n_ranks == State::current->options.n_pes) {
      pes[static_cast<size_t>(my_number)]->num_used = kAlignment;
      return 0;
    }
    std::strcpy(error->text, "another id");
    return 1;
  }
  while (my_number < State::current->options.n_pes && pes[static_cast<size_t>(my_number)]->num_used != 0)
    ++my_number;
  if (my_number == State::current->options.n_pes) {
    std::strcpy(error->text, "all PEs are taken");
    return 1;
  }
  pes[static_cast<size_t>(my_number)]->num_used = kAlignment;
  return 0;
}
void finalize() {
  State::current->meet();
  std::lock_guard lock(State::current->mutex);
  ++State::current->num_finalized;
}
void abandon() {
  std::lock_guard lock(State::current->mutex);
  ++State::current->num_abandoned;
}
int my_pe() { return my_number; }
int n_pes() { return State::current->options.n_pes; }

void* allocate(uint64_t bytes) {
  State::current->meet();
  Pe& pe = State::current->mine();
  const uint64_t begin = pe.num_used, end = begin + (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (end > State::current->options.heap_bytes) return nullptr;
  pe.num_used = end;
  if (pe.mailbox_end == 0) pe.mailbox_end = end;
  return State::current->base_of(my_number) + begin;
}
void release(void*) {
  State::current->meet();
  std::lock_guard lock(State::current->mutex);
  ++State::current->num_released;
}
void* pointer_at(const void* address, int pe) {
  const int group = State::current->options.group;
  return my_number / group == pe / group ? State::current->at(pe, address) : nullptr;
}
void put(void* dst, const void* src, uint64_t bytes, int pe) {
  Pe& mine = State::current->mine();
  if (static_cast<std::byte*>(dst) >= State::current->base_of(my_number) + mine.mailbox_end)
    mine.bytes_put_beside_mailbox += bytes;
  mine.in_flight.push_back(
      {pe, State::current->at(pe, dst), static_cast<const std::byte*>(src), bytes, mine.epoch});
}
void fence() { ++State::current->mine().epoch; }
void signal(uint64_t* cell, uint64_t value, int pe) {
  Pe& mine = State::current->mine();
  mine.in_flight.push_back({pe, State::current->at(pe, cell), nullptr, value, mine.epoch});
}
void quiet() { State::current->deliver_all(); }
void progress() {
  // Now and then a few; a signal that waits for its puts is seen late.
  for (uint32_t i = State::current->mine().random() % 4; i > 0; --i) State::current->deliver_one();
}
void barrier() { State::current->meet(); }

const ShmemApi kApi = {.size = sizeof(ShmemApi),
                       .version = kVersion,
                       .library = "the fake SHMEM",
                       .heap_variable = "FAKE_HEAP_SIZE",
                       .target = kShmemHost,
                       .make_id = make_id,
                       .init = init,
                       .finalize = finalize,
                       .abandon = abandon,
                       .my_pe = my_pe,
                       .n_pes = n_pes,
                       .gpu = nullptr,
                       .allocate = allocate,
                       .release = release,
                       .pointer_at = pointer_at,
                       .put = put,
                       .fence = fence,
                       .signal = signal,
                       .quiet = quiet,
                       .progress = progress,
                       .barrier = barrier,
                       .all_gather = nullptr,
                       .kernels = nullptr};

}  // namespace

FakeShmem::FakeShmem(const FakeShmemOptions& options) : state_(new State) {
  state_->options = options;
  for (int i = 0; i < options.n_pes; ++i) {
    auto pe = std::make_unique<Pe>();
    pe->heap = std::make_unique<std::byte[]>(options.heap_bytes + 2 * kAlignment);
    pe->random.seed(options.seed * 1000 + static_cast<uint32_t>(i));
    state_->pes.push_back(std::move(pe));
  }
  State::current = state_;
}

FakeShmem::~FakeShmem() {
  State::current = nullptr;
  delete state_;
}

const ShmemApi& FakeShmem::api() const { return kApi; }
int FakeShmem::num_finalized() const {
  std::lock_guard lock(state_->mutex);
  return state_->num_finalized;
}
int FakeShmem::num_abandoned() const {
  std::lock_guard lock(state_->mutex);
  return state_->num_abandoned;
}
int FakeShmem::num_released() const {
  std::lock_guard lock(state_->mutex);
  return state_->num_released;
}
uint64_t FakeShmem::bytes_put_beside_mailbox(int pe) const {
  return state_->pes[static_cast<size_t>(pe)]->bytes_put_beside_mailbox;
}

void in_threads(int count, const std::function<void(int i)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace switchyard::testing_support
