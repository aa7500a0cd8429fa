// `switchyard`: runs, verifies and times expert-parallel steps and attention, and tells what this machine can
// do.
#include <cstdio>
#include <string>
#include <vector>

#include "commands.hpp"

namespace {

// What is wrong with the words of a command line, and which command they were for.
std::string describe(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string name = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  std::string choices;
  for (const CLI::App* choice : command->get_subcommands([](const CLI::App*) { return true; }))
    choices += (choices.empty() ? "" : ", ") + choice->get_name();
  const std::vector<std::string> unknown = app.remaining(true);
  if (unknown.empty())
    return name + ": " + (choices.empty() ? error.what() : "a subcommand is required: " + choices);
  const std::string what = unknown.front().starts_with('-') ? "option"
                           : choices.empty()                ? "argument"
                                                            : "subcommand; there are " + choices;
  return name + ": " + unknown.front() + ": no such " + what;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace switchyard::tools;
  CLI::App app{
      "Switchyard moves the tokens of a mixture-of-experts model to their experts and back.\n"
      "The same kernels run on GPUs and, thread by thread, on this CPU."};
  app.name("switchyard");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  switchyard run                                  a layer over 8 ranks, verified\n"
      "  switchyard run --ranks 3 --tokens-per-rank 5,0,7 --experts 6 --top-k 2 --hidden 64\n"
      "  switchyard run --json - | python3 -m json.tool  the same for machines\n"
      "  switchyard bench ep --svg ep.svg                times and bandwidth of dispatch and combine\n"
      "  switchyard bench formats                        what number formats cost and lose\n"
      "  switchyard run --kill 3@combine_async --deadline-ms 500    what a dead peer looks like\n"
      "  switchyard simulate --faults all                random interleavings, weak memory, dead and late "
      "ranks\n"
      "  switchyard attend --causal --seq-lens 700,0,33  attention over a ragged batch, verified\n"
      "  switchyard schedule --causal --compare          tile schedulers of attention, side by side\n"
      "  switchyard doctor                               what will run here, and why\n"
      "\nExit codes: 0 verified, 1 not verified, 2 bad argument, 3 fault at run time.");
  std::function<int()> run;
  add_run_command(app, &run);
  add_attend_command(app, &run);
  add_simulate_command(app, &run);
  add_bench_command(app, &run);
  add_schedule_command(app, &run);
  add_doctor_command(app, &run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s\n", describe(app, error).c_str());
    return kBadArgument;
  }
  return run();
}
