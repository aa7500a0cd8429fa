// What the process transport is made of, each by itself: frames, tokens, addresses, and the greetings of
// processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "transport/hello.hpp"
#include "transport/process/address.hpp"
#include "transport/process/channel.hpp"
#include "transport/process/message.hpp"
#include "transport/process/rendezvous_frames.hpp"
#include "transport/process/resolve.hpp"
#include "transport/process/token.hpp"

namespace switchyard {
namespace {

struct Pair {
  Channel one, other;
};
Pair connected_channels() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {Channel(FileDescriptor(ends[0])), Channel(FileDescriptor(ends[1]))};
}

Bytes text_bytes(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

TEST(Frames, ComeWholeInOrderAndWithTheirFiles) {
  Pair pair = connected_channels();
  int pipe_ends[2] = {-1, -1};
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const FileDescriptor read_end(pipe_ends[0]), write_end(pipe_ends[1]);
  pair.one.send(text_bytes("first"));
  ASSERT_TRUE(pair.one.send_with_files(text_bytes("second"), std::vector<int>{write_end.number()}).ok());
  pair.one.send({});
  EXPECT_TRUE(pair.other.receive() && pair.other.receive());
  std::optional<Frame> frame = pair.other.next_frame();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->body, text_bytes("first"));
  EXPECT_TRUE(frame->files.empty());
  frame = pair.other.next_frame();
  ASSERT_TRUE(frame);
  ASSERT_EQ(frame->files.size(), 1u);
  ASSERT_EQ(write(frame->files[0].number(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(read_end.number(), &byte, 1), 1);
  frame = pair.other.next_frame();
  ASSERT_TRUE(frame);
  EXPECT_TRUE(frame->body.empty() && frame->files.empty());
  EXPECT_FALSE(pair.other.next_frame());
}

// The process may have `count` more files open while this lives.
class FewFiles {
 public:
  explicit FewFiles(rlim_t count) {
    (void)getrlimit(RLIMIT_NOFILE, &before_);
    const FileDescriptor lowest(dup(0));
    set_limit(static_cast<rlim_t>(lowest.number()) + count);
  }
  ~FewFiles() { set_limit(before_.rlim_cur); }

 private:
  void set_limit(rlim_t limit) const {
    const rlimit changed{limit, before_.rlim_max};
    (void)setrlimit(RLIMIT_NOFILE, &changed);
  }
  rlimit before_{};
};

TEST(Frames, ThatLoseFilesToTheLimitSaySoAndOthersFollow) {
  Pair pair = connected_channels();
  ASSERT_TRUE(pair.one.send_with_files(text_bytes("files"), std::vector<int>{0, 0}).ok());
  ASSERT_TRUE(pair.one.send_with_files(text_bytes("more"), std::vector<int>{0, 0}).ok());
  {
    const FewFiles few(1);
    EXPECT_TRUE(pair.other.receive());
  }
  std::optional<Frame> frame = pair.other.next_frame();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->body, text_bytes("files"));
  EXPECT_TRUE(frame->has_lost_files);
  EXPECT_EQ(frame->files.size(), 1u);
  frame = pair.other.next_frame();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->body, text_bytes("more"));
  EXPECT_TRUE(frame->has_lost_files);
}

TEST(Frames, AreNotSentWithoutTheirFiles) {
  Pair pair = connected_channels();
  {
    const FewFiles few(1);
    const Status status = pair.one.send_with_files(text_bytes("files"), std::vector<int>{0, 0});
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find("RLIMIT_NOFILE is "), std::string::npos) << status.message();
  }
  pair.one.send(text_bytes("next"));
  EXPECT_TRUE(pair.other.receive());
  const std::optional<Frame> frame = pair.other.next_frame();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->body, text_bytes("next"));
}

TEST(Frames, OfManyBytesWaitForAReader) {
  Pair pair = connected_channels();
  const Bytes large(kMaxFrameBytes, std::byte{5});
  pair.one.send(large);
  EXPECT_TRUE(pair.one.has_unsent());
  EXPECT_FALSE(pair.one.flush_until(Deadline::in_ms(10)));
  std::optional<Frame> frame;
  for (int i = 0; i < 1000 && !frame; ++i) {
    EXPECT_TRUE(pair.one.flush() && pair.other.receive());
    frame = pair.other.next_frame();
  }
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->body, large);
}

TEST(Frames, ThatAreTooLongEndTheConnection) {
  Pair pair = connected_channels();
  ASSERT_EQ(write(pair.one.number(), "\x01\x00\x10\x00zzzz", 8), 8);
  EXPECT_FALSE(pair.other.receive());
  EXPECT_FALSE(pair.other.next_frame());
}

