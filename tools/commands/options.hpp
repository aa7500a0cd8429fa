// Options that several commands have, each read in one way.
#pragma once

#include <optional>
#include <string>
#include <type_traits>

#include "command_line.hpp"
#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/sync/wait_context.hpp"
#include "switchyard/expert_parallel.hpp"
#include "switchyard/moe_layer.hpp"

namespace switchyard::tools {

// --json [FILE]: a report for machines; to stdout, alone, where FILE is - or not given.
void add_json_option(Command& command, std::string& path);
// --target: auto, host or cuda.
void add_target_option(Command& command, std::string& target,
                       const std::string& description = "Where to run: auto takes a GPU if there is one");
// Whether there is such a target here.
Status check_target_option(const std::string& target);
// The same, and what auto means here.
Status resolve_target_option(std::string& target);
// Gives an option that was not given (zero or empty) its value for the target.
template <typename T>
void set_default(T& value, const std::string& target, std::type_identity_t<T> for_host,
                 std::type_identity_t<T> for_cuda) {
  if (value == T{}) value = target == "host" ? for_host : for_cuda;
}
TargetChoice target_choice(const std::string& target);
// --protocol; `automatic` says what that does here.
void add_protocol_option(Command& command, Protocol& protocol, const std::string& automatic);

// --layout and --alignment: where the rows of experts lie.
void add_layout_options(Command& command, RowLayout& layout, int& alignment);
void add_delivery_option(Command& command, RowDelivery& delivery);
void add_reduction_option(Command& command, bool& reduce_at_owner);
// --weights: of a MoeLayer; and whether coded ones suit its configuration.
void add_weights_option(Command& command, WeightFormat& weights);
Status check_weights_option(const MoeLayerConfig& config);
// --gate-up-start: of a MoeLayer.
void add_gate_up_start_option(Command& command, GateUpStart& start);
Status check_gate_up_start(GateUpStart start, TokenFormatKind format);
const char* name_of(GateUpStart start);
// --combine-start: of a MoeLayer; and whether it suits these.
void add_combine_start_option(Command& command, CombineStart& start);
Status check_combine_start(CombineStart start, Protocol protocol, CombineFormat format);
// --p2p-world-size: the ranks of a group.
void add_groups_option(Command& command, int& p2p_world_size);
// Whether it suits --ranks and, where the all-to-all is skipped, --skip-a2a.
Status check_groups_option(int p2p_world_size, int n_ranks, bool skips_all_to_all);

// --format: what tokens are sent as.
void add_format_option(Command& command, TokenFormatKind& format);
// The same, or any: nothing.
void add_format_option(Command& command, std::optional<TokenFormatKind>& format);

// --combine-format: what expert rows are sent back as.
void add_combine_format_option(Command& command, CombineFormat& format);
// The same, or any: nothing.
void add_combine_format_option(Command& command, std::optional<CombineFormat>& format);
// As the options are given.
template <typename Format>
std::string name_of(const std::optional<Format>& format) {
  return format ? to_string(*format) : "any";
}
// What the library says of a configuration, with the flags of its fields.
Status with_flags(const Status& status);
// The same for these names, each with its flag.
Status with_flags(const Status& status, const std::vector<std::pair<const char*, const char*>>& flags);
// Whether --hidden suits the format.
Status check_hidden_option(int hidden, TokenFormatKind format, CombineFormat combine_format);

}  // namespace switchyard::tools
