// Memory files: what one process maps is what another one wrote, and a file whose size could change under a
// mapping is refused.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "switchyard/detail/device/shared_memory.hpp"

namespace switchyard {
namespace {

TEST(MemoryFile, IsTheSameMemoryInEveryMapping) {
  const SharedMemory memory = create_memory_file(5000).value();
  const auto mapping = map_memory_file(memory.file, 5000).value();
  ASSERT_NE(mapping->data(), memory.mapping->data());
  EXPECT_EQ(static_cast<char*>(mapping->data())[4999], 0);
  static_cast<char*>(mapping->data())[4999] = 7;
  EXPECT_EQ(static_cast<char*>(memory.mapping->data())[4999], 7);
  EXPECT_TRUE(map_memory_file(create_memory_file(0).value().file, 0).ok());
}

TEST(MemoryFile, KeepsItsSize) {
  const SharedMemory memory = create_memory_file(5000).value();
  EXPECT_NE(ftruncate(memory.file.number(), 10), 0);
  EXPECT_NE(ftruncate(memory.file.number(), 10'000), 0);
}

TEST(MemoryFile, OfAnotherSizeOrWithoutSealsIsRefused) {
  const SharedMemory memory = create_memory_file(5000).value();
  EXPECT_EQ(map_memory_file(memory.file, 5001).status().code(), StatusCode::kInvalidArgument);
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.number(), 5000), 0);
  EXPECT_EQ(map_memory_file(unsealed, 5000).status().message(),
            "a memory file has 5000 bytes and seals 0; it must have 5000 bytes, sealed");
  const FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(map_memory_file(null, 5000).ok());
}

TEST(MemoryFile, TooLargeForTheMachineIsAnError) {
  EXPECT_EQ(create_memory_file(uint64_t{1} << 62).status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace switchyard
