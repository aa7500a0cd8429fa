// The meeting of processes that know nothing of each other but an address: the process of rank 0 listens
// there, all others connect, each is told what all have said. Both sides prove that they know the token; on a
// Unix socket both must be of the same user.
#pragma once

#include <optional>
#include <vector>

#include "address.hpp"
#include "token.hpp"
#include "transport/deadline.hpp"
#include "transport/hello.hpp"

namespace switchyard {

// Gives every process the encoded Hello of all processes.
Result<std::vector<Bytes>> meet_at(const Address& address, const std::optional<Token>& token,
                                   const Hello& mine, const Deadline& deadline);

// The two sides of it.
Result<std::vector<Bytes>> serve_rendezvous(const Address& address, const Token& token, const Hello& mine,
                                            const Deadline& deadline);
Result<std::vector<Bytes>> visit_rendezvous(const Address& address, const Token& token, const Hello& mine,
                                            const Deadline& deadline);

}  // namespace switchyard
