// The socket addresses that a host's name and a port stand for.
#pragma once

#include <netdb.h>

#include <memory>

#include "address.hpp"

namespace switchyard {

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// As getaddrinfo(), which has no deadline of its own: the look-up of a name goes on in a thread that is left
// behind if it takes too long. `flags` are those of addrinfo.
Result<AddressList> resolve(const Address& address, int flags, const Deadline& deadline);

// What resolve() asks, and how its answers are freed: getaddrinfo() and freeaddrinfo(), or a test's own.
struct NameService {
  int (*look_up)(const char* name, const char* port, const addrinfo* hints, addrinfo** found) = &getaddrinfo;
  void (*free)(addrinfo* found) = &freeaddrinfo;
};
inline NameService name_service;

}  // namespace switchyard
