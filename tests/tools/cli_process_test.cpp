// The command with a process for every rank, and what `doctor` says of the transports.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli_fixture.hpp"
#include "commands/merged_report.hpp"
#include "commands/mps.hpp"
#include "commands/rank_processes.hpp"

namespace switchyard {
namespace {

using nlohmann::json;
using testing_support::Outcome;
using testing_support::read_json;
using Names = std::vector<std::string>;

class CliProcess : public testing_support::CliTest {
 protected:
  const std::string shape_ =
      "run --target host --ranks 3 --experts 6 --top-k 2 --hidden 64 --expert-width 16 --tokens 5 ";
};

TEST_F(CliProcess, ShowsOneTableOfAllRanks) {
  const Outcome outcome = run(shape_ + "--transport process --p2p-world-size 1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* text : {"transport process", "  0        5", "  2        5", "verified"})
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  const json local = read_json(run(shape_ + "--json -").out);
  const json report = read_json(run(shape_ + "--transport process --json -").out);
  EXPECT_EQ(report.at("verified"), true);
  for (const char* field : {"rows_per_rank", "bytes_moved", "traffic", "protocol", "max_abs_error"})
    EXPECT_EQ(report.at(field), local.at(field)) << field;
}

TEST_F(CliProcess, ABenchmarkHasBothTransportsSideBySide) {
  const std::string bench =
      "bench ep --target host --ranks 2 --experts 4 --top-k 2 --hidden 128 --tokens 1,3 --replays 2 ";
  const Outcome outcome = run(bench + "--transport process --protocol both");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* text : {"process us  x local", "which joined in ", "back to back", "verified: every"})
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  const json report = read_json(run(bench + "--transport process --format fp8 --json -").out);
  EXPECT_EQ(report.at("verified"), true);
  EXPECT_GT(report.at("join_ms"), 0);
  EXPECT_EQ(report.at("transport"), "process");
  size_t num_steps = 0;
  for (const json& time : report.at("times")) {
    EXPECT_GT(time.at("process_us"), 0) << time.dump();
    EXPECT_EQ(time.contains("start_skew_us"), time.at("phase") == "step") << time.dump();
    EXPECT_EQ(time.value("from_last_start_us", 0.0) > 0, time.at("phase") == "step") << time.dump();
    num_steps += time.at("phase") == "back to back" ? 1 : 0;
  }
  EXPECT_EQ(num_steps, 4u);  // of two sizes, split and fused
  expect_refused(bench + "--transport process --repeat-check 2", {"--repeat-check", "--transport"});
  expect_refused(bench + "--rank 2 --rendezvous unix:@x", {"--rank", "--ranks (2)"});
}

// What processes of SHMEM have measured is checked by oshrun_test.sh.
TEST_F(CliProcess, ReportsOfRanksThatAreNoneAreRefused) {
  const std::string bench =
      "bench ep --target host --ranks 2 --experts 4 --top-k 2 --hidden 128 --tokens 1 --replays 2 --mode "
      "fused ";
  const std::string path = folder / "reports";
  expect_refused(bench + "--rank-reports " + path, {"--rank-reports", path});
  for (const char* text : {"", "[]\n", "{\"join_ms\": 1, \"sizes\": []}\n", "x\n"}) {
    std::ofstream(path) << text;
    expect_refused(bench + "--rank-reports " + path, {"--rank-reports", path, "rank"});
  }
}

TEST_F(CliProcess, ARankThatDiesIsNamedByTheOthers) {
  const Outcome outcome = run(shape_ + "--transport process --kill 1@combine_async");
  EXPECT_EQ(outcome.exit_code, 3);
  for (const char* text : {"rank 0: switchyard run: rank 1 has ended", "rank 1: ended by signal 9",
                           "rank 2: switchyard run: rank 1 has ended"})
    EXPECT_NE(outcome.err.find(text), std::string::npos) << text << "\n" << outcome.err;
}

TEST_F(CliProcess, WrongOptionsAreRefusedOnce) {
  expect_refused(shape_ + "--transport process --top-k 33", {"--top-k"});
  expect_refused(shape_ + "--rank 1", {"--rank, --rendezvous"});
  expect_refused(shape_ + "--transport process --placement /dev/null",
                 {"--placement: /dev/null must be a regular file", "--transport process"});
  expect_refused(shape_ + "--rank 3 --rendezvous unix:@x", {"--rank: 3 must be below --ranks (3)"});
}

// By hand: who started a rank with another option is told which.
TEST_F(CliProcess, RanksThatAreStartedWithOtherOptionsSaySo) {
  const std::string shape =
      "run --target host --ranks 2 --experts 4 --top-k 2 --hidden 128 --expert-width 8 "
      "--tokens 3 --rendezvous unix:@switchyard-cli-" +
      std::to_string(getpid()) + " ";
  const std::string other =
      std::string(SWITCHYARD_TOOL) + " " + shape + "--rank 1 --seed 7 >/dev/null 2>&1 & ";
  const Outcome outcome = run(shape + "--rank 0 --format fp8", "", other);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  EXPECT_EQ(outcome.err,
            "switchyard run: --rank: rank 1 was started with --seed 7, and rank 0 with --format fp8\n");
}

// A number at which nobody listens.
std::string unused_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  (void)bind(socket, reinterpret_cast<sockaddr*>(&address), size);
  (void)getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  close(socket);
  return std::to_string(ntohs(address.sin_port));
}

// As from two terminals: each process shows the table of its own rank.
TEST_F(CliProcess, RanksJoinByHand) {
  const std::string token = folder / "token", other_out = folder / "other";
  std::ofstream(token) << "00112233445566778899aabbccddeeff\n";
  ASSERT_EQ(chmod(token.c_str(), 0600), 0);
  for (const std::string& address :
       {"unix:@switchyard-cli-by-hand-" + std::to_string(getpid()), "tcp:127.0.0.1:" + unused_port()}) {
    const std::string shape =
        "run --target host --ranks 2 --experts 4 --top-k 2 --hidden 64 --expert-width 16 --tokens-per-rank "
        "5,7 --rendezvous " +
        address;
    const std::string other = "export SWITCHYARD_TOKEN_FILE='" + token + "'; (" SWITCHYARD_TOOL " " + shape +
                              " --rank 1; echo exit code $?) >'" + other_out + "' 2>&1 & ";
    const Outcome outcome =
        run(shape + " --rank 0", ">'" + (folder / "out").string() + "'; code=$?; wait; exit $code", other);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("  0        5"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("\n  verified"), std::string::npos) << outcome.out;
    const std::string of_rank_1 = testing_support::read_file(other_out);
    EXPECT_NE(of_rank_1.find("  1        7"), std::string::npos) << of_rank_1;
    EXPECT_NE(of_rank_1.find("\n  verified"), std::string::npos) << of_rank_1;
    EXPECT_NE(of_rank_1.find("exit code 0\n"), std::string::npos) << of_rank_1;
  }
}

TEST_F(CliProcess, ARankThatNobodyJoinsSaysSoAtItsDeadline) {
  const std::string address = "unix:@switchyard-cli-alone-" + std::to_string(getpid());
  for (const auto& [rank, says] : {std::pair("0", "rank 1 did not join in time"),
                                   std::pair("1", "rank 0 did not answer in time: Connection refused")}) {
    const Outcome outcome =
        run("run --target host --ranks 2 --experts 4 --top-k 2 --join-deadline-ms 300 --rendezvous " +
            address + " --rank " + rank);
    EXPECT_EQ(outcome.exit_code, 3) << outcome.out;
    EXPECT_NE(outcome.err.find(says), std::string::npos) << outcome.err;
  }
}

TEST_F(CliProcess, ATraceAndADumpHoldAllRanks) {
  const std::string trace_path = folder / "trace.json", dump = folder / "dump";
  const Outcome outcome =
      run(shape_ + "--transport process --stall 1@dispatch_wait:5 --trace " + trace_path + " --dump " + dump);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json trace = read_json(testing_support::read_file(trace_path));
  std::map<int, std::string> name_of_process;
  std::map<int, double> first_us;
  bool is_awaited = false;
  for (const json& event : trace.at("traceEvents")) {
    const int process = event.at("pid").get<int>();
    if (event.at("name") == "process_name") name_of_process[process] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    const double begin_us = event.at("ts").get<double>();
    EXPECT_GE(begin_us, 0);
    if (!first_us.contains(process)) first_us[process] = begin_us;
    first_us[process] = std::min(first_us[process], begin_us);
    is_awaited |= event.at("name") == "wait for rank 1" && process != 2;
  }
  EXPECT_EQ(name_of_process, (std::map<int, std::string>{{1, "rank 0"}, {2, "rank 1"}, {3, "rank 2"}}));
  EXPECT_EQ(std::min({first_us[1], first_us[2], first_us[3]}), 0);
  EXPECT_TRUE(is_awaited) << "the rank that comes late is awaited by others";
  for (const char* rank : {"rank_0", "rank_1", "rank_2"})
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(dump) / rank / "tokens.npy")) << rank;
}

