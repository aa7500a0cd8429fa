#include "fuzz_text.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

#include "commands/attention_options.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"
#include "commands/plan_options.hpp"
#include "files/counts_file.hpp"
#include "files/placement_file.hpp"
#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/types/expert_placement.hpp"
#include "workload/workload.hpp"

// main() of the command, compiled under this name.
int switchyard_main(int argc, char** argv);

namespace switchyard::fuzz {
namespace {

using tools::Workload;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "fuzz_text: %s\n", why.c_str());
  std::abort();
}

void expect(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

bool is_one_line(std::string_view text) { return !text.empty() && text.find('\n') == std::string_view::npos; }

// Whether a text that was read as this number says so in decimal digits.
bool is_decimal(std::string_view text, uint64_t number) {
  while (text.size() > 1 && text.front() == '0') text.remove_prefix(1);
  return text == std::to_string(number);
}

// A file that holds `text`, in memory.
std::string file_with(const std::string& text) {
  static const int file = memfd_create("routing.csv", 0);
  expect(file >= 0 && ftruncate(file, 0) == 0 &&
             pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()),
         "no file in memory to read from");
  return "/proc/self/fd/" + std::to_string(file);
}

// What `run` reads a routing file into.
constexpr int kNumRanks = 4, kNumExperts = 12;

bool read_routing(const std::string& text, int top_k, Workload& workload) {
  workload.n_ranks = kNumRanks;
  workload.n_experts = kNumExperts;
  const Status status = tools::read_routing_file(file_with(text), top_k, workload);
  if (!status.ok())
    expect(status.code() == StatusCode::kInvalidArgument && status.message().starts_with("--routing") &&
               is_one_line(status.message()),
           "routing is refused with: " + status.to_string());
  return status.ok();
}

Outcome fuzz_routing(const std::string& text) {
  Workload workload;
  if (!read_routing(text, 0, workload)) return Outcome::kRefused;
  const size_t top_k = static_cast<size_t>(workload.top_k);
  expect(top_k >= 1 && top_k <= size_t{kMaxTopK}, "top_k is out of range");
  expect(
      workload.file_ids.size() == size_t{kNumRanks} && workload.tokens_per_rank.size() == size_t{kNumRanks},
      "there are ids for another number of ranks");
  std::string written;
  for (size_t rank = 0; rank < workload.file_ids.size(); ++rank) {
    const std::vector<int32_t>& ids = workload.file_ids[rank];
    expect(ids.size() == static_cast<size_t>(workload.tokens_per_rank[rank]) * top_k, "a token lacks ids");
    expect(workload.tokens_per_rank[rank] <= kMaxTokensPerRank, "a rank has too many tokens");
    for (size_t i = 0; i < ids.size(); ++i) {
      expect(ids[i] >= -1 && ids[i] < kNumExperts, "an id is out of range");
      if (i % top_k == 0) written.append(written.empty() ? "" : "\n").append(std::to_string(rank));
      written.append(",").append(std::to_string(ids[i]));
    }
  }
  Workload again;
  expect(read_routing(written, workload.top_k, again), "what was read is refused when written");
  expect(again.file_ids == workload.file_ids, "what was read is read in another way when written");
  return Outcome::kRead;
}

// Whether a reader that refuses does so with a sentence about its flag.
template <typename T>
bool is_read(const Result<T>& result, const char* flag) {
  if (!result.ok())
    expect(result.status().code() == StatusCode::kInvalidArgument &&
               result.status().message().starts_with(flag) && is_one_line(result.status().message()),
           std::string(flag) + " is refused with: " + result.status().to_string());
  return result.ok();
}

Outcome fuzz_placement(const std::string& text) {
  const Result<tools::ExpertsOfRank> placement =
      tools::read_placement_file(file_with(text), kNumRanks, kNumExperts);
  if (!is_read(placement, "--placement")) return Outcome::kRefused;
  expect(placement.value().size() == size_t{kNumRanks}, "there are experts for another number of ranks");
  expect(ExpertPlacement::from_lists(kNumExperts, placement.value()).ok(),
         "a placement is read, but is none");
  const Result<tools::ExpertsOfRank> again =
      tools::read_placement_file(file_with(tools::placement_text(placement.value())), 0, kNumExperts);
  expect(again.ok() && again.value() == placement.value(),
         "what was read is read in another way when written");
  return Outcome::kRead;
}

