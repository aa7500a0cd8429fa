#include "plan_options.hpp"

#include <algorithm>

#include "files/counts_file.hpp"
#include "files/output.hpp"
#include "files/placement_file.hpp"
#include "options.hpp"
#include "workload/workload.hpp"

namespace switchyard::tools {
namespace {

constexpr double kLeastGbS = 0.001, kMostGbS = 1e6, kMostLatencyUs = 1e6;
const std::vector<std::pair<std::string, PlanMessage>> kMessages = {
    {"expert", PlanMessage::kExpert}, {"rank", PlanMessage::kRank}, {"node", PlanMessage::kNode}};

bool is_name(const std::string& routing) {
  return routing == "uniform" || routing == "zipf" || routing == "one-expert";
}

bool read_rank_number(const std::string& text, int& number) {
  return is_whole_number(text, number) && number >= 1 && number <= kMaxRanks;
}

// What knows of one number of ranks only.
Status check_one_number_of_ranks(const PlanOptions& options) {
  const char* who = !is_name(options.routing)    ? "a --routing file"
                    : !options.placement.empty() ? "--placement"
                    : options.plans_placement()  ? "--replicas or --write-placement"
                                                 : nullptr;
  if (who == nullptr || options.ranks.size() == 1) return Status();
  return invalid_argument("--ranks: %s are %zu numbers of ranks; %s needs one", options.ranks_text.c_str(),
                          options.ranks.size(), who);
}

Status read_routing(PlanOptions& options) {
  if (is_name(options.routing)) return Status();
  if (options.has_tokens)
    return invalid_argument("--tokens: a --routing file says how many tokens each rank has");
  Workload workload;
  workload.n_ranks = options.ranks.front();
  workload.n_experts = options.shape.n_experts;
  SWITCHYARD_RETURN_IF_ERROR(
      read_routing_file(options.routing, options.has_top_k ? options.shape.top_k : 0, workload));
  options.shape.top_k = workload.top_k;
  options.shape.max_tokens_per_rank = workload.max_tokens_per_rank();
  options.file_ids = std::move(workload.file_ids);
  return Status();
}

Status read_counts(PlanOptions& options) {
  if (options.counts.empty()) return Status();
  Result<std::vector<double>> counts = read_counts_file(options.counts, kMaxExperts);
  if (!counts.ok()) return counts.status();
  const int num_counts = static_cast<int>(counts.value().size());
  if (options.has_experts && num_counts != options.shape.n_experts)
    return invalid_argument("--counts: %s has %d counts; it must have one for each expert (--experts %d)",
                            options.counts.c_str(), num_counts, options.shape.n_experts);
  options.shape.n_experts = num_counts;
  options.count_of_expert = std::move(counts).value();
  return Status();
}

Status read_placement(PlanOptions& options) {
  if (options.placement.empty()) return Status();
  Result<ExpertsOfRank> experts =
      read_placement_file(options.placement, options.ranks.front(), options.shape.n_experts);
  if (!experts.ok()) return experts.status();
  options.experts_of_rank = std::move(experts).value();
  return Status();
}

Status check_shape(const PlanOptions& options) {
  const PlanShape& shape = options.shape;
  const Cluster& cluster = options.cluster;
  if (shape.hidden % kHiddenMultiple != 0)
    return invalid_argument("--hidden: %d must be a multiple of %d", shape.hidden, kHiddenMultiple);
  SWITCHYARD_RETURN_IF_ERROR(check_hidden_option(shape.hidden, shape.format, shape.combine_format));
  if (is_name(options.routing) && options.routing != "one-expert" && shape.top_k > shape.n_experts)
    return invalid_argument("--top-k: %d must be 1..%d: a token's experts differ (--experts)", shape.top_k,
                            shape.n_experts);
  if (cluster.ranks_per_node % cluster.ranks_per_device != 0)
    return invalid_argument("--ranks-per-device: %d must divide --ranks-per-node (%d)",
                            cluster.ranks_per_device, cluster.ranks_per_node);
  const bool has_rows =
      shape.message == PlanMessage::kExpert || shape.combine_message == PlanMessage::kExpert;
  if (shape.layout == PlanLayout::kPerRank && has_rows)
    return invalid_argument(
        "--layout: per-rank has a token once on each rank; --message and --combine-message must be rank or "
        "node, and are %s and %s",
        to_string(shape.message), to_string(shape.combine_message));
  return Status();
}

void add_cluster_options(Command& command, PlanOptions& options) {
  Cluster& cluster = options.cluster;
  command.add_number("--ranks-per-node", cluster.ranks_per_node, 1, kMaxRanks,
                     "Ranks that links connect; the last node may have fewer");
  command.add_number("--ranks-per-device", cluster.ranks_per_device, 1, kMaxRanks,
                     "Ranks that share a memory, as in a benchmark on one GPU");
  command.add_fraction("--link", cluster.link_gb_s, kLeastGbS, kMostGbS,
                       "GB/s of a rank's link inside a node, each way");
  command.add_fraction("--nic", cluster.nic_gb_s, kLeastGbS, kMostGbS,
                       "GB/s of a rank's NIC between nodes, each way");
  command.add_fraction("--latency", cluster.link_latency_us, 0, kMostLatencyUs,
                       "Microseconds that a link adds, one way");
  command.add_fraction("--nic-latency", cluster.nic_latency_us, 0, kMostLatencyUs,
                       "Microseconds that a NIC adds, one way");
}

void add_shape_options(Command& command, PlanOptions& options) {
  PlanShape& shape = options.shape;
  command.add_number("--hidden", shape.hidden, kHiddenMultiple, kMaxHidden,
                     "Elements of a token, a multiple of 8");
  command.add_number("--n-sms", shape.n_sms, 1, 65535, "Blocks of each launch, per rank");
  add_protocol_option(command, shape.protocol, "chooses as the library does");
  add_format_option(command, shape.format);
  add_combine_format_option(command, shape.combine_format);
  command.add_choice(
      "--layout", shape.layout,
      {{"ragged", PlanLayout::kRagged}, {"masked", PlanLayout::kMasked}, {"per-rank", PlanLayout::kPerRank}},
      "How dispatched rows lie: ragged, masked, or per-rank, each token once");
  command.add_choice("--message", shape.message, kMessages,
                     "What dispatch sends of a token: a message per expert, per rank or per node");
  command.add_choice("--combine-message", shape.combine_message, kMessages,
                     "What comes back: a row per expert, or one per rank or per node, summed up there");
}

}  // namespace

Result<std::vector<int>> read_ranks(const std::string& text) {
  const auto refuse = [&] {
    return invalid_argument(
        "--ranks: '%s' must be numbers 1..%d, ranges as 8..512, or several of these with "
        "a comma between each two",
        text.c_str(), kMaxRanks);
  };
  std::vector<int> ranks;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const size_t dots = std::min(part.find(".."), part.size());
    int first = 0, last = 0;
    if (!read_rank_number(part.substr(0, dots), first)) return refuse();
    if (!read_rank_number(dots == part.size() ? part : part.substr(dots + 2), last) || last < first)
      return refuse();
    for (int number = first; number <= last; number *= 2) ranks.push_back(number);
    begin = end + 1;
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::function<void(PlanOptions&)> add_plan_options(Command& command, PlanOptions& options) {
  const Option ranks = command
                           .add_text("--ranks", options.ranks_text,
                                     "Ranks: a number, a list as 8,12,64, or a range that doubles as 8..512")
                           .show_type("LIST");
  const Option tokens = command.add_number("--tokens", options.shape.max_tokens_per_rank, 0,
                                           kMaxTokensPerRank, "Tokens of every rank");
  const Option experts =
      command.add_number("--experts", options.shape.n_experts, 1, kMaxExperts, "Experts of the model");
  const Option top_k =
      command.add_number("--top-k", options.shape.top_k, 1, kMaxTopK, "Experts of each token");
  add_cluster_options(command, options);
  add_shape_options(command, options);
  const Option routing =
      command.add_text("--routing", options.routing,
                       "uniform, zipf (low experts are popular), one-expert (every id is 0),\n"
                       "or a CSV file with one token's ids per line: rank,id,id,.. (-1 is padding)");
  Option counts =
      command.add_text("--counts", options.counts,
                       "Draw experts as often as FILE says: a CSV or JSON list of tokens per expert");
  counts.show_type("FILE").excludes(routing);
  Option placement = command.add_text("--placement", options.placement,
                                      "Place experts as FILE says: a line per rank with its experts; even if "
                                      "not given");
  placement.show_type("FILE");
  Option replicas = command.add_number("--replicas", options.replicas, 0, kMaxExperts,
                                       "Plan a placement with so many replicas of popular experts");
  replicas.excludes(placement);
  command.add_number("--experts-per-rank", options.experts_per_rank, 0, kMaxExperts,
                     "The most that a rank may hold of a placement; 0: as few as hold all");
  Option write_placement = command.add_text("--write-placement", options.write_placement,
                                            "Write the planned placement to FILE, for `run --placement`, or "
                                            "alone to stdout with -");
  write_placement.show_type("FILE").excludes(placement);
  command.add_seed("--seed", options.seed, "The routing follows from it");
  Option published = command.add_flag("--published", options.shows_published,
                                      "Show what the model says beside what was measured and published");
  for (const Option& other : {ranks, routing, counts, placement, replicas, write_placement})
    published.excludes(other);
  command
      .add_text("--svg", options.svg,
                "Draw times over ranks, or the placement, to FILE, or alone to stdout with -")
      .show_type("FILE");
  add_json_option(command, options.json);
  return [=](PlanOptions& given) {
    given.has_tokens = tokens.is_given();
    given.has_top_k = top_k.is_given();
    given.has_experts = experts.is_given();
    given.has_replicas = replicas.is_given();
  };
}

Status finish_plan_options(PlanOptions& options) {
  Result<std::vector<int>> ranks = read_ranks(options.ranks_text);
  if (!ranks.ok()) return ranks.status();
  options.ranks = std::move(ranks).value();
  SWITCHYARD_RETURN_IF_ERROR(check_one_number_of_ranks(options));
  SWITCHYARD_RETURN_IF_ERROR(read_counts(options));
  SWITCHYARD_RETURN_IF_ERROR(read_routing(options));
  SWITCHYARD_RETURN_IF_ERROR(read_placement(options));
  SWITCHYARD_RETURN_IF_ERROR(check_shape(options));
  if (options.shows_published && !options.svg.empty())
    return invalid_argument("--svg: --published has no picture");
  return check_output_names(
      {{"--json", options.json}, {"--svg", options.svg}, {"--write-placement", options.write_placement}});
}

}  // namespace switchyard::tools
