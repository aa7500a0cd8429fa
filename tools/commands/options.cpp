#include "options.hpp"

#include <cctype>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "switchyard/detail/device/device.hpp"

namespace switchyard::tools {

void add_json_option(Command& command, std::string& path) {
  command.add_output("--json", path, "Write the report as JSON to FILE, or alone to stdout with -");
}

void add_target_option(Command& command, std::string& target, const std::string& description) {
  command.add_name("--target", target, {"auto", "host", "cuda"}, description);
}

Status check_target_option(const std::string& target) {
  if (target != "cuda" || num_cuda_devices() > 0) return Status();
  return invalid_argument("--target: cuda cannot run here: %s", why_no_cuda().c_str());
}

Status resolve_target_option(std::string& target) {
  SWITCHYARD_RETURN_IF_ERROR(check_target_option(target));
  if (target == "auto") target = num_cuda_devices() > 0 ? "cuda" : "host";
  return Status();
}

TargetChoice target_choice(const std::string& target) {
  return target == "host"   ? TargetChoice::kHost
         : target == "cuda" ? TargetChoice::kCuda
                            : TargetChoice::kAuto;
}

namespace {

template <typename T>
using Choices = std::vector<std::pair<std::string, T>>;

Choices<TokenFormatKind> format_choices() {
  Choices<TokenFormatKind> choices;
  for (const TokenFormatKind kind : kTokenFormatKinds) choices.emplace_back(to_string(kind), kind);
  return choices;
}
// "bf16, fp8, .. or mxfp4-tiled".
std::string format_names() {
  std::string names;
  for (const TokenFormatKind kind : kTokenFormatKinds) {
    if (!names.empty()) names += kind == *std::rbegin(kTokenFormatKinds) ? " or " : ", ";
    names += to_string(kind);
  }
  return names;
}
const Choices<CombineFormat> kCombineFormats = {{"bf16", CombineFormat::kBF16}, {"fp8", CombineFormat::kFP8}};

// The same, or any of them.
template <typename T>
Choices<std::optional<T>> or_any(const Choices<T>& choices) {
  Choices<std::optional<T>> with_any(choices.begin(), choices.end());
  with_any.emplace_back("any", std::nullopt);
  return with_any;
}

}  // namespace

void add_format_option(Command& command, TokenFormatKind& format) {
  command.add_choice("--format", format, format_choices(), "What tokens are sent as: " + format_names());
}
void add_format_option(Command& command, std::optional<TokenFormatKind>& format) {
  command.add_choice(
      "--format", format, or_any(format_choices()),
      "What tokens are sent as: a format of `switchyard run`, or any, which draws one by seed");
}

void add_combine_format_option(Command& command, CombineFormat& format) {
  command.add_choice("--combine-format", format, kCombineFormats,
                     "What expert rows are sent back as: bf16, or fp8 with a scale per 128");
}
void add_combine_format_option(Command& command, std::optional<CombineFormat>& format) {
  command.add_choice("--combine-format", format, or_any(kCombineFormats),
                     "What expert rows are sent back as: bf16, fp8, or any, which draws one by seed");
}

Status with_flags(const Status& status) {
  return with_flags(status, {{"n_sms", "--n-sms"},
                             {"n_experts", "--experts"},
                             {"max_tokens_per_rank", "--tokens"},
                             {"top_k", "--top-k"},
                             {"hidden", "--hidden"},
                             {"timeout_ns", "--deadline-ms"},
                             {"capacity_factor", "--capacity-factor"},
                             {"num_threads", "--num-threads"},
                             {"protocol is", "--protocol is"},
                             {"row_layout", "--layout"},
                             {"row_delivery", "--delivery"},
                             {"reduce_at_owner", "--reduce-at-owner"},
                             {"row_alignment", "--alignment"},
                             {"dispatch_format", "--format"},
                             {"combine_format", "--combine-format"},
                             {"shared_expert", "--shared-expert"},
                             {"allreduce_world_size", "--allreduce-world-size"},
                             {"p2p_world_size", "--p2p-world-size"},
                             {"enable_trace", "--trace"},
                             {"gate_up_start", "--gate-up-start"},
                             {"combine_start", "--combine-start"},
                             {"steps_in_flight", "--in-flight"}});
}

Status with_flags(const Status& status, const std::vector<std::pair<const char*, const char*>>& flags) {
  if (status.ok()) return status;
  std::string message = status.message();
  for (const auto& [field, flag] : flags) {
    const auto is_letter = [&](size_t position) {
      return position < message.size() &&
             (std::isalnum(static_cast<unsigned char>(message[position])) != 0 || message[position] == '_');
    };
    for (size_t position = message.find(field); position != std::string::npos;) {
      const size_t end = position + std::string_view(field).size();
      const bool is_word =
          !(position > 0 && (is_letter(position - 1) || message[position - 1] == '-')) && !is_letter(end);
      if (is_word) message.replace(position, end - position, flag);
      position = message.find(field, position + std::string_view(is_word ? flag : field).size());
    }
  }
  return Status(status.code(), message);
}

void add_layout_options(Command& command, RowLayout& layout, int& alignment) {
  command.add_choice(
      "--layout", layout,
      {{"ragged", RowLayout::kRagged}, {"masked", RowLayout::kMasked}, {"per-rank", RowLayout::kPerRank}},
      "Rows of experts one behind the other, with memory for all of each, or a token once on\n"
      "each rank: ragged, masked, per-rank");
  command.add_number("--alignment", alignment, 1, 256, "The rows of every expert begin at a multiple of it");
}

void add_delivery_option(Command& command, RowDelivery& delivery) {
  command.add_choice("--delivery", delivery,
                     {{"automatic", RowDelivery::kAutomatic},
                      {"sender", RowDelivery::kSender},
                      {"receiver", RowDelivery::kReceiver}},
                     "Who writes the rows of a token that has several on a rank: automatic (by where ranks\n"
                     "are), sender, or receiver, so that a token crosses once");
}

void add_reduction_option(Command& command, bool& reduce_at_owner) {
  command.add_flag("--reduce-at-owner", reduce_at_owner,
                   "A rank sums up what its experts made of a token, and one row goes back");
}

void add_weights_option(Command& command, WeightFormat& weights) {
  Choices<WeightFormat> choices;
  for (const WeightFormat choice :
       {WeightFormat::kAsRows, WeightFormat::kMXFP4, WeightFormat::kNVFP4, WeightFormat::kMXFP8})
    choices.emplace_back(to_string(choice), choice);
  command.add_choice("--weights", weights, choices,
                     "What the experts' weights hold: what rows do, or codes that fast matmuls decode to\n"
                     "bf16, as they do with rows: as-rows, mxfp4, nvfp4, mxfp8");
}

Status check_weights_option(const MoeLayerConfig& config) {
  if (!is_coded(config.weights)) return Status();
  const ExpertParallelConfig& ep = config.ep;
  const char* weights = to_string(config.weights);
  const int multiple = inner_multiple_of(config.weights);
  if (ep.hidden % multiple != 0)
    return invalid_argument("--hidden: %d must be a multiple of %d with --weights %s", ep.hidden, multiple,
                            weights);
  if (config.expert_width % multiple != 0)
    return invalid_argument("--expert-width: %d must be a multiple of %d with --weights %s",
                            config.expert_width, multiple, weights);
  if (config.gate_up_start != GateUpStart::kBehindDispatch)
    return invalid_argument("--gate-up-start: with-rows needs --weights as-rows, not %s", weights);
  if (ep.combine_start != CombineStart::kBehindExperts)
    return invalid_argument("--combine-start: with-experts needs --weights as-rows, not %s", weights);
  const bool is_direct =
      ep.protocol == Protocol::kDirect || ep.reduce_at_owner || ep.row_delivery == RowDelivery::kReceiver;
  if (ep.combine_format != CombineFormat::kBF16 && is_direct)
    return invalid_argument(
        "--combine-format: %s needs --protocol slotted with --weights %s, whose matmuls write bf16",
        to_string(ep.combine_format), weights);
  return Status();
}

void add_gate_up_start_option(Command& command, GateUpStart& start) {
  command.add_choice(
      "--gate-up-start", start,
      {{"behind-dispatch", GateUpStart::kBehindDispatch}, {"with-rows", GateUpStart::kWithRows}},
      "When the first matmul of the experts starts: when all rows are there, or expert by\n"
      "expert as their rows come (needs fast matmuls): behind-dispatch, with-rows");
}

Status check_gate_up_start(GateUpStart start, TokenFormatKind format) {
  if (start == GateUpStart::kBehindDispatch || format == TokenFormatKind::kBF16 ||
      format == TokenFormatKind::kFP8ByRow)
    return Status();
  return invalid_argument("--gate-up-start: with-rows needs --format bf16 or fp8-by-row, not %s",
                          to_string(format));
}

const char* name_of(GateUpStart start) {
  return start == GateUpStart::kWithRows ? "with-rows" : "behind-dispatch";
}

void add_combine_start_option(Command& command, CombineStart& start) {
  command.add_choice(
      "--combine-start", start,
      {{"behind-experts", CombineStart::kBehindExperts}, {"with-experts", CombineStart::kWithExperts}},
      "When combine starts: when all experts have ended, or with them, taking each expert's\n"
      "rows when they are complete (needs fast matmuls): behind-experts, with-experts");
}

Status check_combine_start(CombineStart start, Protocol protocol, CombineFormat format) {
  if (start == CombineStart::kBehindExperts) return Status();
  if (protocol == Protocol::kSlotted)
    return invalid_argument("--combine-start: with-experts needs --protocol direct, not slotted");
  if (format != CombineFormat::kBF16)
    return invalid_argument("--combine-start: with-experts needs --combine-format bf16, not %s",
                            to_string(format));
  return Status();
}

void add_groups_option(Command& command, int& p2p_world_size) {
  command.add_number("--p2p-world-size", p2p_world_size, 0, kMaxRanks,
                     "Ranks of a group, which store into each other's memory; rows go over a wire\n"
                     "between groups. It must divide --ranks; 0: one group");
}

Status check_groups_option(int p2p_world_size, int n_ranks, bool skips_all_to_all) {
  if (p2p_world_size == 0) return Status();
  if (n_ranks % p2p_world_size != 0)
    return invalid_argument("--p2p-world-size: %d must divide --ranks (%d)", p2p_world_size, n_ranks);
  if (skips_all_to_all && p2p_world_size != n_ranks)
    return invalid_argument("--p2p-world-size: %d must be 0 or --ranks (%d) with --skip-a2a", p2p_world_size,
                            n_ranks);
  return Status();
}

Status check_hidden_option(int hidden, TokenFormatKind format, CombineFormat combine_format) {
  const std::pair<const char*, TokenFormatKind> formats[] = {{"--format", format},
                                                             {"--combine-format", kind_of(combine_format)}};
  for (const auto& [flag, kind] : formats)
    if (const int multiple = info_of(kind).hidden_multiple(); hidden % multiple != 0)
      return invalid_argument("--hidden: %d must be a multiple of %d with %s %s", hidden, multiple, flag,
                              to_string(kind));
  return Status();
}

void add_protocol_option(Command& command, Protocol& protocol, const std::string& automatic) {
  command.add_choice(
      "--protocol", protocol,
      {{"automatic", Protocol::kAutomatic}, {"slotted", Protocol::kSlotted}, {"direct", Protocol::kDirect}},
      "How rows travel: slotted, direct, or automatic, which " + automatic);
}

}  // namespace switchyard::tools