Outcome fuzz_counts(const std::string& text) {
  const Result<std::vector<double>> counts = tools::read_counts_file(file_with(text), kNumExperts);
  if (!is_read(counts, "--counts")) return Outcome::kRefused;
  expect(!counts.value().empty() && counts.value().size() <= size_t{kNumExperts},
         "there are counts for another number of experts");
  std::string written;
  for (const double count : counts.value()) {
    expect(count >= 0 && count <= static_cast<double>(tools::kMaxCount), "a count is out of range");
    written.append(written.empty() ? "" : ",").append(std::to_string(static_cast<int64_t>(count)));
  }
  const Result<std::vector<double>> again = tools::read_counts_file(file_with(written), kNumExperts);
  expect(again.ok() && again.value() == counts.value(), "counts are not what they say");
  return Outcome::kRead;
}

Outcome fuzz_ranks(const std::string& text) {
  const Result<std::vector<int>> ranks = tools::read_ranks(text);
  if (!ranks.ok()) {
    expect(ranks.status().message().starts_with("--ranks"),
           "ranks are refused with: " + ranks.status().message());
    return Outcome::kRefused;
  }
  expect(!ranks.value().empty() && std::is_sorted(ranks.value().begin(), ranks.value().end()) &&
             ranks.value().front() >= 1 && ranks.value().back() <= kMaxRanks,
         "numbers of ranks are out of range");
  return Outcome::kRead;
}

// Gives `value` to an option; false if it is refused.
template <typename AddOption>
bool parse_value(const std::string& value, const AddOption& add_option) {
  tools::CommandLine line("fuzz", "");
  add_option(line);
  const Status status = line.parse({"--value=" + value}).status();
  expect(status.ok() || status.message().find("--value") != std::string::npos,
         "a value is refused with: " + status.message());
  return status.ok();
}

Outcome fuzz_list(const std::string& text) {
  constexpr int kLow = 0, kHigh = 65535;
  const auto parse = [](const std::string& value, std::vector<int>& values) {
    return parse_value(
        value, [&](tools::Command& command) { command.add_list("--value", values, kLow, kHigh, "a list"); });
  };
  std::vector<int> values, again;
  if (!parse(text, values)) return Outcome::kRefused;
  std::string written;
  for (const int value : values) {
    expect(value >= kLow && value <= kHigh, "a number is out of range");
    written.append(written.empty() ? "" : ",").append(std::to_string(value));
  }
  expect(!values.empty() && parse(written, again) && again == values, "a list is not what it says");
  return Outcome::kRead;
}

Outcome fuzz_seed(const std::string& text) {
  const auto parse = [](const std::string& value, uint64_t& seed) {
    return parse_value(value, [&](tools::Command& command) { command.add_seed("--value", seed, "a seed"); });
  };
  uint64_t seed = 7, again = 8;
  if (!parse(text, seed)) return Outcome::kRefused;
  expect(is_decimal(text, seed), "a seed is read as " + std::to_string(seed));
  expect(parse(std::to_string(seed), again) && again == seed, "a seed is not what it says");
  return Outcome::kRead;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text.substr(0, text.find('\0')));
  return {std::istream_iterator<std::string>(stream), {}};
}

Outcome fuzz_attention(const std::string& text) {
  tools::CommandLine line("fuzz", "");
  tools::AttentionOptions options;
  tools::add_attention_options(line, options);
  if (!line.parse(words_of(text)).ok()) return Outcome::kRefused;
  const Status status = tools::finish_attention_options(options);
  if (!status.ok()) {
    expect(status.code() == StatusCode::kInvalidArgument && status.message().starts_with("--") &&
               is_one_line(status.message()),
           "attention is refused with: " + status.to_string());
    return Outcome::kRefused;
  }
  const reference::AttentionCase& attention_case = options.attention_case;
  expect(attention_case.num_keys().size() == attention_case.query_lens.size(), "a sequence has no length");
  expect(attention_case.num_kv_heads > 0 && attention_case.num_heads % attention_case.num_kv_heads == 0,
         "K/V heads do not divide the heads");
  for (const std::vector<int>* lengths : {&attention_case.query_lens, &attention_case.num_keys()})
    expect(std::all_of(lengths->begin(), lengths->end(), [](int length) { return length >= 0; }),
           "a length is negative");
  const double flops = attention_case.flops();
  expect(std::isfinite(flops) && flops >= 0, "there is no number of operations");
  return Outcome::kRead;
}

