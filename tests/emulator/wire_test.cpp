// The words of the wire on the ranks of one process, in fast mode.
#include <gtest/gtest.h>

#include <string>

#include "wire_exchange.hpp"

namespace switchyard {
namespace {

using emulator::LocalWire;
using emulator::Machine;
using testing_support::WireExchange;

TEST(Wire, RowsAreThereWhenTheSignalIs) {
  WireExchange exchange;
  Machine machine;
  EXPECT_EQ(exchange.run(machine, /*num_steps=*/8), "");
}

// What a single put, or the signal behind it, is refused for.
struct Attempt {
  Wire wire;
  int peer;
  std::byte* dst;
  std::byte* src;
  uint64_t bytes;
  uint64_t* cell;
};

std::string message_of(int peer, int64_t dst, int64_t src, uint64_t bytes, int64_t cell) {
  alignas(16) static std::byte memory[2][256];
  LocalWire wire({{memory[0], sizeof(memory[0])}, {memory[1], sizeof(memory[1])}});
  Machine machine;
  emulator::Stream* stream = machine.create_stream();
  auto kernel = +[](Attempt attempt) {
    if (target::thread_idx() != 0) return;
    target::wire_put(attempt.wire, attempt.peer, attempt.dst, attempt.src, attempt.bytes);
    target::wire_signal(attempt.wire, attempt.peer, attempt.cell, 1);
  };
  const Attempt attempt{wire.of_rank(0), peer,  memory[0] + dst,
                        memory[0] + src, bytes, reinterpret_cast<uint64_t*>(memory[0] + cell)};
  EXPECT_TRUE(target::launch("attempt", kernel, {}, stream, attempt).ok());
  return machine.synchronize().message();
}

TEST(Wire, WhatLiesOutsideAnArenaIsRefusedWithArgumentAndLimit) {
  EXPECT_EQ(message_of(1, 0, 128, 128, 248), "");
  EXPECT_EQ(message_of(1, 3, 129, 7, 248), "");  // any size and alignment
  const auto has = [](const std::string& message, const std::string& part) {
    return message.find(part) != std::string::npos && message.find("wire_test.cpp:") != std::string::npos;
  };
  EXPECT_TRUE(has(message_of(2, 0, 0, 4, 0), "peer is 2, but must be 0..1"));
  EXPECT_TRUE(has(message_of(1, 192, 0, 68, 0), "dst is 192 bytes behind the beginning of rank 0's arena"));
  EXPECT_TRUE(has(message_of(1, 192, 0, 68, 0), "for 68 bytes; it must lie in the arena's 256 bytes"));
  EXPECT_TRUE(has(message_of(1, 0, -4, 4, 0), "src is -4 bytes behind"));
  EXPECT_TRUE(has(message_of(1, 0, 0, 4, 256), "cell is 256 bytes behind"));
  EXPECT_TRUE(has(message_of(1, 0, 0, 4, 4), "be a multiple of 8"));
}

}  // namespace
}  // namespace switchyard
