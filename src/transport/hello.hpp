// What a process says of itself when it joins a world, and whether the processes of a world fit together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "random_bytes.hpp"
#include "switchyard/detail/transport/transport.hpp"
#include "switchyard/types/target.hpp"

namespace switchyard {

inline constexpr size_t kMaxHelloBytes = 4096;

struct Hello {
  std::string version;  // of the library; the fields below are those of the same version only
  int n_ranks = 0;
  int first_rank = 0;
  int num_ranks = 0;
  Target target = Target::kHost;
  std::string machine;  // equal if the processes can reach each other's sockets and see each other's pids
  int64_t pid = 0;
  uint32_t uid = 0;
  std::string device;    // the GPU's UUID; empty on the host
  std::string listener;  // an abstract Unix socket at which the process waits for the others
  Nonce nonce{};         // only who was part of the all-gather knows it

  // Strangers may say anything: these sums do not overflow.
  int64_t last_rank() const { return int64_t{first_rank} + num_ranks - 1; }
  bool has_rank(int rank) const { return rank >= first_rank && rank <= last_rank(); }
  // "rank 2 (process 1234)", "ranks 2..3 (process 1234)".
  std::string name() const;
};

// Everything but the ranks, the target and the device, which are the caller's.
Hello describe_this_process();

Bytes encode(const Hello& hello);
// Of a process with another version only the version, the ranks and the process are known.
Result<Hello> decode_hello(const Bytes& bytes);

// Whether two processes, on whatever machines, can be of one world; otherwise the field and both values.
Status check_compatible(const Hello& one, const Hello& other);
// The same of a world on one machine, with one user.
Status check_alike(const Hello& one, const Hello& other);
// Sorts by rank, and checks that they are alike, on one machine, and have each rank once.
Status check_world(std::vector<Hello>& hellos);

}  // namespace switchyard
