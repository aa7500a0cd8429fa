// The commands of `switchyard`. main() runs the one that is named.
#pragma once

#include "command_line.hpp"

namespace switchyard::tools {

// Each adds its command.
void add_run_command(CommandLine& line);
void add_attend_command(CommandLine& line);
void add_simulate_command(CommandLine& line);
void add_bench_command(CommandLine& line);
void add_schedule_command(CommandLine& line);
void add_plan_command(CommandLine& line);
void add_doctor_command(CommandLine& line);
// Below `bench`.
void add_bench_attention_command(Command& bench);
void add_bench_formats_command(Command& bench);
void add_bench_matmul_command(Command& bench);
void add_bench_layer_command(Command& bench);

}  // namespace switchyard::tools
