#include "ep_config.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "formats.hpp"
#include "options.hpp"

namespace switchyard::python {
namespace {

constexpr Choice<Protocol> kProtocols[] = {
    {"auto", Protocol::kAutomatic}, {"slotted", Protocol::kSlotted}, {"direct", Protocol::kDirect}};
constexpr Choice<RowLayout> kRowLayouts[] = {
    {"ragged", RowLayout::kRagged}, {"masked", RowLayout::kMasked}, {"per-rank", RowLayout::kPerRank}};
constexpr Choice<RowDelivery> kRowDeliveries[] = {{"automatic", RowDelivery::kAutomatic},
                                                  {"sender", RowDelivery::kSender},
                                                  {"receiver", RowDelivery::kReceiver}};
constexpr Choice<CombineFormat> kCombineFormats[] = {{"bf16", CombineFormat::kBF16},
                                                     {"fp8", CombineFormat::kFP8}};
constexpr Choice<SharedExpert> kSharedExperts[] = {{"none", SharedExpert::kNone},
                                                   {"fused", SharedExpert::kFused}};
constexpr Choice<Routing> kRoutings[] = {{"all-to-all", Routing::kAllToAll},
                                         {"skip-all-to-all", Routing::kSkipAllToAll}};

template <typename T>
T value_of(const char* name, const char* type, nb::handle value) {
  T result{};
  if (nb::try_cast(value, result)) return result;
  PyErr_Format(PyExc_TypeError, "%s is a %s; it must be %s", name, Py_TYPE(value.ptr())->tp_name, type);
  throw nb::python_error();
}

uint64_t nanoseconds_of(const char* name, nb::handle value) {
  const double seconds = value_of<double>(name, "a number of seconds", value);
  if (!(seconds > 0 && seconds < 1e9))
    raise(invalid_argument("%s is %g s; it must be more than 0 and less than 1e9", name, seconds));
  return static_cast<uint64_t>(seconds * 1e9);
}

struct Field {
  const char* name;
  void (*set)(ExpertParallelConfig& config, const char* name, nb::handle value);
  nb::object (*get)(const ExpertParallelConfig& config);
};

#define SWITCHYARD_FIELD(member, type, words)                                           \
  Field {                                                                               \
#member,                                                                              \
        [](ExpertParallelConfig& config, const char* name, nb::handle value) {            \
          config.member = value_of<type>(name, words, value);                             \
        },                                                                                \
        [](const ExpertParallelConfig& config) { return nb::cast(config.member); } \
  }
#define SWITCHYARD_INT(member) SWITCHYARD_FIELD(member, int, "an int")
#define SWITCHYARD_CHOICE_FIELD(member, choices)                                                      \
  Field {                                                                                             \
#member,                                                                                            \
        [](ExpertParallelConfig& config, const char* name, nb::handle value) {                          \
          config.member = parse(choices, name, value_of<std::string>(name, "a str", value));            \
        },                                                                                              \
        [](const ExpertParallelConfig& config) { return nb::cast(name_of(choices, config.member)); } \
  }

const Field kFields[] = {
    SWITCHYARD_INT(n_experts),
    SWITCHYARD_INT(top_k),
    SWITCHYARD_INT(hidden),
    SWITCHYARD_INT(max_tokens_per_rank),
    SWITCHYARD_INT(n_sms),
    SWITCHYARD_INT(num_threads),
    {"timeout",
     [](ExpertParallelConfig& config, const char* name, nb::handle value) {
       config.timeout_ns = nanoseconds_of(name, value);
     },
     [](const ExpertParallelConfig& config) {
       return nb::cast(static_cast<double>(config.timeout_ns) / 1e9);
     }},
    {"first_timeout",
     [](ExpertParallelConfig& config, const char* name, nb::handle value) {
       config.first_timeout_ns = nanoseconds_of(name, value);
     },
     [](const ExpertParallelConfig& config) {
       return nb::cast(static_cast<double>(config.first_timeout_ns) / 1e9);
     }},
    SWITCHYARD_FIELD(dependent_launch, bool, "a bool"),
    SWITCHYARD_CHOICE_FIELD(protocol, kProtocols),
    SWITCHYARD_FIELD(capacity_factor, double, "a number"),
    SWITCHYARD_CHOICE_FIELD(row_layout, kRowLayouts),
    SWITCHYARD_INT(row_alignment),
    SWITCHYARD_INT(max_rows_per_expert),
    SWITCHYARD_INT(row_sets),
    SWITCHYARD_CHOICE_FIELD(row_delivery, kRowDeliveries),
    SWITCHYARD_FIELD(reduce_at_owner, bool, "a bool"),
    SWITCHYARD_CHOICE_FIELD(dispatch_format, kFormats),
    SWITCHYARD_FIELD(input_scale, float, "a number"),
    SWITCHYARD_FIELD(expert_input_scales, std::vector<float>, "a list of numbers"),
    SWITCHYARD_CHOICE_FIELD(combine_format, kCombineFormats),
    SWITCHYARD_CHOICE_FIELD(shared_expert, kSharedExperts),
    SWITCHYARD_CHOICE_FIELD(routing, kRoutings),
    SWITCHYARD_INT(p2p_world_size),
    SWITCHYARD_INT(allreduce_world_size),
    SWITCHYARD_INT(max_experts_per_rank),
    SWITCHYARD_FIELD(counts_experts, bool, "a bool"),
    SWITCHYARD_INT(steps_in_flight),
};

}  // namespace

ExpertPlacement placement_of(int n_experts, nb::handle experts_of_rank) {
  auto lists = value_of<std::vector<std::vector<int>>>("placement", "a list of experts for each rank",
                                                       experts_of_rank);
  return need(ExpertPlacement::from_lists(n_experts, std::move(lists)));
}

ExpertParallelConfig config_of(const nb::kwargs& options) {
  ExpertParallelConfig config;
  nb::object placement = nb::none();
  for (const auto& [key, value] : options) {
    const std::string name = nb::cast<std::string>(key);
    bool is_known = name == "placement";
    if (is_known) placement = nb::borrow(value);
    for (const Field& field : kFields) {
      if (name != field.name) continue;
      field.set(config, field.name, value);
      is_known = true;
    }
    if (is_known) continue;
    std::string names;
    for (const Field& field : kFields) names += std::string(field.name) + ", ";
    PyErr_Format(PyExc_TypeError, "unexpected option '%s'; options are %splacement", name.c_str(),
                 names.c_str());
    throw nb::python_error();
  }
  if (!placement.is_none()) config.placement = placement_of(config.n_experts, placement);
  return config;
}

nb::dict to_python(const ExpertParallelConfig& config) {
  nb::dict result;
  for (const Field& field : kFields) result[field.name] = field.get(config);
  result["placement"] = config.placement ? nb::cast(config.placement->experts_of_rank()) : nb::none();
  return result;
}

}  // namespace switchyard::python
