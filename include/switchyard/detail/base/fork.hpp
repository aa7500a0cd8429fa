// What a fork of this process finds: objects, but none of the threads that serve them.
#pragma once

#include <cstdint>

#include "switchyard/status.hpp"

namespace switchyard {

// How many forks lie between the first process and this one.
uint64_t fork_generation();

// Kept by an object: the process that made it.
class ProcessMark {
 public:
  bool is_of_parent() const { return generation_ != fork_generation(); }
  // An error in a fork of that process. It takes no lock, which a thread of the parent may have held.
  Status check(const char* call) const;

 private:
  uint64_t generation_ = fork_generation();
};

}  // namespace switchyard
