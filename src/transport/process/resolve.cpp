#include "resolve.hpp"

#include <future>
#include <thread>

namespace switchyard {
namespace {

Result<AddressList> look_up(const Address& address, int flags, const NameService& service) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = service.look_up(address.name.c_str(), address.port.c_str(), &hints, &found);
  if (error != 0) return invalid_argument("rendezvous %s: %s", address.text.c_str(), gai_strerror(error));
  return AddressList(found, service.free);
}

}  // namespace

Result<AddressList> resolve(const Address& address, int flags, const Deadline& deadline) {
  // Numbers need no look-up, and no thread.
  if (Result<AddressList> numbers = look_up(address, flags | AI_NUMERICHOST, {}); numbers.ok())
    return numbers;
  std::packaged_task<Result<AddressList>()> task(
      [address, flags, service = name_service] { return look_up(address, flags, service); });
  std::future<Result<AddressList>> answer = task.get_future();
  std::thread(std::move(task)).detach();
  if (answer.wait_until(deadline.at()) != std::future_status::ready)
    return Status(StatusCode::kDeadlineExceeded,
                  "rendezvous " + address.text + ": the name " + address.name + " was not resolved in time");
  return answer.get();
}

}  // namespace switchyard