TEST(Frames, HalfAFrameIsNone) {
  Pair pair = connected_channels();
  ASSERT_EQ(write(pair.one.number(), "\x09\x00\x00\x00half", 8), 8);
  EXPECT_TRUE(pair.other.receive());
  EXPECT_FALSE(pair.other.next_frame());
  pair.one.close();
  EXPECT_FALSE(pair.other.receive());
  EXPECT_FALSE(pair.other.next_frame());
}

TEST(Messages, OfAnUnknownKindOrWithRestAreNone) {
  EXPECT_TRUE(decode_message({encode_message(MessageKind::kMemory, 1, 2, text_bytes("p")), {}}));
  EXPECT_FALSE(decode_message({encode_message(static_cast<MessageKind>(4), 1, 2, {}), {}}));
  Bytes with_rest = encode_message(MessageKind::kGather, 1, 2, {});
  with_rest.push_back(std::byte{0});
  EXPECT_FALSE(decode_message({with_rest, {}}));
  EXPECT_FALSE(decode_message({{}, {}}));
  EXPECT_EQ(encode_message(MessageKind::kGather, 1, 2, {}).size(), kMessageHeaderBytes);
}

// The published test value of SipHash-2-4: the key 00..0f, the message 00..0e.
TEST(Tokens, TheHashIsSipHash) {
  Bytes message;
  for (int i = 0; i < 15; ++i) message.push_back(static_cast<std::byte>(i));
  EXPECT_EQ(sip_hash({0x0706050403020100, 0x0f0e0d0c0b0a0908}, message), 0xa129ca6149be45e5u);
}

TEST(Tokens, AProofHoldsForItsTokenRoleChallengeAndWordsOnly) {
  const Token token = {1, 2};
  const Proof proof = prove(token, 'v', {3, 4}, text_bytes("hello"));
  EXPECT_TRUE(is_same(proof, prove(token, 'v', {3, 4}, text_bytes("hello"))));
  EXPECT_FALSE(is_same(proof, prove({1, 3}, 'v', {3, 4}, text_bytes("hello"))));
  EXPECT_FALSE(is_same(proof, prove(token, 's', {3, 4}, text_bytes("hello"))));
  EXPECT_FALSE(is_same(proof, prove(token, 'v', {3, 5}, text_bytes("hello"))));
  EXPECT_FALSE(is_same(proof, prove(token, 'v', {3, 4}, text_bytes("hellO"))));
}

TEST(Tokens, AreHexDigitsOfTheOptionTheFileOrTheEnvironment) {
  unsetenv("SWITCHYARD_TOKEN_FILE");
  unsetenv("SWITCHYARD_TOKEN");
  EXPECT_FALSE(find_token("").value());
  EXPECT_EQ(find_token("000102030405060708090a0B0c0d0e0F").value(),
            (Token{0x0001020304050607, 0x08090a0b0c0d0e0f}));
  EXPECT_EQ(find_token("12").status().message(), "token has 2 characters; it must be 32 hex digits");
  const std::string strange = "00010203040506070809secret0d0e0f";
  EXPECT_EQ(find_token(strange).status().message(), "token must be hex digits; character 20 is not");
  setenv("SWITCHYARD_TOKEN", "000000000000000a000000000000000b", 1);
  EXPECT_EQ(find_token("").value(), (Token{10, 11}));
  setenv("SWITCHYARD_TOKEN_FILE", "/nonexistent", 1);
  EXPECT_EQ(find_token("").status().message(),
            "the file /nonexistent of SWITCHYARD_TOKEN_FILE cannot be read");
  unsetenv("SWITCHYARD_TOKEN_FILE");
  unsetenv("SWITCHYARD_TOKEN");
}

TEST(Tokens, InAFileThatEverybodyCanReadAreRefused) {
  char path[] = "/tmp/switchyard-token-XXXXXX";
  const FileDescriptor file(mkstemp(path));
  const std::string digits = "000000000000000a000000000000000b\n";
  ASSERT_EQ(write(file.number(), digits.data(), digits.size()), static_cast<ssize_t>(digits.size()));
  setenv("SWITCHYARD_TOKEN_FILE", path, 1);
  EXPECT_EQ(find_token("").value(), (Token{10, 11}));
  ASSERT_EQ(fchmod(file.number(), 0640), 0);
  EXPECT_EQ(find_token("").value(), (Token{10, 11}));
  for (const mode_t mode : {0644, 0602}) {
    ASSERT_EQ(fchmod(file.number(), mode), 0);
    EXPECT_EQ(find_token("").status().message(),
              std::string("the file ") + path + " of SWITCHYARD_TOKEN_FILE has mode " +
                  (mode == 0644 ? "0644" : "0602") +
                  ", so that every user can read or write it; chmod o-rw keeps it secret");
  }
  unsetenv("SWITCHYARD_TOKEN_FILE");
  unlink(path);
}

