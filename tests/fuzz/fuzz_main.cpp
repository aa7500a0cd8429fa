// switchyard_fuzz: random text for everything that reads text, until time is up. A process of its own reads
// it, so that whatever ends that process is told with the input that did it. Where clang is at hand,
// switchyard_libfuzzer finds more in the same time.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>

#include "commands/command_line.hpp"
#include "fuzz_text.hpp"

namespace {

using switchyard::fuzz::Outcome;

// What both processes see.
struct Progress {
  uint64_t index;  // of the input in hand
  uint64_t num_read, num_refused;
};

constexpr unsigned kSecondsPerInput = 20;

std::string input_of(uint64_t seed, uint64_t index) {
  std::seed_seq words{seed, seed >> 32, index, index >> 32};
  std::mt19937_64 random(words);
  return switchyard::fuzz::draw_input(random);
}

struct Options {
  double seconds = 60;
  uint64_t seed = 1;
  uint64_t first = 0;
  uint64_t num_inputs = UINT64_MAX;
};

void read_inputs(const Options& options, Progress& progress) {
  switchyard::fuzz::check_that_readers_are_reached();
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < options.num_inputs; ++i) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > options.seconds)
      return;
    progress.index = options.first + i;
    alarm(kSecondsPerInput);
    ++(switchyard::fuzz::fuzz_text(input_of(options.seed, progress.index)) == Outcome::kRead
           ? progress.num_read
           : progress.num_refused);
  }
}

// Reads inputs in another process until time is up, and says how that process ended.
switchyard::tools::ExitCode fuzz(const Options& options) {
  void* memory = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("switchyard_fuzz: mmap");
    return switchyard::tools::kNotVerified;
  }
  Progress& progress = *static_cast<Progress*>(memory);
  progress.index = UINT64_MAX;
  const pid_t reader = fork();
  if (reader == 0) {
    read_inputs(options, progress);
    std::_Exit(0);
  }
  int status = 0;
  if (reader < 0 || waitpid(reader, &status, 0) != reader) {
    std::perror("switchyard_fuzz: fork");
    return switchyard::tools::kNotVerified;
  }
  if (status == 0) {
    std::printf("switchyard_fuzz: seed %llu, %llu inputs read, %llu refused\n",
                static_cast<unsigned long long>(options.seed),
                static_cast<unsigned long long>(progress.num_read),
                static_cast<unsigned long long>(progress.num_refused));
    return switchyard::tools::kVerified;
  }
  const std::string how = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "an exit of its own";
  if (progress.index == UINT64_MAX) {
    std::fprintf(stderr, "switchyard_fuzz: %s before the first input\n", how.c_str());
    return switchyard::tools::kNotVerified;
  }
  std::fprintf(stderr,
               "switchyard_fuzz: %s in input %llu; again with --seed %llu --first %llu --inputs 1:\n%s\n",
               how.c_str(), static_cast<unsigned long long>(progress.index),
               static_cast<unsigned long long>(options.seed), static_cast<unsigned long long>(progress.index),
               input_of(options.seed, progress.index).c_str());
  return switchyard::tools::kNotVerified;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  switchyard::tools::CommandLine line("switchyard_fuzz",
                                      "Gives random text to everything of `switchyard` that reads text");
  line.add_fraction("--seconds", options.seconds, 0, 1e9, "How long");
  line.add_seed("--seed", options.seed, "All inputs follow from it");
  line.add_number("--first", options.first, 0, UINT64_MAX, "The first input");
  line.add_number("--inputs", options.num_inputs, 0, UINT64_MAX, "At most so many").hide_default();
  line.set_work([&] { return fuzz(options); });
  const switchyard::Result<switchyard::tools::Work> work = line.parse({argv + 1, argv + argc});
  if (work.ok()) return work.value()().value();
  std::fprintf(stderr, "switchyard_fuzz: %s\n", work.status().message().c_str());
  return switchyard::tools::kBadArgument;
}
