// The device that was current before a scope is current after it, whatever happens in between.
#include "switchyard/detail/device/device_scope.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace switchyard {
namespace {

// Stands in for a machine with four GPUs.
int current = 0;
std::vector<int> were_set;

Status get_current(int& ordinal) {
  ordinal = current;
  return Status();
}
Status set_current(int ordinal) {
  if (ordinal < 0 || ordinal >= 4) return invalid_argument("there is no GPU %d", ordinal);
  were_set.push_back(current = ordinal);
  return Status();
}
Status get_nothing(int&) { return unavailable("no driver"); }

constexpr CurrentDeviceCalls kCalls = {&get_current, &set_current};

class DeviceScopeTest : public testing::Test {
 protected:
  void SetUp() override {
    current = 2;
    were_set.clear();
  }
};

TEST_F(DeviceScopeTest, TheCallersDeviceIsCurrentAgainAfterIt) {
  {
    const DeviceScope outer(kCalls, 1);
    ASSERT_TRUE(outer.status().ok());
    EXPECT_EQ(current, 1);
    {
      const DeviceScope inner(kCalls, 3);
      EXPECT_EQ(current, 3);
    }
    EXPECT_EQ(current, 1);
  }
  EXPECT_EQ(current, 2);
  EXPECT_EQ(were_set, (std::vector<int>{1, 3, 1, 2}));
}

TEST_F(DeviceScopeTest, ADeviceThatIsCurrentAlreadyIsNotSet) {
  { const DeviceScope scope(kCalls, 2); }
  EXPECT_TRUE(were_set.empty());
}

TEST_F(DeviceScopeTest, OnlyTheLastOwnerOfAScopeRestores) {
  {
    DeviceScope first(kCalls, 0);
    const DeviceScope second(std::move(first));
    EXPECT_EQ(current, 0);
  }
  EXPECT_EQ(were_set, (std::vector<int>{0, 2}));
}

TEST_F(DeviceScopeTest, AFailureIsSaidAndChangesNothing) {
  { EXPECT_EQ(DeviceScope(kCalls, 9).status().message(), "there is no GPU 9"); }
  { EXPECT_EQ(DeviceScope({&get_nothing, &set_current}, 1).status().message(), "no driver"); }
  EXPECT_EQ(current, 2);
  EXPECT_TRUE(were_set.empty());
}

}  // namespace
}  // namespace switchyard
