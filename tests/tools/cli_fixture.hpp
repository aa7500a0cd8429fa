// The `switchyard` command run as a user runs it, for tests of its commands.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace switchyard::testing_support {

struct Outcome {
  int exit_code;
  std::string out;
  std::string err;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What a command wrote as JSON; a text that is no JSON is a failure, and read as null.
nlohmann::json read_json(const std::string& text);

class CliTest : public ::testing::Test {
 protected:
  CliTest()
      : folder(std::filesystem::temp_directory_path() / ("switchyard_cli_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder);
  }
  ~CliTest() override { std::filesystem::remove_all(folder); }

  // `before` is for the shell, in front of the command; `out_to` is where stdout goes, instead of
  // Outcome::out.
  Outcome run(const std::string& arguments, const std::string& out_to = "", const std::string& before = "") {
    const std::string err_path = folder / "err", out_path = folder / "out";
    std::ofstream(out_path, std::ios::trunc).close();
    const std::string command = before + std::string(SWITCHYARD_TOOL) + " " + arguments + " 2>'" + err_path +
                                "' " + (out_to.empty() ? ">'" + out_path + "'" : out_to);
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out_path), read_file(err_path)};
  }
  // Exit 2, one line on stderr that holds every part, nothing on stdout.
  void expect_refused(const std::string& arguments, const std::vector<std::string>& parts) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << arguments << "\n"
                                                                           << outcome.err;
    for (const std::string& part : parts)
      EXPECT_NE(outcome.err.find(part), std::string::npos) << arguments << "\n"
                                                           << outcome.err << "lacks " << part;
  }
  // Built to measure what checks cost.
  bool is_unchecked() { return run("doctor").out.find("UNCHECKED") != std::string::npos; }

  const std::filesystem::path folder;
};

}  // namespace switchyard::testing_support
