// What becomes of the command's results where there is no room for them: on stdout, in files, in memory.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli_fixture.hpp"

namespace switchyard {
namespace {

using testing_support::Outcome;
using testing_support::read_file;

class CliOutput : public testing_support::CliTest {
 protected:
  // Exit 3 and one line, which ends with the reason.
  void expect_lost(const Outcome& outcome, const std::string& what, const std::string& reason) {
    EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
    const std::string line = "cannot write " + what + ": " + reason + "\n";
    ASSERT_GE(outcome.err.size(), line.size()) << outcome.err;
    EXPECT_EQ(outcome.err.substr(outcome.err.size() - line.size()), line);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
};

const std::string kSmall =
    "run --target host --ranks 2 --experts 4 --top-k 2 --hidden 32 --expert-width 16 --tokens 5 --steps 1 ";
const std::string kSmallBench =
    "bench ep --target host --ranks 2 --experts 4 --top-k 2 --hidden 64 --tokens 1 --replays 2 --n-sms 2 ";
const std::string kFull = "No space left on device", kClosed = "Bad file descriptor";

TEST_F(CliOutput, WhatIsLostOnStdoutIsAFaultWithItsReason) {
  for (const std::string& command :
       {kSmall, kSmall + "--json -", kSmall + "--trace -", std::string("schedule --ctas 4"),
        std::string("schedule --ctas 4 --json -"), std::string("schedule --ctas 4 --svg -"),
        std::string("schedule --compare"), std::string("doctor"), std::string("doctor --json -"),
        std::string("bench formats --values 1024"), std::string("simulate --seeds 2"), std::string("simulate --replay 3"),
        kSmallBench, std::string("attend --target host --batch 1 --seq 20 --heads 1"), std::string("--help"),
        std::string("run --help"), std::string("--version")}) {
    SCOPED_TRACE(command);
    expect_lost(run(command, ">/dev/full"), "stdout", kFull);
    expect_lost(run(command, ">&-"), "stdout", kClosed);
  }
}

TEST_F(CliOutput, AFileNeverTakesTheTextOfAStdoutThatIsClosed) {
  const std::string path = folder / "report.json";
  expect_lost(run(kSmall + "--json " + path, ">&-"), "stdout", kClosed);
  EXPECT_EQ(read_file(path).substr(0, 2), "{\n");
  EXPECT_EQ(read_file(path).find("Switchyard"), std::string::npos);
}

TEST_F(CliOutput, AFullDiskIsOneKindOfFaultForEveryFile) {
  for (const std::string flag : {"--json", "--trace"})
    expect_lost(run(kSmall + flag + " /dev/full"), "/dev/full", kFull);
  for (const std::string flag : {"--json", "--svg"})
    expect_lost(run(kSmallBench + flag + " /dev/full"), "/dev/full", kFull);
  const std::filesystem::path rank = folder / "dump" / "rank_0";
  std::filesystem::create_directories(rank);
  std::filesystem::create_symlink("/dev/full", rank / "tokens.npy");
  const Outcome outcome = run(kSmall + "--dump " + (folder / "dump").string());
  expect_lost(outcome, (rank / "tokens.npy").string(), kFull);
  EXPECT_NE(outcome.err.find("switchyard run: --dump: "), std::string::npos) << outcome.err;
}

TEST_F(CliOutput, AFileThatIsNamedTwiceIsRefused) {
  const std::string path = folder / "a", other_name = folder / "." / "a";
  expect_refused(kSmall + "--json " + path + " --trace " + other_name, {"--trace", "is the file of --json"});
  expect_refused(kSmallBench + "--json " + path + " --svg " + path, {"--svg", "is the file of --json"});
  expect_refused("schedule --json " + path + " --svg " + path, {"--svg", "is the file of --json"});
  expect_refused("bench attention --target host --json " + path + " --inputs " + path,
                 {"--inputs", "--json"});
  for (const std::string& command : {kSmall + "--json - --trace -", kSmallBench + "--json - --svg -"})
    expect_refused(command, {"stdout is taken by --json"});
  expect_refused(kSmall + "--dump -", {"--dump", "stdout"});
  EXPECT_EQ(run(kSmall + "--json /dev/null --trace /dev/null").exit_code, 0);
}

TEST_F(CliOutput, AFileWithoutANameIsRefused) {
  for (const std::string flag : {"--json", "--trace", "--dump", "--placement", "--routing"})
    expect_refused(kSmall + flag + " ''", {flag, "must not be empty"});
  for (const std::string flag : {"--json", "--svg"})
    expect_refused(kSmallBench + flag + " ''", {flag, "must not be empty"});
  expect_refused("bench attention --target host --inputs ''", {"--inputs", "must not be empty"});
  expect_refused("schedule --svg ''", {"--svg", "must not be empty"});
  for (const std::string flag : {"--counts", "--placement", "--write-placement", "--svg"})
    expect_refused("plan " + flag + " ''", {flag, "must not be empty"});
}

TEST_F(CliOutput, WhatGoesToStdoutIsAloneThere) {
  EXPECT_EQ(run(kSmall + "--trace -").out.rfind("{\"displayTimeUnit\"", 0), 0u);
  EXPECT_EQ(run(kSmallBench + "--svg -").out.rfind("<svg", 0), 0u);
  EXPECT_EQ(
      run("bench attention --target host --lengths 64 --tokens 64 --inputs -").out.rfind("\x93NUMPY", 0), 0u);
}

// Sanitizers take address space of their own, and memory for what they know of ours.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

TEST_F(CliOutput, TooLittleMemoryIsAFaultWithOneLine) {
  for (const char* kilobytes : {"60000", "100000", "200000", "400000"}) {
    const Outcome outcome = run("run --target host --ranks 8 --tokens 256 --hidden 4096", "",
                                "ulimit -v " + std::string(kilobytes) + "; ");
    EXPECT_EQ(outcome.exit_code, 3) << kilobytes;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_NE(outcome.err.find("memory"), std::string::npos) << outcome.err;
  }
}

// Peak memory of a command, in GiB.
double peak_memory_of(const std::vector<const char*>& arguments) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(126);
    execv(SWITCHYARD_TOOL, const_cast<char**>(arguments.data()));
    _exit(127);
  }
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

TEST_F(CliOutput, TheGuardCountsWhatARunTouches) {
  for (const char* protocol : {"slotted", "direct"})
    for (const char* format : {"bf16", "nvfp4"}) {
      SCOPED_TRACE(std::string(protocol) + ", " + format);
      const double peak = peak_memory_of(
          {"switchyard",     "run", "--target",          "host", "--steps",    "1",      "--ranks",  "4",
           "--experts",      "4",   "--top-k",           "4",    "--tokens",   "500",    "--hidden", "2048",
           "--expert-width", "8",   "--capacity-factor", "1.5",  "--protocol", protocol, "--format", format,
           nullptr});
      // Too little for the run, and enough for everything before the guard.
      double needed = 0;
      for (int kilobytes = 100000; needed == 0 && kilobytes < 1000000; kilobytes += 20000) {
        const Outcome refused =
            run("run --target host --steps 1 --ranks 4 --experts 4 --top-k 4 --tokens 500 --hidden 2048 "
                "--expert-width 8 --capacity-factor 1.5 --protocol " +
                    std::string(protocol) + " --format " + format,
                "", "ulimit -v " + std::to_string(kilobytes) + "; ");
        ASSERT_EQ(refused.exit_code, 3) << refused.err;
        std::sscanf(refused.err.c_str(), "switchyard run: resource exhausted: needs %lf GiB", &needed);
      }
      EXPECT_GE(needed, 0.9 * peak);
      EXPECT_LE(needed, 1.6 * peak);
    }
}

#endif

}  // namespace
}  // namespace switchyard
