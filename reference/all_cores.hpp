// Runs work on all cores of this machine.
#pragma once

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

}  // namespace switchyard::reference
