// Offers of memory between processes, with processes that are objects here.
#include "runtime/ep/lent_rows.hpp"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

struct Process {
  uint64_t generation = 1;
  bool cannot_export = false, cannot_open = false, is_of_a_pool = false;
  int num_open = 0, num_exports = 0;
};

// Of a process that has allocations of 1,000 bytes, and maps those of others 10,000 bytes behind their place.
class FakeOpener : public MemoryOpener {
 public:
  explicit FakeOpener(Process& process) : process_(process) {}

  bool is_open_to_other_devices(const void*) const override { return !process_.is_of_a_pool; }
  Result<Allocation> allocation_of(const void* memory) const override {
    const auto at = reinterpret_cast<uintptr_t>(memory);
    return Allocation{process_.generation * 1'000 + at / 1'000,
                      reinterpret_cast<const std::byte*>(at / 1'000 * 1'000)};
  }
  Result<MemoryTicket> export_allocation(const Allocation& allocation) const override {
    ++process_.num_exports;
    if (process_.cannot_export) return unavailable("a pool");
    return MemoryTicket{reinterpret_cast<uintptr_t>(allocation.begin)};
  }
  Result<std::unique_ptr<SharedMapping>> open_allocation(const MemoryTicket& ticket) override {
    if (process_.cannot_open) return unavailable("full");
    return std::unique_ptr<SharedMapping>(std::make_unique<Mapping>(process_.num_open, ticket[0] + 10'000));
  }

 private:
  struct Mapping : SharedMapping {
    Mapping(int& count, uintptr_t address) : num_open(count), at(address) { ++num_open; }
    ~Mapping() override { --num_open; }
    void* data() const override { return reinterpret_cast<void*>(at); }
    int& num_open;
    uintptr_t at;
  };

  Process& process_;
};

class LentRowsTest : public ::testing::Test {
 protected:
  using Addresses = std::vector<const std::byte*>;

  // In a step of its own, unless others of the flight are to be under way.
  std::optional<LentRows::Found> lend(uintptr_t rows, int flight_idx = 0) {
    return lenders[0]->find(reinterpret_cast<const void*>(rows), ranks, flight_idx, [&] {
      ++num_waits;
      return Status();
    });
  }
  std::optional<Addresses> find(uintptr_t rows) {
    lenders[0]->begin_step(0);
    const std::optional<LentRows::Found> found = lend(rows);
    return found ? std::optional(found->address_of_reader) : std::nullopt;
  }
  void answer() {
    for (const auto& lender : lenders) lender->answer();
  }
  std::optional<Addresses> find_answered(uintptr_t rows) {
    (void)find(rows);
    answer();
    return find(rows);
  }
  // All slots have been lent once, and none for a while.
  void lend_all_slots() {
    for (uintptr_t i = 1; i <= LentMemory::kSlots; ++i) ASSERT_TRUE(find_answered(i * 1'000));
  }
  void let_others_be_idle(uintptr_t used) {
    for (uint64_t i = 0; i <= LentRows::kIdleCalls; ++i) ASSERT_TRUE(find(used));
  }
  static Addresses at(uintptr_t here, uintptr_t there) {
    const auto pointer = [](uintptr_t address) { return reinterpret_cast<const std::byte*>(address); };
    return {pointer(here), pointer(there), pointer(there)};
  }

  std::vector<int> ranks{0, 1, 2};
  std::vector<LentMemory> memory{3};
  Process processes[3];
  std::vector<std::unique_ptr<LentRows>> lenders = [&] {
    std::vector<std::unique_ptr<LentRows>> made;
    for (int rank = 0; rank < 3; ++rank)
      made.push_back(
          std::make_unique<LentRows>(std::make_unique<FakeOpener>(processes[rank]), Lender{rank, 2, false},
                                     std::vector<LentMemory*>{&memory[0], &memory[1], &memory[2]}));
    return made;
  }();
  int num_waits = 0;
};

TEST_F(LentRowsTest, RowsAreFoundOnceAllHaveAnswered) {
  EXPECT_EQ(find(1'010), std::nullopt);
  lenders[1]->answer();
  EXPECT_EQ(find(1'010), std::nullopt);
  lenders[2]->answer();
  EXPECT_EQ(find(1'010), at(1'010, 11'010));
  EXPECT_EQ(find(1'990), at(1'990, 11'990));  // the same allocation
  EXPECT_EQ(processes[1].num_open, 1);
}

TEST_F(LentRowsTest, MemoryAtTheSamePlaceIsAnotherAllocation) {
  ASSERT_TRUE(find_answered(1'000));
  processes[0].generation = 2;  // freed, and allocated again
  EXPECT_EQ(find(1'000), std::nullopt);
  answer();
  EXPECT_EQ(find(1'000), at(1'000, 11'000));
  EXPECT_EQ(processes[1].num_open, 2);
}

TEST_F(LentRowsTest, RanksThatAreHereNeedNotAnswer) {
  LentRows local(std::make_unique<FakeOpener>(processes[0]), Lender{0, 1, false},
                 {&memory[0], nullptr, nullptr});
  const auto found = local.find(reinterpret_cast<const void*>(1'000), ranks, 0, [] { return Status(); });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->address_of_reader, at(1'000, 1'000));
  EXPECT_EQ(found->slot, LentRows::kNoSlot);
}

TEST_F(LentRowsTest, RanksOnOtherDevicesOfTheProcessReadWhatIsOpenToThem) {
  LentRows local(std::make_unique<FakeOpener>(processes[0]), Lender{0, 1, true},
                 {&memory[0], nullptr, nullptr});
  const auto find_here = [&] {
    return local.find(reinterpret_cast<const void*>(1'000), ranks, 0, [] { return Status(); });
  };
  EXPECT_TRUE(find_here());
  processes[0].is_of_a_pool = true;
  EXPECT_FALSE(find_here());
}

TEST_F(LentRowsTest, WhatCannotBeExportedOrOpenedIsCopied) {
  processes[0].cannot_export = true;
  for (int i = 0; i < 4; ++i)
    for (const uintptr_t rows : {1'000u, 3'000u}) EXPECT_EQ(find_answered(rows), std::nullopt);
  EXPECT_EQ(processes[0].num_exports, 2);  // each is tried once
  processes[0].cannot_export = false;
  processes[2].cannot_open = true;
  EXPECT_EQ(find_answered(2'000), std::nullopt);
}

TEST_F(LentRowsTest, ASlotIsOfferedAnewWhenItHasBeenIdle) {
  lend_all_slots();
  EXPECT_EQ(find_answered(9'000), std::nullopt);  // all are in use
  let_others_be_idle(2'000);
  EXPECT_EQ(num_waits, 0);
  processes[0].cannot_export = true;
  EXPECT_EQ(find_answered(20'000), std::nullopt);
  processes[0].cannot_export = false;
  EXPECT_EQ(num_waits, 0);  // what cannot be lent costs no wait
  EXPECT_EQ(find_answered(9'000), at(9'000, 19'000));
  EXPECT_EQ(num_waits, 1);  // nobody reads what is closed
  EXPECT_EQ(processes[1].num_open, LentMemory::kSlots);
  EXPECT_TRUE(find(2'000));
  EXPECT_EQ(find(1'000), std::nullopt);  // it was the oldest
}

TEST_F(LentRowsTest, WhatAGraphReadsIsKept) {
  lend_all_slots();
  for (int slot = 0; slot < LentMemory::kSlots; ++slot) lenders[0]->keep(slot);
  for (uint64_t i = 0; i < 2 * LentRows::kIdleCalls; ++i) EXPECT_EQ(find(9'000), std::nullopt);
  for (uintptr_t i = 1; i <= LentMemory::kSlots; ++i) EXPECT_TRUE(find(i * 1'000));
}

// The rank's own combine ends before those of its peers.
TEST_F(LentRowsTest, WhatAFlightHasLentIsReadUntilItsNextDispatch) {
  lend_all_slots();
  lenders[0]->begin_step(1);
  ASSERT_TRUE(lend(1'000, /*flight_idx=*/1));
  for (uintptr_t i = 3; i <= LentMemory::kSlots; ++i) lenders[0]->keep(static_cast<int>(i) - 1);
  let_others_be_idle(2'000);
  EXPECT_EQ(find_answered(9'000), std::nullopt);
  lenders[0]->begin_step(1);
  EXPECT_EQ(find_answered(9'000), at(9'000, 19'000));
}

TEST_F(LentRowsTest, BehindARestartNobodyReadsAndTheDeadLendNothing) {
  lend_all_slots();
  lenders[0]->begin_step(1);
  ASSERT_TRUE(lend(1'000, /*flight_idx=*/1));
  let_others_be_idle(2'000);
  ranks = {0, 1};
  for (const auto& lender : lenders) lender->restart(ranks);
  const std::optional<Addresses> found = find_answered(9'000);
  ASSERT_TRUE(found);
  EXPECT_EQ((*found)[1], at(9'000, 19'000)[1]);
  EXPECT_EQ(processes[1].num_open, LentMemory::kSlots);
  lenders[1]->restart(std::vector<int>{1});
  EXPECT_EQ(processes[1].num_open, 0);
  lenders[1]->answer();
  EXPECT_EQ(processes[1].num_open, 0);
}

}  // namespace
}  // namespace switchyard