TEST(Addresses, AreChecked) {
  EXPECT_EQ(parse_address("unix:@x").value().kind, Address::Kind::kUnixAbstract);
  const Address tcp = parse_address("tcp:[::1]:99").value();
  EXPECT_EQ(tcp.name + "|" + tcp.port, "::1|99");
  for (const char* wrong : {"", "unix:", "unix:@", "tcp:", "tcp:host", "tcp::5", "tcp:host:", "tcp:h:0",
                            "tcp:h:65536", "tcp:h:12x", "udp:h:5", "/path"})
    EXPECT_EQ(parse_address(wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
  EXPECT_FALSE(parse_address("unix:/" + std::string(120, 'x')).ok());
}

TEST(Addresses, AFileThatIsNoSocketIsLeftAlone) {
  const std::string path = "/tmp/switchyard-file-" + std::to_string(getpid());
  FileDescriptor file(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_EQ(Listener::listen_at(parse_address("unix:" + path).value(), Deadline::in_ms(1000)).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(unlink(path.c_str()), 0);
}

Hello hello_of(int rank, int n_ranks) {
  Hello hello = describe_this_process();
  hello.first_rank = rank;
  hello.num_ranks = 1;
  hello.n_ranks = n_ranks;
  hello.pid = 100 + rank;
  return hello;
}

TEST(Hellos, ThatDifferAreRefusedWithTheFieldAndBothValues) {
  const auto refusal = [](void (*change)(Hello&)) {
    std::vector<Hello> world = {hello_of(1, 2), hello_of(0, 2)};
    change(world[0]);
    return check_world(world).message();
  };
  EXPECT_EQ(refusal([](Hello&) {}), "");
  EXPECT_EQ(refusal([](Hello& hello) { hello.version = "9.9"; }),
            "version is 0.1.0 at rank 0 (process 100) and 9.9 at rank 1 (process 101); it must be the same");
  EXPECT_EQ(refusal([](Hello& hello) { hello.n_ranks = 3; }),
            "n_ranks is 2 at rank 0 (process 100) and 3 at rank 1 (process 101); it must be the same");
  EXPECT_EQ(refusal([](Hello& hello) { hello.target = Target::kCuda; }),
            "target is host at rank 0 (process 100) and cuda at rank 1 (process 101); it must be the same");
  EXPECT_NE(refusal([](Hello& hello) { hello.machine = "other"; }).find(" and other at rank 1"),
            std::string::npos);
  EXPECT_EQ(refusal([](Hello& hello) { hello.uid = 0x7fffffff; }),
            "user is " + std::to_string(geteuid()) +
                " at rank 0 (process 100) and 2147483647 at rank 1 (process 101); it must be the same");
  EXPECT_EQ(refusal([](Hello& hello) { hello.first_rank = 0; }),
            "rank 0 is claimed by process 100 and by process 101");
  EXPECT_EQ(refusal([](Hello& hello) { hello.num_ranks = 2; }), "rank 2 of process 101; it must be 0..1");
  std::vector<Hello> incomplete = {hello_of(1, 2)};
  EXPECT_EQ(check_world(incomplete).message(), "rank 0 has no process");
}

TEST(Hellos, AreReadBackAndGarbageIsNone) {
  const Hello hello = hello_of(3, 4);
  const Bytes bytes = encode(hello);
  const Hello back = decode_hello(bytes).value();
  EXPECT_EQ(encode(back), bytes);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_hello(Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size))).ok());
  EXPECT_FALSE(decode_hello(Bytes(5000)).ok());
  Hello other = hello;
  other.version = "0.0.1";
  EXPECT_EQ(decode_hello(encode(other)).value().version, "0.0.1");
}

TEST(Addresses, ALookUpKeepsTheDeadline) {
  const NameService before = name_service;
  name_service.look_up = [](const char*, const char*, const addrinfo*, addrinfo**) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return EAI_NONAME;
  };
  const Address address = parse_address("tcp:name.invalid:29500").value();
  const auto begin = std::chrono::steady_clock::now();
  const Status status = try_connect(address, Deadline::in_ms(50)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "rendezvous tcp:name.invalid:29500: the name name.invalid was not resolved in time");
  EXPECT_EQ(Listener::listen_at(address, Deadline::in_ms(50)).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(390));
  EXPECT_EQ(try_connect(address, Deadline::in_ms(10'000)).status().code(), StatusCode::kInvalidArgument);
  name_service = before;
}

}  // namespace
}  // namespace switchyard
