// A connection between every two processes of a world, over Unix sockets: it shows at once when a process
// ends, and carries messages and open files.
#pragma once

#include <vector>

#include "address.hpp"
#include "channel.hpp"
#include "transport/deadline.hpp"
#include "transport/hello.hpp"

namespace switchyard {

// Another process of the world.
struct Peer {
  Hello hello;
  Channel channel;
  FileDescriptor process;  // a pidfd; closed where there is none to be had
};

// The address at which a process waits for those of higher ranks.
Address mesh_address_of(const Hello& hello);

// Connects to the processes of all lower ranks, and waits for those of all higher ranks, whose pid, user and
// nonce must be those of `world`, which is sorted and includes `mine`. Others are dropped and change nothing.
// Returns the other processes, by rank.
Result<std::vector<Peer>> connect_mesh(const Listener& listener, const Hello& mine,
                                       const std::vector<Hello>& world, const Deadline& deadline);

}  // namespace switchyard
