#include "hello.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "switchyard/version.hpp"
#include "wire_bytes.hpp"

namespace switchyard {
namespace {

constexpr uint64_t kMagic = 0x6472617968637773;  // "swchyard"
constexpr size_t kMaxText = 256;

// A namespace, such as "net:[4026531840]".
std::string namespace_of(const char* kind) {
  std::array<char, 64> text{};
  const std::string path = std::string("/proc/self/ns/") + kind;
  const ssize_t size = readlink(path.c_str(), text.data(), text.size());
  return std::string(text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
}

Status differ(const char* field, const std::string& one_value, const Hello& one,
              const std::string& other_value, const Hello& other) {
  return invalid_argument("%s is %s at %s and %s at %s; it must be the same", field, one_value.c_str(),
                          one.name().c_str(), other_value.c_str(), other.name().c_str());
}

}  // namespace

std::string Hello::name() const {
  const std::string process = " (process " + std::to_string(pid) + ")";
  if (num_ranks == 1) return "rank " + std::to_string(first_rank) + process;
  return "ranks " + std::to_string(first_rank) + ".." + std::to_string(last_rank()) + process;
}

Hello describe_this_process() {
  Hello hello;
  hello.version = kVersion;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), hello.machine);
  hello.machine += " " + namespace_of("net") + " " + namespace_of("pid");
  hello.pid = getpid();
  hello.uid = geteuid();
  hello.nonce = random_nonce();
  const Nonce name = random_nonce();
  hello.listener = "switchyard-" + std::to_string(name[0]) + "-" + std::to_string(name[1]);
  return hello;
}

Bytes encode(const Hello& hello) {
  return ByteWriter()
      .number(kMagic)
      .text(hello.version)
      .number(hello.first_rank)
      .number(hello.num_ranks)
      .number(hello.pid)
      .number(hello.n_ranks)
      .number(static_cast<uint32_t>(hello.target))
      .text(hello.machine)
      .number(hello.uid)
      .text(hello.device)
      .text(hello.listener)
      .number(hello.nonce[0])
      .number(hello.nonce[1])
      .take();
}

Result<Hello> decode_hello(const Bytes& bytes) {
  ByteReader reader(bytes);
  const bool is_ours = bytes.size() <= kMaxHelloBytes && reader.number<uint64_t>() == kMagic;
  Hello hello;
  hello.version = reader.text(kMaxText);
  hello.first_rank = reader.number<int>();
  hello.num_ranks = reader.number<int>();
  hello.pid = reader.number<int64_t>();
  if (!is_ours || !reader.is_whole()) return invalid_argument("a greeting is not one of this library");
  if (hello.version != kVersion) return hello;
  hello.n_ranks = reader.number<int>();
  hello.target = static_cast<Target>(reader.number<uint32_t>());
  hello.machine = reader.text(kMaxText);
  hello.uid = reader.number<uint32_t>();
  hello.device = reader.text(kMaxText);
  hello.listener = reader.text(kMaxText);
  hello.nonce = {reader.number<uint64_t>(), 0};
  hello.nonce[1] = reader.number<uint64_t>();
  if (!reader.is_at_end())
    return invalid_argument("a greeting has %zu bytes, which do not fit", bytes.size());
  return hello;
}

Status check_compatible(const Hello& one, const Hello& other) {
  if (one.version != other.version) return differ("version", one.version, one, other.version, other);
  if (one.n_ranks != other.n_ranks)
    return differ("n_ranks", std::to_string(one.n_ranks), one, std::to_string(other.n_ranks), other);
  if (one.target != other.target)
    return differ("target", to_string(one.target), one, to_string(other.target), other);
  return Status();
}

Status check_alike(const Hello& one, const Hello& other) {
  SWITCHYARD_RETURN_IF_ERROR(check_compatible(one, other));
  if (one.machine != other.machine) return differ("machine", one.machine, one, other.machine, other);
  if (one.uid != other.uid)
    return differ("user", std::to_string(one.uid), one, std::to_string(other.uid), other);
  return Status();
}

Status check_world(std::vector<Hello>& hellos) {
  std::sort(hellos.begin(), hellos.end(), [](const Hello& a, const Hello& b) {
    return a.first_rank != b.first_rank ? a.first_rank < b.first_rank : a.pid < b.pid;
  });
  if (hellos.empty()) return invalid_argument("the all-gather returned nothing");
  for (const Hello& hello : hellos) SWITCHYARD_RETURN_IF_ERROR(check_alike(hellos.front(), hello));
  int next_rank = 0;
  for (size_t i = 0; i < hellos.size(); ++i) {
    const Hello& hello = hellos[i];
    if (hello.first_rank < next_rank && i > 0)
      return invalid_argument("rank %d is claimed by process %lld and by process %lld", hello.first_rank,
                              static_cast<long long>(hellos[i - 1].pid), static_cast<long long>(hello.pid));
    if (hello.first_rank != next_rank) return invalid_argument("rank %d has no process", next_rank);
    if (hello.num_ranks < 1 || hello.num_ranks > hello.n_ranks - next_rank)
      return invalid_argument("rank %d of process %lld; it must be 0..%d", next_rank + hello.num_ranks - 1,
                              static_cast<long long>(hello.pid), hello.n_ranks - 1);
    next_rank += hello.num_ranks;
  }
  if (next_rank != hellos.front().n_ranks) return invalid_argument("rank %d has no process", next_rank);
  return Status();
}

}  // namespace switchyard
