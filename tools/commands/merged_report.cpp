#include "merged_report.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "rank_processes.hpp"

namespace switchyard::tools {
namespace {

using Json = nlohmann::ordered_json;

// Every process counts the bytes of all ranks from the routing.
reference::PhaseTraffic phase_of(const Json& json) {
  return {.to_other_ranks = json.at("bytes_to_other_ranks").get<std::vector<uint64_t>>(),
          .to_other_groups = json.at("bytes_to_other_groups").get<std::vector<uint64_t>>(),
          .least_to_other_ranks = json.at("least_bytes_to_other_ranks").get<uint64_t>()};
}

void merge(int rank, const Json& json, RunReport& report) {
  const auto at = static_cast<size_t>(rank);
  const auto rows = json.at("rows_per_rank").get<std::vector<uint64_t>>();
  report.rows_per_rank.resize(rows.size());
  report.rows_per_rank.at(at) = rows.at(at);
  report.ranks.push_back(rank);
  report.max_abs_error = std::max(report.max_abs_error, json.at("max_abs_error").get<double>());
  report.bytes_moved = json.at("bytes_moved").get<uint64_t>();
  if (json.contains("traffic"))
    report.traffic = {phase_of(json.at("traffic").at("dispatch")),
                      phase_of(json.at("traffic").at("combine"))};
  if (json.contains("combine_error")) {
    report.combine_error = std::max(report.combine_error, json.at("combine_error").get<double>());
    report.squared_combine_error += json.at("squared_combine_error").get<double>();
    report.squared_output += json.at("squared_output").get<double>();
  }
  size_t i = 0;
  for (const auto& [name, microseconds] : json.at("phases").items()) {
    if (i == report.phases.size()) report.phases.push_back({name, {}});
    const auto nanoseconds = static_cast<uint64_t>(microseconds.get<double>() * 1e3);
    report.phases[i++].of_rank.push_back({0, nanoseconds});
  }
  report.memory_per_rank = json.at("memory_per_rank").get<uint64_t>();
  report.device = json.at("device").get<std::string>();
  report.target =
      json.at("target").get<std::string>() == to_string(Target::kCuda) ? Target::kCuda : Target::kHost;
  report.n_sms = json.at("n_sms").get<int>();
  report.protocol = json.at("protocol").get<std::string>() == to_string(Protocol::kDirect)
                        ? Protocol::kDirect
                        : Protocol::kSlotted;
  report.protocol_reason = json.at("protocol_reason").get<std::string>();
  report.p2p_world_size = json.at("p2p_world_size").get<int>();
  report.row_delivery = json.at("delivery").get<std::string>() == to_string(RowDelivery::kReceiver)
                            ? RowDelivery::kReceiver
                            : RowDelivery::kSender;
  if (json.at("verified").get<bool>() || !report.verified) return;
  report.verified = false;
  report.first_difference = json.at("first_difference").get<std::string>();
}

std::vector<std::byte> to_bytes(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}
std::string to_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Status merge_report(int rank, const std::string& json, RunReport& report) {
  try {
    merge(rank, Json::parse(json), report);
  } catch (const std::exception& error) {
    return internal_error("the report of rank %d cannot be read: %s", rank, error.what());
  }
  return Status();
}

ExitCode print_errors(const std::vector<RankOutcome>& outcomes) {
  ExitCode code = kVerified;
  const std::string& first_errors = outcomes.front().errors;
  const bool all_say_the_same =
      std::all_of(outcomes.begin(), outcomes.end(),
                  [&](const RankOutcome& outcome) { return outcome.errors == first_errors; });
  if (all_say_the_same) std::fputs(first_errors.c_str(), stderr);
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const RankOutcome& outcome = outcomes[rank];
    std::istringstream lines(all_say_the_same ? "" : outcome.errors);
    for (std::string line; std::getline(lines, line);)
      std::fprintf(stderr, "rank %zu: %s\n", rank, line.c_str());
    if (outcome.was_ended)
      std::fprintf(stderr, "rank %zu: did not end when another rank had failed, and was ended\n", rank);
    else if (outcome.signal != 0)
      std::fprintf(stderr, "rank %zu: ended by signal %d\n", rank, outcome.signal);
    // Codes that the command does not have are those of a program that could not be run.
    const bool has_failed = outcome.signal != 0 || outcome.exit_code > kFault;
    code = std::max(code, has_failed ? kFault : static_cast<ExitCode>(outcome.exit_code));
  }
  return code;
}

Result<ExitCode> merge_outcomes(const std::vector<RankOutcome>& outcomes, RunReport& report) {
  const ExitCode code = print_errors(outcomes);
  if (code > kNotVerified) return code;
  for (size_t rank = 0; rank < outcomes.size(); ++rank)
    SWITCHYARD_RETURN_IF_ERROR(merge_report(static_cast<int>(rank), outcomes[rank].output, report));
  return code;
}

Result<std::vector<std::string>> gather_texts(const World& world, const std::string& mine) {
  const Result<std::vector<std::vector<std::byte>>> all = world.all_gather(to_bytes(mine));
  if (!all.ok()) return all.status();
  std::vector<std::string> texts;
  for (const std::vector<std::byte>& bytes : all.value()) texts.push_back(to_text(bytes));
  return texts;
}

Status check_same_options(const World& world, const std::vector<std::string>& options_that_may_differ) {
  std::vector<std::string> arguments = own_arguments_without(options_that_may_differ);
  arguments.erase(arguments.begin());  // the program
  std::string mine;
  for (const std::string& argument : arguments)
    mine += (mine.empty() ? "" : argument.rfind("--", 0) == 0 ? "\n" : " ") + argument;
  const Result<std::vector<std::string>> all = gather_texts(world, mine);
  if (!all.ok()) return all.status();
  const auto options_of = [&](size_t rank) {
    std::istringstream text(all.value()[rank]);
    std::set<std::string> options;
    for (std::string line; std::getline(text, line);) options.insert(line);
    return options;
  };
  const std::set<std::string> of_first = options_of(0);
  for (size_t rank = 1; rank < all.value().size(); ++rank) {
    const std::set<std::string> of_rank = options_of(rank);
    if (of_rank == of_first) continue;
    const auto only_in = [](const std::set<std::string>& options, const std::set<std::string>& others) {
      std::string found;
      for (const std::string& option : options)
        if (!others.contains(option)) found += (found.empty() ? "" : " ") + option;
      return found.empty() ? std::string("nothing else") : found;
    };
    return invalid_argument("--rank: rank %zu was started with %s, and rank 0 with %s", rank,
                            only_in(of_rank, of_first).c_str(), only_in(of_first, of_rank).c_str());
  }
  return Status();
}

Status gather_reports(const World& world, const std::string& json, RunReport& report) {
  const Result<std::vector<std::string>> all = gather_texts(world, json);
  if (!all.ok()) return all.status();
  for (size_t rank = 0; rank < all.value().size(); ++rank)
    SWITCHYARD_RETURN_IF_ERROR(merge_report(static_cast<int>(rank), all.value()[rank], report));
  return Status();
}

Status first_error_of(const World& world, const Status& mine) {
  // The code, as a letter, and the message.
  const std::string own = static_cast<char>('a' + static_cast<int>(mine.code())) + mine.message();
  const Result<std::vector<std::string>> all = gather_texts(world, own);
  if (!all.ok()) return all.status();
  const bool all_say_the_same =
      std::all_of(all.value().begin(), all.value().end(),
                  [&](const std::string& text) { return text == all.value().front(); });
  for (size_t rank = 0; rank < all.value().size(); ++rank) {
    const std::string& text = all.value()[rank];
    const auto code = static_cast<StatusCode>(text.front() - 'a');
    if (code == StatusCode::kOk) continue;
    const std::string prefix = all_say_the_same ? "" : "rank " + std::to_string(rank) + ": ";
    return Status(code, prefix + text.substr(1));
  }
  return Status();
}

Status finish_launched_options(const World& world, bool ranks_given, int& n_ranks,
                               const std::function<Status()>& finish) {
  const int given = n_ranks;
  n_ranks = world.n_ranks();
  if (ranks_given && given != n_ranks)
    return first_error_of(
        world, invalid_argument("--ranks: %d given; the launcher has started %d processes", given, n_ranks));
  return first_error_of(world, finish());
}

}  // namespace switchyard::tools
