// Runs work on all cores of this machine.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <future>
#include <system_error>
#include <thread>
#include <vector>

namespace switchyard::reference {

// Calls `work()` on every core, the calling thread included, or on fewer if the system refuses more threads.
// `work` takes pieces until none are left. An exception of any call is rethrown here when all calls have
// ended.
template <typename Work>
void on_all_cores(Work work) {
  std::vector<std::future<void>> others;  // their destructors wait
  try {
    for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i)
      others.push_back(std::async(std::launch::async, std::ref(work)));
  } catch (const std::system_error&) {
  }
  work();
  for (std::future<void>& other : others) other.get();
}

// Calls work(i) for every i of 0..count-1, in any order, on all cores. A thread costs some ten microseconds,
// so short work should come in few pieces.
template <typename Work>
void for_each_on_all_cores(size_t count, Work work) {
  std::atomic<size_t> next = 0;
  const auto worker = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  if (count > 1)
    on_all_cores(worker);
  else
    worker();
}

}  // namespace switchyard::reference
