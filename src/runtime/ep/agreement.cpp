#include "agreement.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace switchyard {
namespace {

bool is_alone(const Transport& transport) { return transport.num_local_ranks() == transport.n_ranks(); }

// FNV-1a: tells configurations apart whose values are too long to send.
int64_t hash_of(const void* bytes, size_t size) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const uint8_t*>(bytes)[i]) * 1099511628211u;
  return static_cast<int64_t>(hash);
}

int64_t identity_of(const OwnFormat* format, int hidden) {
  if (format == nullptr || format->layout == nullptr) return 0;
  const FormatLayout layout = format->layout(hidden);
  return hash_of(layout.name, std::strlen(layout.name)) ^ layout.encoded_bytes;
}

const char* to_string(SharedExpert shared) { return shared == SharedExpert::kNone ? "none" : "fused"; }
const char* to_string(Routing routing) {
  return routing == Routing::kAllToAll ? "all-to-all" : "skip-all-to-all";
}

// A value of the configuration, by its name. `text` says what people call the value; null: it is a number.
struct ConfigField {
  const char* name;
  int64_t value;
  std::string (*text)(int64_t value) = nullptr;

  std::string to_text(int64_t of) const { return text != nullptr ? text(of) : std::to_string(of); }
};

template <typename Enum>
ConfigField named_field(const char* name, Enum value) {
  return {name, static_cast<int64_t>(value),
          [](int64_t of) { return std::string(to_string(static_cast<Enum>(of))); }};
}

int64_t hash_of(const ExpertPlacement& placement) {
  std::vector<int> numbers;
  for (const std::vector<int>& experts : placement.experts_of_rank()) {
    numbers.insert(numbers.end(), experts.begin(), experts.end());
    numbers.push_back(-1);
  }
  return hash_of(numbers.data(), numbers.size() * sizeof(int));
}

std::vector<ConfigField> fields_of(const ExpertParallelConfig& config) {
  const std::vector<float>& scales = config.expert_input_scales;
  return {{"n_experts", config.n_experts},
          {"top_k", config.top_k},
          {"hidden", config.hidden},
          {"max_tokens_per_rank", config.max_tokens_per_rank},
          {"n_sms", config.n_sms},
          {"num_threads", config.num_threads},
          {"timeout_ns", static_cast<int64_t>(config.timeout_ns)},
          {"first_timeout_ns", static_cast<int64_t>(config.first_timeout_ns)},
          {"dependent_launch", config.dependent_launch},
          named_field("protocol", config.protocol),
          named_field("row_layout", config.row_layout),
          {"row_alignment", config.row_alignment},
          {"max_rows_per_expert", config.max_rows_per_expert},
          {"row_sets", config.row_sets},
          named_field("row_delivery", config.row_delivery),
          {"reduce_at_owner", config.reduce_at_owner},
          named_field("combine_start", config.combine_start),
          named_field("dispatch_format", config.dispatch_format),
          named_field("combine_format", config.combine_format),
          named_field("shared_expert", config.shared_expert),
          named_field("routing", config.routing),
          {"p2p_world_size", config.p2p_world_size},
          {"allreduce_world_size", config.allreduce_world_size},
          {"input_scale (as bits)", std::bit_cast<int32_t>(config.input_scale)},
          {"capacity_factor (in millionths)", std::llround(config.capacity_factor * 1e6)},
          {"own_format (as a hash)", identity_of(config.own_format, config.hidden)},
          {"own_epilogue (0: none)", config.own_epilogue != nullptr},
          {"expert_input_scales (as a hash)",
           scales.empty() ? 0 : hash_of(scales.data(), scales.size() * sizeof(float))},
          {"placement (as a hash)", config.placement ? hash_of(*config.placement) : 0},
          {"max_experts_per_rank", config.max_experts_per_rank},
          {"counts_experts", config.counts_experts},
          {"steps_in_flight", config.steps_in_flight}};
}

