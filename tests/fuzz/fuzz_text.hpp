// Everything of the command that reads text, behind one function that a fuzzer calls: the coverage-guided one
// of clang (libFuzzer) or the random one of fuzz_main.cpp. Text must be read or be refused with a sentence;
// whatever else happens ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

namespace switchyard::fuzz {

// What an input did.
enum class Outcome { kRead, kRefused };

// The first line of an input says what is to read the rest: routing, placement or counts (a file), ranks,
// list, seed (the value of an option), attention (options) or command (words after `switchyard`).
Outcome fuzz_text(const std::string& input);

// An input that is one of some good ones, a little changed. It follows from the state of `random` alone.
std::string draw_input(std::mt19937_64& random);
// The same, of an input that a fuzzer found worth keeping.
std::string change_input(const std::string& input, std::mt19937_64& random);

// Ends the process unless every reader, faults of `run` and `simulate` among them, is reached.
void check_that_readers_are_reached();

}  // namespace switchyard::fuzz
