// The transport of a world in one process: memory of every rank, agreements with oneself, and what World says
// of its ranks.
#include "transport/local_transport.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <stdexcept>

#include "runtime/world_impl.hpp"

namespace switchyard {
namespace {

TEST(LocalTransport, GivesEveryMemberZeroedMemoryOfItsOwn) {
  const auto device = create_host_device({});
  const auto transport = create_local_transport({device.get(), device.get(), device.get()});
  const std::vector<int> members = {0, 2};
  const auto memory = transport->allocate(members, 1000, 10).value();
  EXPECT_EQ(memory->of_rank(1), nullptr);
  EXPECT_EQ(memory->host_visible_of_rank(1), nullptr);
  ASSERT_NE(memory->of_rank(0), memory->of_rank(2));
  for (const int rank : members) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->of_rank(rank)) % 256, 0u);
    EXPECT_EQ(std::accumulate(memory->of_rank(rank), memory->of_rank(rank) + 1000, 0,
                              [](int sum, std::byte value) { return sum + std::to_integer<int>(value); }),
              0);
    memory->host_visible_of_rank(rank)[9] = std::byte{1};
  }
  EXPECT_TRUE(transport->allocate(members, 0, 0).ok());
}

TEST(LocalTransport, AgreesWithItself) {
  const auto device = create_host_device({});
  const auto transport = create_local_transport({device.get(), device.get()});
  const std::vector<int> members = {1, 0}, strange = {0, 2}, twice = {1, 1};
  const Bytes mine = {std::byte{7}};
  EXPECT_EQ(transport->all_gather(members, mine).value(), (std::vector<Bytes>{mine, mine}));
  EXPECT_TRUE(transport->barrier(members).ok());
  EXPECT_EQ(transport->barrier(strange).message(), "member 2; it must be 0..1");
  EXPECT_EQ(transport->barrier(twice).message(), "member 1 is given twice");
  EXPECT_EQ(transport->barrier({}).message(), "none of 0 members is a rank of this process");
  EXPECT_TRUE(transport->dead_ranks().empty());
}

TEST(WorldOfOneProcess, HasOnlyLocalRanks) {
  const auto world = World::create({.target = TargetChoice::kHost, .n_ranks = 3}).value();
  EXPECT_EQ(world->local_ranks(), (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(world->is_local(2));
  EXPECT_FALSE(world->is_local(3));
  EXPECT_STREQ(world->transport_name(), "local");
  EXPECT_EQ(world->num_ranks_on_device_of(1), 3);
  EXPECT_THROW(world->rank(3), std::out_of_range);
}

TEST(WorldOfOneProcess, HasUpTo512Ranks) {
  EXPECT_EQ(World::create({.target = TargetChoice::kHost, .n_ranks = 512}).value()->n_ranks(), 512);
  EXPECT_EQ(World::create({.target = TargetChoice::kHost, .n_ranks = 513}).status().message(),
            "n_ranks is 513; it must be 1..512");
}

}  // namespace
}  // namespace switchyard