Status check_fields(const std::vector<ConfigField>& mine, int my_rank, const std::vector<int64_t>& theirs,
                    int rank) {
  for (size_t i = 0; i < mine.size() && i < theirs.size(); ++i)
    if (mine[i].value != theirs[i])
      return invalid_argument("rank %d has another configuration than rank %d: %s is %s there and %s here",
                              rank, my_rank, mine[i].name, mine[i].to_text(theirs[i]).c_str(),
                              mine[i].to_text(mine[i].value).c_str());
  if (mine.size() == theirs.size()) return Status();
  return invalid_argument("rank %d has another configuration than rank %d: %zu fields there and %zu here",
                          rank, my_rank, theirs.size(), mine.size());
}

// What processes send each other begins with a byte that says which of the two it is.
enum class Sent : uint8_t { kConfiguration, kStatus };

Bytes to_bytes(const std::vector<ConfigField>& fields) {
  Bytes bytes(1 + fields.size() * sizeof(int64_t));
  bytes[0] = static_cast<std::byte>(Sent::kConfiguration);
  for (size_t i = 0; i < fields.size(); ++i)
    std::memcpy(&bytes[1 + i * sizeof(int64_t)], &fields[i].value, sizeof(int64_t));
  return bytes;
}

// Whether `theirs` is what this rank has sent, too: all processes make the same calls.
Status check_sent(const Bytes& theirs, Sent mine, int my_rank, int rank) {
  if (!theirs.empty() && theirs[0] == static_cast<std::byte>(mine)) return Status();
  return invalid_argument(
      "rank %d makes another call than rank %d, such as the create() of another object; the processes of a "
      "world make the same ones",
      rank, my_rank);
}

}  // namespace

Status check_same(const ExpertParallelConfig& mine, int my_rank, const ExpertParallelConfig& theirs,
                  int rank) {
  if (mine.own_format != theirs.own_format || mine.own_epilogue != theirs.own_epilogue)
    return invalid_argument("rank %d has another configuration than rank %d: %s differs", rank, my_rank,
                            mine.own_format != theirs.own_format ? "own_format" : "own_epilogue");
  std::vector<int64_t> values;
  for (const ConfigField& field : fields_of(theirs)) values.push_back(field.value);
  return check_fields(fields_of(mine), my_rank, values, rank);
}

Status agree_on(Transport& transport, std::span<const int> members, const ExpertParallelConfig& config) {
  if (is_alone(transport)) return Status();
  const std::vector<ConfigField> mine = fields_of(config);
  const Result<std::vector<Bytes>> all = transport.all_gather(members, to_bytes(mine));
  if (!all.ok()) return all.status();
  for (size_t i = 0; i < members.size(); ++i) {
    const Bytes& bytes = all.value()[i];
    SWITCHYARD_RETURN_IF_ERROR(
        check_sent(bytes, Sent::kConfiguration, transport.first_local_rank(), members[i]));
    std::vector<int64_t> theirs(bytes.size() / sizeof(int64_t));
    std::memcpy(theirs.data(), bytes.data() + 1, theirs.size() * sizeof(int64_t));
    SWITCHYARD_RETURN_IF_ERROR(check_fields(mine, transport.first_local_rank(), theirs, members[i]));
  }
  return Status();
}

Status agree_that(Transport& transport, std::span<const int> members, const Status& mine) {
  if (is_alone(transport)) return mine;
  const std::string& text = mine.message();
  Bytes message(mine.ok() ? 1 : 2 + text.size());
  message[0] = static_cast<std::byte>(Sent::kStatus);
  if (!mine.ok()) {
    message[1] = static_cast<std::byte>(mine.code());
    std::memcpy(message.data() + 2, text.data(), text.size());
  }
  const Result<std::vector<Bytes>> all = transport.all_gather(members, message);
  if (!mine.ok()) return mine;
  if (!all.ok()) return all.status();
  for (size_t i = 0; i < members.size(); ++i) {
    const Bytes& theirs = all.value()[i];
    SWITCHYARD_RETURN_IF_ERROR(check_sent(theirs, Sent::kStatus, transport.first_local_rank(), members[i]));
    if (theirs.size() == 1) continue;
    return Status(static_cast<StatusCode>(theirs[1]),
                  "rank " + std::to_string(members[i]) + ": " +
                      std::string(reinterpret_cast<const char*>(theirs.data() + 2), theirs.size() - 2));
  }
  return Status();
}

}  // namespace switchyard
