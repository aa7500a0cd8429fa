// Expert rows in the caller's memory that ranks of other processes read where they are. Memory that was
// shared before the processes were made stands for what CUDA can open: it has the same address in each.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "ep/ep_harness.hpp"
#include "processes.hpp"
#include "runtime/ep/lent_rows.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"

namespace switchyard {
namespace {

using testing_support::must;
using testing_support::Processes;

constexpr int kRanks = 2, kHidden = 64, kNumBlocks = 12;

// The allocations of all ranks, and how often others have closed them.
struct SharedBlocks {
  static constexpr int kElements = kRanks * kHidden;  // a row from each rank
  bf16 elements[kRanks * kNumBlocks * kElements];
  std::atomic<int> num_closed[kRanks * kNumBlocks];

  bf16* at(int rank, int block) { return elements + (rank * kNumBlocks + block) * kElements; }
  int number_of(const void* memory) const {
    return static_cast<int>(static_cast<const bf16*>(memory) - elements) / kElements;
  }
  int num_closed_of(int rank, int block) const { return num_closed[rank * kNumBlocks + block]; }
};
SharedBlocks* blocks = nullptr;

class BlockOpener : public MemoryOpener {
 public:
  Result<Allocation> allocation_of(const void* memory) const override {
    const int number = blocks->number_of(memory);
    return Allocation{static_cast<uint64_t>(number) + 1,
                      reinterpret_cast<const std::byte*>(blocks->at(0, number))};
  }
  Result<MemoryTicket> export_allocation(const Allocation& allocation) const override {
    return MemoryTicket{reinterpret_cast<uintptr_t>(allocation.begin)};
  }
  Result<std::unique_ptr<SharedMapping>> open_allocation(const MemoryTicket& ticket) override {
    return std::unique_ptr<SharedMapping>(std::make_unique<Mapping>(ticket[0]));
  }

 private:
  struct Mapping : SharedMapping {
    explicit Mapping(uintptr_t address) : at(address) {}
    ~Mapping() override { ++blocks->num_closed[blocks->number_of(data())]; }
    void* data() const override { return reinterpret_cast<void*>(at); }
    uintptr_t at;
  };
};

class LentRowsOfProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    void* memory =
        mmap(nullptr, sizeof(SharedBlocks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    blocks = static_cast<SharedBlocks*>(memory);
  }
  void TearDown() override { munmap(blocks, sizeof(SharedBlocks)); }
};

// A rank that sends its one token to an expert of each rank.
class LendingRank {
 public:
  LendingRank(int rank, const std::string& address)
      : rank_(rank), world_([&] {
          JoinOptions options = testing_support::join_options(rank, kRanks, address);
          options.host.hooks = &hooks_;
          return testing_support::join(options);
        }()) {
    const Rank& here = world_->rank(rank);
    ep_ = must(ExpertParallel::create(*world_, {.n_experts = kRanks,
                                                .top_k = kRanks,
                                                .hidden = kHidden,
                                                .max_tokens_per_rank = 1,
                                                .protocol = Protocol::kDirect}));
    tokens_ = must(here.allocate<bf16>(kHidden));
    output_ = must(here.allocate<bf16>(kHidden));
    ids_ = must(here.upload(std::vector<int32_t>{0, 1}));
    weights_ = must(here.upload(std::vector<float>{1, 1}));
    offsets_ = must(here.allocate<uint32_t>(2));
    counts_ = must(here.allocate<uint32_t>(1));
    expert_ids_ = must(here.allocate<int32_t>(1));
  }

  World& world() { return *world_; }
  // A step whose expert makes `value` of every row, in a block of the rank's: whether peers read it there.
  bool run(int block, float value) {
    check(dispatch());
    check(ep_->synchronize());  // nobody reads what the last step has lent
    fill(block, value);
    const bool is_lent = offer(block);
    const bf16* rows = blocks->at(rank_, block);
    if (!is_lent)
      check(ep_->store_expert_rows(
          rank_,
          {.rows = rows, .num_rows = kRanks, .row_offsets = offsets_.data(), .row_counts = counts_.data()}));
    check(combine(is_lent ? rows : nullptr));
    check(ep_->synchronize());
    return is_lent;
  }
  void fill(int block, float value) {
    std::fill_n(blocks->at(rank_, block), SharedBlocks::kElements,
                to_bf16(value * static_cast<float>(rank_ + 1)));
  }
  Status dispatch() {
    return ep_->dispatch(
        rank_, {tokens_.data(), ids_.data(), 1},
        {.row_offsets = offsets_.data(), .expert_ids = expert_ids_.data(), .row_counts = counts_.data()});
  }
  bool offer(int block) { return must(ep_->offer_expert_rows(rank_, blocks->at(rank_, block))); }
  Status combine(const bf16* rows) {
    return ep_->combine(rank_, {.expert_rows = rows},
                        {ids_.data(), weights_.data(), 1, {.output = output_.data()}});
  }
  Status synchronize() { return ep_->synchronize(); }
  // The sum over the ranks' experts.
  bool has_output(float value) const { return to_float(must(output_.download())[kHidden - 1]) == 3 * value; }