TEST_F(CliProcess, ARunThatFailsIsTracedToo) {
  const std::string trace_path = folder / "trace.json";
  const Outcome outcome = run(shape_ + "--transport process --kill 1@combine_async --trace " + trace_path);
  EXPECT_EQ(outcome.exit_code, 3);
  const std::string trace = testing_support::read_file(trace_path);
  EXPECT_EQ(read_json(trace).at("otherData").at("target"), "host");
  EXPECT_NE(trace.find("\"rank 0\""), std::string::npos);
  EXPECT_EQ(trace.find("\"rank 1\""), std::string::npos) << "a killed process leaves no trace";
  EXPECT_NE(trace.find("\"rank 2\""), std::string::npos);
}

TEST_F(CliProcess, AProgramThatCannotBeRunIsNamed) {
  // The kernel takes no argument of more than 128 KiB.
  const auto outcomes = tools::run_rank_processes(2, {"switchyard", std::string(200'000, 'x')});
  ASSERT_TRUE(outcomes.ok());
  for (const tools::RankOutcome& outcome : outcomes.value()) {
    EXPECT_EQ(outcome.exit_code, 127);
    EXPECT_EQ(outcome.errors.rfind("cannot run /", 0), 0u) << outcome.errors;
    EXPECT_NE(outcome.errors.find(": Argument list too long\n"), std::string::npos) << outcome.errors;
  }
}

TEST_F(CliProcess, EveryRankIsHeardWhateverIsWrongWithAnother) {
  std::vector<tools::RankOutcome> outcomes(4);
  outcomes[0] = {.output = "no report", .errors = "first\n"};
  outcomes[1] = {.errors = "cannot run it\n", .exit_code = 127};
  outcomes[2] = {.errors = "third\n", .signal = 9};
  outcomes[3] = {.errors = "last\n", .exit_code = tools::kBadArgument};
  tools::RunReport report;
  testing::internal::CaptureStderr();
  const Result<tools::ExitCode> code = tools::merge_outcomes(outcomes, report);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "rank 0: first\nrank 1: cannot run it\nrank 2: third\nrank 2: ended by signal 9\nrank 3: last\n");
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(code.value(), tools::kFault);
  outcomes = {{.output = "no report", .errors = "first\n"}, {.errors = "last\n"}};
  testing::internal::CaptureStderr();
  EXPECT_EQ(tools::merge_outcomes(outcomes, report).status().message().rfind("the report of rank 0", 0), 0u);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "rank 0: first\nrank 1: last\n");
}

TEST_F(CliProcess, DoctorSaysOfEachTransportWhetherItWorksAndWhy) {
  const std::string text = run("doctor").out;
  EXPECT_NE(text.find("\n  local    host yes: all ranks in one process\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  process  host yes: a process per rank"), std::string::npos) << text;
  const json report = read_json(run("doctor --json -").out);
  const bool has_gpus = report.at("cuda_runs");
  EXPECT_EQ(report.at("transports").size(), has_gpus ? 6u : 3u);
  for (const char* name : {"local", "process", "shmem"})
    for (const std::string& target : has_gpus ? Names{"host", "cuda"} : Names{"host"}) {
      const json& transports = report.at("transports");
      const auto transport = std::find_if(transports.begin(), transports.end(), [&](const json& one) {
        return one.at("name") == name && one.at("target") == target;
      });
      ASSERT_NE(transport, transports.end()) << name << " " << target;
      const std::string answer = transport->at("works").get<bool>() ? "yes: " : "no: ";
      EXPECT_NE(text.find(target + " " + answer + transport->at("reason").get<std::string>() + "\n"),
                std::string::npos)
          << transport->dump() << "\n"
          << text;
    }
  // MPS is looked for where the environment says, if there is a GPU to share.
  const std::string elsewhere = run("doctor", "", "CUDA_MPS_PIPE_DIRECTORY='" + folder.string() + "' ").out;
  EXPECT_EQ(elsewhere.find((folder / "control").string()) != std::string::npos, has_gpus) << elsewhere;
}

TEST_F(CliProcess, DoctorSaysWhereItHasLookedForAPluginThatIsNotThere) {
  // The plugin may lie beside the program, so a copy of the program runs, which has nothing beside it.
  const std::string alone = folder / "switchyard";
  std::filesystem::copy_file(SWITCHYARD_TOOL, alone);
  const Outcome outcome =
      run("doctor", "", "copy() { shift; SWITCHYARD_PLUGIN_PATH=/nowhere '" + alone + "' \"$@\"; }; copy ");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const size_t begin = outcome.out.find("\n  shmem    host no: transport shmem: no libswitchyard_");
  ASSERT_NE(begin, std::string::npos) << outcome.out;
  const std::string line = outcome.out.substr(begin + 1, outcome.out.find('\n', begin + 1) - begin - 1);
  for (const std::string& part :
       {std::string("/nowhere, "), folder.string() + "/, ", std::string("SWITCHYARD_PLUGIN_PATH: install "),
        std::string(" and build Switchyard again")})
    EXPECT_NE(line.find(part), std::string::npos) << part << "\n" << line;
}

TEST_F(CliProcess, MpsRunsWhereItsControlPipeIs) {
  const std::string control = folder / "control";
  EXPECT_FALSE(tools::mps_runs(folder));
  EXPECT_FALSE(tools::mps_runs(folder / "not_there"));
  for (const std::string& part : {control, std::string("start it by nvidia-cuda-mps-control -d")})
    EXPECT_NE(tools::describe_mps(folder).find(part), std::string::npos) << tools::describe_mps(folder);
  std::ofstream(control).close();
  EXPECT_FALSE(tools::mps_runs(folder)) << "a plain file is no pipe";
  std::filesystem::remove(control);
  ASSERT_EQ(mkfifo(control.c_str(), 0600), 0);
  EXPECT_TRUE(tools::mps_runs(folder));
  EXPECT_EQ(tools::describe_mps(folder), "MPS runs (" + control + "), so processes may share a GPU");
}

}  // namespace
}  // namespace switchyard