// What a stream of stdio is given while this object lives.
class Captured {
 public:
  explicit Captured(FILE*& stream)
      : stream_(stream), before_(stream), captured_(open_memstream(&text_, &size_)) {
    stream_ = captured_;
  }
  ~Captured() {
    stream_ = before_;
    std::fclose(captured_);
    std::free(text_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  std::string text() {
    std::fflush(captured_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  FILE*& stream_;
  FILE* before_;
  FILE* captured_;
};

struct CommandResult {
  int exit_code;
  std::string out, err;
};

CommandResult run_command(std::vector<std::string> words) {
  words.insert(words.begin(), "switchyard");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  Captured out(stdout), err(stderr);
  const int exit_code = switchyard_main(static_cast<int>(words.size()), arguments.data());
  return {exit_code, out.text(), err.text()};
}

// Every command looks at where its report is to go after all it was told, and before it begins: so none does
// begin.
constexpr const char* kNowhere = "--json=/no such folder/report";

// Whether a word may make a command write a file, or read one that never ends.
bool is_about_files(const std::string& word) {
  for (const char* flag :
       {"--json", "--dump", "--trace", "--svg", "--inputs", "--write-placement", "--placement", "--counts"})
    if (word.starts_with(flag)) return true;
  return word.find('/') != std::string::npos;
}

Outcome fuzz_command(const std::string& text) {
  std::vector<std::string> words = words_of(text);
  std::erase_if(words, is_about_files);
  words.push_back(kNowhere);
  const CommandResult result = run_command(words);
  if (result.exit_code == tools::kVerified) {
    const auto wants_help = [](const std::string& word) {
      return word.starts_with("-h") || word.starts_with("--help") || word.starts_with("--version");
    };
    expect(std::any_of(words.begin(), words.end(), wants_help) && result.err.empty(), "a command has run");
    return Outcome::kRead;
  }
  expect(result.exit_code == tools::kBadArgument || result.exit_code == tools::kFault, "a command has run");
  expect(result.out.empty(), "a command that is refused prints: " + result.out);
  expect(result.err.starts_with("switchyard") && result.err.ends_with("\n") &&
             is_one_line(std::string_view(result.err).substr(0, result.err.size() - 1)),
         "a command is refused with: " + result.err);
  return result.err.find("/no such folder/") != std::string::npos ? Outcome::kRead : Outcome::kRefused;
}

constexpr struct {
  const char* name;
  Outcome (*fuzz)(const std::string&);
} kReaders[] = {{"routing", fuzz_routing},     {"placement", fuzz_placement}, {"counts", fuzz_counts},
                {"ranks", fuzz_ranks},         {"list", fuzz_list},           {"seed", fuzz_seed},
                {"attention", fuzz_attention}, {"command", fuzz_command}};

// Each is read.
const std::string kExamples[] = {
    "routing\n0,1,2\n3,-1,11\n",
    "routing\n# rank, ids\r\n\r\n 1 , 4,  0 \r\n2,0,0",
    "routing\n0,0\n0,1\n0,2\n0,3\n1,4\n1,5\n",
    "routing\n2,0,1,2,3,4,5,6,7,8,9,10,11,0,1,2,3,4,5,6,7,8,9,10,11,0,1,2,3,4,5,6,7\n",
    "placement\n0,1,2\n3,4,5\n6,7,8\n9,10,11\n",
    "placement\n# all here\n0,1,2,3,4,5,6,7,8,9,10,11\n\n 3 , 4\r\n11",
    "placement\n0,1,2,3\n4,5,6,7\n\n8,9,10,11,0\n",
    "placement\n# ranks\r\n 11 ,10,9,8,7,6\r\n0,1,2,3,4,5\n\n\n",
    "counts\n5,0,17\n3\n",
    "counts\n# rows\n9007199254740992,1",
    "counts\n{\"tokens_per_expert\": [1, 2, 0]}",
    "counts\n[4, 0]",
    "ranks\n8..512",
    "ranks\n1,3,8..64",
    "list\n0",
    "list\n5,0,65535,17",
    "seed\n18446744073709551615",
    "seed\n0",
    "attention\n--batch 3 --seq 17 --kv-lens 600 --heads 4 --kv-heads 2 --causal --window 20",
    "attention\n--seq-lens 512,0,17 --kv-lens 3,2,1 --head-dim 64 --page-size 16 --scheduler queued --order "
    "lpt",
    "command\nrun --ranks 4 --experts 12 --top-k 2 --hidden 64 --kill 3@combine_async --deadline-ms 500",
    "command\nrun --stall 0@dispatch_wait:3600000 --tokens-per-rank 1,2,3,4,5,6,7,0 --format nvfp4",
    "command\nrun --mode fused --kill 1@combine --padding 0.5 --capacity-factor 1.25 --routing zipf",
    "command\nrun --skip-a2a --stall 7@all_reduce:0 --combine-format fp8 --seed 3 --expert-width 8",
    "command\nsimulate --faults short-stall,long-stall,kill,bad-id,overflow --ranks 2,3 --replay 77",
    "command\nattend --seq-lens 70,0,1 --causal --ctas 3",
    "command\nschedule --seq-lens 1000,0,1,300 --heads 4 --kv-heads 2 --tile-overhead 0.5 --ctas 5",
    "command\nbench ep --tokens 1,8 --protocol both --ranks 2",
    "command\nbench attention --head-dims 64,128 --lengths 32,64 --tokens 64 --kv-format fp8",
    "command\nbench formats --seed 9",
    "command\nplan --ranks 1,3..12 --tokens 5 --link 0.5 --nic 1e3 --format fp8 --message rank --layout "
    "masked",
    "command\nplan --ranks 4 --replicas 3 --experts 9 --top-k 2 --tokens 3 --routing zipf --experts-per-rank "
    "4",
    "command\nplan --published",
};

// What people and other programs write where a number or a name is asked for.
const std::string kFragments[] = {
    "",
    "0",
    "-1",
    "1",
    "-0",
    "+1",
    "010",
    "0x10",
    "1e3",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e999",
    ",",
    ",,",
    "\n",
    "\r\n",
    " ",
    "\t",
    "#",
    "@",
    ":",
    "--",
    "-",
    "=",
    "2147483647",
    "2147483648",
    "-2147483649",
    "99999999999",
    "18446744073709551616",
    "65535",
    "65536",
    "32",
    "33",
    "12",
    "4",
    "\xef\xbb\xbf",
    "\xff",
    "none",
    "all",
    "auto",
    "--help",
    "--ranks",
    "--kill",
    "--stall",
    "--seed",
    "--routing",
    "dispatch",
    "combine_wait",
    "--n-sms",
    "--faults",
    "%s%n",
    "'",
    "\"",
    std::string(1, '\0'),
};

template <typename T, size_t kSize>
const T& any_of(const T (&choices)[kSize], std::mt19937_64& random) {
  return choices[random() % kSize];
}

}  // namespace

Outcome fuzz_text(const std::string& input) {
  const size_t end = std::min(input.find('\n'), input.size());
  for (const auto& reader : kReaders)
    if (std::string_view(input).substr(0, end) == reader.name)
      return reader.fuzz(input.substr(std::min(end + 1, input.size())));
  return Outcome::kRefused;
}

std::string change_input(const std::string& input, std::mt19937_64& random) {
  const size_t begin = std::min(input.find('\n'), input.size());
  std::string head = input.substr(0, begin) + "\n", text = input.substr(std::min(begin + 1, input.size()));
  for (uint64_t changes = random() % 6; changes > 0; --changes) {
    const size_t place = random() % (text.size() + 1), length = random() % 8;
    switch (random() % 6) {
      case 0:
        text.erase(place, length);
        break;
      case 1:
        text.insert(place, any_of(kFragments, random));
        break;
      case 2:
        text.replace(place, length, any_of(kFragments, random));
        break;
      case 3:  // a part once more, somewhere else
        text.insert(random() % (text.size() + 1), text.substr(place, random() % 32));
        break;
      case 4:
        if (place < text.size()) text[place] = static_cast<char>(random());
        break;
      case 5: {  // a part of another
        const std::string& other = any_of(kExamples, random);
        text.insert(place, other.substr(random() % other.size(), random() % 24));
        break;
      }
    }
  }
  return head + text;
}

std::string draw_input(std::mt19937_64& random) { return change_input(any_of(kExamples, random), random); }

void check_that_readers_are_reached() {
  for (const std::string& example : kExamples)
    if (fuzz_text(example) != Outcome::kRead) {
      std::string why;
      if (example.starts_with("command\n")) {
        std::vector<std::string> words = words_of(example.substr(8));
        words.push_back(kNowhere);
        why = run_command(words).err;
      }
      fail("an input that is to be read is refused: " + example + "\n" + why);
    }
  const struct {
    const char* words;
    const char* flag;
  } refused[] = {{"run --kill 9@combine_async", "--kill"},
                 {"run --kill 1@nowhere", "--kill"},
                 {"run --stall 1@combine_wait", "--stall"},
                 {"simulate --faults fire", "--faults"},
                 {"attend --kv-lens 1,2,3", "--kv-lens"},
                 {"bench ep --tokens 1,,2", "--tokens"},
                 {"schedule --seq-lens 1,x", "--seq-lens"},
                 {"plan --ranks 8..4", "--ranks"},
                 {"plan --link nan", "--link"}};
  for (const auto& [words, flag] : refused) {
    std::vector<std::string> with_report = words_of(words);
    with_report.push_back(kNowhere);
    const CommandResult result = run_command(with_report);
    expect(result.exit_code == tools::kBadArgument && result.err.find(flag) != std::string::npos,
           std::string(words) + " is refused with: " + result.err);
  }
}

}  // namespace switchyard::fuzz
