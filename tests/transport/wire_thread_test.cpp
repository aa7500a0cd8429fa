// The wire thread and the mailbox, over a SHMEM whose PEs are threads: the order of the queue, and agreements
// with a deadline.
#include "transport/shmem/wire_thread.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "fake_shmem.hpp"
#include "transport/shmem/mailbox.hpp"

namespace switchyard {
namespace {

using testing_support::FakeShmem;
using testing_support::in_threads;

constexpr uint64_t kPatienceMs = 20'000;

// A PE, with memory of its own that all others have, too.
struct Pe {
  explicit Pe(const FakeShmem& shmem)
      : wire(WireThread::start(shmem.api(), {.size = sizeof(ShmemRequirements), .gpu = -1},
                               Deadline::in_ms(kPatienceMs))
                 .value()) {
    const bool is_done = wire->call(
        [&] {
          number = shmem.api().my_pe();
          memory = static_cast<std::byte*>(shmem.api().allocate(1 << 16));
          shmem.api().barrier();
        },
        Deadline::in_ms(kPatienceMs));
    EXPECT_TRUE(is_done);
  }

  std::unique_ptr<WireThread> wire;
  int number = -1;
  std::byte* memory = nullptr;
};

// PE 0 puts words in several threads, settles them behind a barrier in one, and signals; the number of words
// that have not come to PE 1 with the signal.
int count_missing_words(const FakeShmem& shmem, int num_rounds) {
  constexpr int kWriters = 3, kWords = 64;
  int num_missing = 0;
  in_threads(2, [&](int) {
    Pe pe(shmem);
    auto* cells = reinterpret_cast<uint64_t*>(pe.memory);  // the signal, and its answer
    auto* arrived = cells + 16;
    auto* sources = arrived + kWords;
    for (uint64_t round = 1; round <= static_cast<uint64_t>(num_rounds); ++round) {
      if (pe.number == 0) {
        in_threads(kWriters, [&](int writer) {
          for (int i = writer; i < kWords; i += kWriters) {
            sources[i] = round;
            pe.wire->put(1, arrived + i, sources + i, sizeof(uint64_t));
          }
        });
        pe.wire->settle();
        pe.wire->signal(1, cells, round);
        while (__atomic_load_n(cells + 1, __ATOMIC_ACQUIRE) != round) std::this_thread::yield();
      } else {
        while (__atomic_load_n(cells, __ATOMIC_ACQUIRE) != round) std::this_thread::yield();
        for (int i = 0; i < kWords; ++i)
          num_missing += __atomic_load_n(arrived + i, __ATOMIC_RELAXED) != round;
        pe.wire->signal(0, cells + 1, round);
      }
    }
    EXPECT_TRUE(pe.wire->end_shmem(Deadline::in_ms(kPatienceMs)));
  });
  return num_missing;
}

TEST(WireThread, WhatAnyThreadPutBeforeASettleArrivesBeforeALaterSignal) {
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    const FakeShmem shmem({.seed = seed});
    EXPECT_EQ(count_missing_words(shmem, 10), 0) << seed;
  }
}

TEST(WireThread, TheTestSeesAFenceThatDoesNotOrder) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer sees it first";
#endif
  const FakeShmem shmem({.fence_orders = false});
  EXPECT_GT(count_missing_words(shmem, 20), 0);
}

TEST(Mailbox, GathersMessagesOfAnyLength) {
  constexpr int kPes = 3;
  const FakeShmem shmem({.n_pes = kPes});
  in_threads(kPes, [&](int) {
    Pe pe(shmem);
    Mailbox box(*pe.wire, pe.memory, pe.number, kPes);
    for (const size_t longest : {size_t{0}, size_t{7}, size_t{2032}, size_t{2033}, size_t{9000}}) {
      const auto message_of = [&](int number) {
        return Bytes(number == 1 ? longest : longest / 2, static_cast<std::byte>(number + 1));
      };
      const Result<std::vector<Bytes>> all =
          box.all_gather(message_of(pe.number), Deadline::in_ms(kPatienceMs));
      ASSERT_TRUE(all.ok()) << all.status().message();
      for (int other = 0; other < kPes; ++other)
        EXPECT_EQ(all.value()[static_cast<size_t>(other)], message_of(other)) << longest;
    }
    box.leave(/*in_order=*/true, "");
    EXPECT_TRUE(box.wait_until_all_have_left(Deadline::in_ms(kPatienceMs)));
    EXPECT_TRUE(pe.wire->end_shmem(Deadline::in_ms(kPatienceMs)));
  });
}

TEST(Mailbox, WhoDoesNotAnswerIsNamedByTheDeadlineAndWhoLeavesAtOnce) {
  constexpr int kPes = 3;
  const FakeShmem shmem({.n_pes = kPes});
  std::string said[kPes], said_next[kPes];
  in_threads(kPes, [&](int) {
    Pe pe(shmem);
    Mailbox box(*pe.wire, pe.memory, pe.number, kPes);
    const auto at = static_cast<size_t>(pe.number);
    if (pe.number == 2) return (void)box.wait_until_all_have_left(Deadline::in_ms(5'000));
    // The first to give up tells the other.
    const auto begin = Deadline::Clock::now();
    said[at] = box.all_gather({}, Deadline::in_ms(pe.number == 0 ? 100 : 20'000)).status().message();
    EXPECT_TRUE(pe.wire->call(shmem.api().quiet, Deadline::in_ms(kPatienceMs)));  // the farewell is out
    said_next[at] = box.all_gather({}, Deadline::in_ms(kPatienceMs)).status().message();
    EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(4));
    EXPECT_FALSE(box.wait_until_all_have_left(Deadline::in_ms(kPatienceMs)));
  });
  EXPECT_EQ(said[0], "rank 2 did not answer in time");
  EXPECT_EQ(said_next[0], said[0]);
  EXPECT_TRUE(said[1] == "rank 0 has left: rank 2 did not answer in time" || said[1] == said[0]) << said[1];
}

}  // namespace
}  // namespace switchyard
