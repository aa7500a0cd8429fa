// `switchyard`: runs, verifies and times expert-parallel steps and attention, and tells what this machine can
// do.
#include <cstdio>

#include "commands.hpp"

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
    const bool has_word = argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty();
    std::fprintf(stderr, "switchyard: %s%s%s\n", has_word ? argv[1] : "",
                 has_word ? ": no such command; " : "", error.what());
    return kBadArgument;
  }
  return run();
}
