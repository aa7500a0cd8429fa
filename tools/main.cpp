// `switchyard`: runs, verifies and times expert-parallel steps and attention, and tells what this machine can
// do.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "commands/commands.hpp"
#include "files/output.hpp"
#include "switchyard/version.hpp"

namespace switchyard::tools {
namespace {

// The exit code of a command, and its error as one line on stderr. What was lost on stdout is an error too.
int finish(const std::string& name, const Result<ExitCode>& result) {
  const Status status = result.ok() ? flush_stdout() : result.status();
  if (status.ok()) return result.value();
  const bool is_argument = status.code() == StatusCode::kInvalidArgument;
  // What an argument or a file is wrong with needs no word for the kind of error.
  const bool says_all = is_argument || status.code() == StatusCode::kUnavailable;
  std::fprintf(stderr, "%s: %s\n", name.c_str(),
               says_all ? status.message().c_str() : status.to_string().c_str());
  return is_argument ? kBadArgument : kFault;
}

Result<ExitCode> run_and_catch(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return resource_exhausted("the memory of this process does not suffice");
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again)
      return resource_exhausted(
          "no further thread can be started; the memory of this process may not suffice");
    return internal_error("%s", error.what());
  } catch (const std::exception& error) {
    return internal_error("%s", error.what());
  }
}

}  // namespace
}  // namespace switchyard::tools

int main(int argc, char** argv) {
  using namespace switchyard::tools;
  keep_standard_streams();
  signal(SIGXFSZ, SIG_IGN);  // a file that becomes too large is an error of its write
  // Ranks that wait for each other must not share a queue to the GPU, as more than 8 streams would by
  // default. A process of one rank needs few: processes that share a GPU (under MPS) share its queues, too.
  // What a user has exported for such processes would stop one that has all ranks.
  const bool has_one_rank = std::any_of(argv, argv + argc, [](std::string_view argument) {
    return argument == "--rank" || argument.starts_with("--rank=") || argument == "shmem" ||
           argument == "--transport=shmem";
  });
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", has_one_rank ? "2" : "32", /*overwrite=*/1);
  CommandLine line("switchyard",
                   "Switchyard moves the tokens of a mixture-of-experts model to their experts and back.\n"
                   "The same kernels run on GPUs and, thread by thread, on this CPU.");
  line.set_footer(
      "Examples:\n"
      "  switchyard run                                  a layer over 8 ranks, verified\n"
      "  switchyard run --ranks 3 --tokens-per-rank 5,0,7 --experts 6 --top-k 2 --hidden 64\n"
      "  switchyard run --json - | python3 -m json.tool  the same for machines\n"
      "  switchyard bench ep --svg ep.svg                times and bandwidth of dispatch and combine\n"
      "  switchyard bench formats                        what number formats cost and lose\n"
      "  switchyard run --kill 3@combine_async --deadline-ms 2000   what a dead peer looks like\n"
      "  switchyard simulate --faults all                random interleavings, weak memory, dead and late "
      "ranks\n"
      "  switchyard attend --causal --seq-lens 700,0,33  attention over a ragged batch, verified\n"
      "  switchyard schedule --causal --compare          tile schedulers of attention, side by side\n"
      "  switchyard plan --ranks 8..512 --svg plan.svg   what a step would take on a cluster\n"
      "  switchyard doctor                               what will run here, and why\n"
      "\nExit codes: 0 verified, 1 not verified, 2 bad argument, 3 fault at run time, or output that cannot "
      "be\nwritten.");
  line.set_version(std::string("switchyard ") + switchyard::kVersion);
  add_run_command(line);
  add_attend_command(line);
  add_simulate_command(line);
  add_bench_command(line);
  add_schedule_command(line);
  add_plan_command(line);
  add_doctor_command(line);
  const switchyard::Result<Work> work = line.parse({argv + 1, argv + argc});
  return finish(line.name(), work.ok() ? run_and_catch(work.value()) : work.status());
}