 private:
  static void check(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.to_string());
  }

  const TestHooks hooks_{.make_memory_opener = []() -> std::unique_ptr<MemoryOpener> {
    return std::make_unique<BlockOpener>();
  }};
  const int rank_;
  std::unique_ptr<World> world_;
  std::unique_ptr<ExpertParallel> ep_;
  Buffer<bf16> tokens_, output_;
  Buffer<int32_t> ids_, expert_ids_;
  Buffer<float> weights_;
  Buffer<uint32_t> offsets_, counts_;
};

void run_ranks(const std::function<std::string(int rank, LendingRank& lender)>& run_rank) {
  Processes processes;
  const std::string address = testing_support::unique_address();
  for (int rank = 0; rank < kRanks; ++rank)
    processes.start([&, rank] {
      LendingRank lender(rank, address);
      return run_rank(rank, lender);
    });
  EXPECT_EQ(processes.reports(), std::vector<std::string>(kRanks));
}

TEST_F(LentRowsOfProcesses, AreReadWhereTheyAreOnceAllHaveOpenedThem) {
  run_ranks([](int, LendingRank& lender) -> std::string {
    for (int step = 0; step < 6; ++step) {
      const float value = static_cast<float>(step + 1);
      const bool is_lent = lender.run(/*block=*/0, value);
      if (step >= 2 && !is_lent) return "step " + std::to_string(step) + ": the rows were copied";
      if (!lender.has_output(value)) return "step " + std::to_string(step) + ": other rows";
    }
    return "";
  });
}

// The offer comes first and is not recorded; what the recorded combine reads stays open all the same.
TEST_F(LentRowsOfProcesses, StayOpenWhileAGraphReadsThem) {
  run_ranks([](int rank, LendingRank& lender) -> std::string {
    for (int step = 0; step < 3; ++step) lender.run(0, 1);
    if (const Status status = lender.dispatch(); !status.ok()) return status.to_string();
    if (const Status status = lender.synchronize(); !status.ok()) return status.to_string();
    if (!lender.offer(0)) return "the rows of the graph have to be copied";
    auto graph = lender.world().capture([&]() -> Status {
      SWITCHYARD_RETURN_IF_ERROR(lender.combine(blocks->at(rank, 0)));
      return lender.dispatch();
    });
    if (!graph.ok()) return graph.status().to_string();
    const auto replay = [&](float value) -> std::string {
      lender.fill(0, value);
      if (const Status status = graph.value()->launch(); !status.ok()) return status.to_string();
      if (const Status status = graph.value()->synchronize(); !status.ok()) return status.to_string();
      return lender.has_output(value) ? "" : "the graph has read other rows";
    };
    if (const std::string wrong = replay(5); !wrong.empty()) return wrong;
    if (const Status status = lender.combine(nullptr); !status.ok()) return status.to_string();
    if (const Status status = lender.synchronize(); !status.ok()) return status.to_string();
    // There are more allocations than slots: each takes that of the one that was used longest ago.
    for (int block = 1; block < kNumBlocks; ++block)
      for (uint64_t i = 0; i <= LentRows::kIdleCalls; ++i) {
        lender.run(block, 2);
        if (!lender.has_output(2)) return "block " + std::to_string(block) + ": other rows";
      }
    int num_closed = 0;
    for (int block = 1; block < kNumBlocks; ++block) num_closed += blocks->num_closed_of(rank, block);
    const int num_closed_of_graph = blocks->num_closed_of(rank, 0);
    (void)lender.world().all_gather({});  // who ends closes all
    if (num_closed == 0) return "no slot was used again";
    return num_closed_of_graph == 0 ? "" : "the graph's allocation was closed";
  });
}

}  // namespace
}  // namespace switchyard
