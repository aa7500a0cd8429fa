// MoeLayer over arrays.
#include "switchyard/moe_layer.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "ep_config.hpp"
#include "expert_parallel.hpp"
#include "matmul_arguments.hpp"
#include "moe_layer.hpp"

namespace switchyard::python {
namespace {

constexpr Choice<GateUpStart> kGateUpStarts[] = {{"behind-dispatch", GateUpStart::kBehindDispatch},
                                                 {"with-rows", GateUpStart::kWithRows}};
constexpr Choice<CombineStart> kCombineStarts[] = {{"behind-experts", CombineStart::kBehindExperts},
                                                   {"with-experts", CombineStart::kWithExperts}};
constexpr Choice<StepLaunches> kLaunches[] = {{"fused", StepLaunches::kFused},
                                              {"split", StepLaunches::kSplit}};

constexpr WeightNames kGateUpNames{.weights = "gate_up",
                                   .scales = "gate_up_scales",
                                   .tensor_scales = "gate_up_tensor_scales",
                                   .bias = "gate_up_bias",
                                   .experts = "num_groups",
                                   .columns = "2 * expert_width",
                                   .inner = "hidden"};
constexpr WeightNames kDownNames{.weights = "down",
                                 .scales = "down_scales",
                                 .tensor_scales = "down_tensor_scales",
                                 .bias = "down_bias",
                                 .experts = "num_groups",
                                 .columns = "hidden",
                                 .inner = "expert_width"};

// The arrays of a rank, which the layer's kernels read where they are.
struct RankWeights {
  nb::object gate_up, down;
  nb::object gate_up_scales, down_scales, gate_up_bias, down_bias, gate_up_tensor_scales, down_tensor_scales;
};

ExpertWeights to_library(const RankWeights& given, const MoeLayerConfig& config, int num_groups,
                         Arguments& arguments) {
  const MatmulElement element = matmul_rows_of(config.ep.dispatch_format, config.weights).element;
  const int64_t hidden = config.ep.hidden, width = config.expert_width;
  const Weights gate_up =
      weights_of(arguments, {element, config.weights, num_groups, 2 * width, hidden}, kGateUpNames,
                 {given.gate_up, given.gate_up_scales, given.gate_up_tensor_scales, given.gate_up_bias});
  const Weights down = weights_of(arguments, {element, config.weights, num_groups, hidden, width}, kDownNames,
                                  {given.down, given.down_scales, given.down_tensor_scales, given.down_bias});
  return {.gate_up = gate_up.weights,
          .down = down.weights,
          .gate_up_scales = gate_up.scales,
          .down_scales = down.scales,
          .gate_up_bias = gate_up.bias,
          .down_bias = down.bias,
          .gate_up_tensor_scales = gate_up.tensor_scales,
          .down_tensor_scales = down.tensor_scales};
}

// A MoeLayer, or one of its flights.
class LayerHandle {
 public:
  LayerHandle(nb::object ep, int flight_idx) : ep_(std::move(ep)), flight_idx_(flight_idx) {}

  EpHandle& ep() const { return nb::cast<EpHandle&>(ep_); }
  const nb::object& ep_object() const { return ep_; }
  MoeLayer& use(const char* call) const {
    (void)ep().use(call);
    return *need(ep().core()->layer->flight(flight_idx_));
  }
  std::unique_ptr<LayerHandle> flight(int index) const {
    (void)use("flight");
    (void)need(ep().core()->layer->flight(index));
    auto other = std::make_unique<EpHandle>(ep().session(), ep().core(), index);
    return std::make_unique<LayerHandle>(nb::cast(std::move(other)), index);
  }
  nb::any run(int rank, const GivenTokens& given, nb::handle logits, nb::object out,
              const std::optional<std::string>& part, nb::handle stream);

 private:
  nb::object ep_;
  int flight_idx_;
};

MoePart part_by_name(const MoeLayer& layer, const std::string& name) {
  std::string names;
  for (const MoePart part : parts_of(layer.config())) {
    if (name == switchyard::to_string(part)) return part;
    names += (names.empty() ? "" : ", ") + std::string(switchyard::to_string(part));
  }
  raise(invalid_argument("run: part is '%s'; it must be one of: %s", name.c_str(), names.c_str()));
}

nb::any LayerHandle::run(int rank, const GivenTokens& given, nb::handle logits, nb::object out,
                         const std::optional<std::string>& part, nb::handle stream) {
  EpHandle& ep = this->ep();
  Arguments arguments("run", *ep.session(), ep.world_rank("run", rank), stream);
  MoeLayer& layer = use("run");
  const int hidden = layer.config().ep.hidden;
  const DispatchInput input = ep.input_of(arguments, given);
  MoeLayerStep step{.tokens = input.tokens,
                    .num_tokens = input.num_tokens,
                    .topk_ids = input.topk_ids,
                    .topk_weights = input.topk_weights,
                    .topk_ids_64 = input.topk_ids_64,
                    .format = input.format,
                    .scales = input.scales,
                    .token_stride_bytes = input.token_stride_bytes,
                    .scales_stride_bytes = input.scales_stride_bytes,
                    .input_scale = input.input_scale};
  step.logits = arguments.pointer<const float>(
      logits, "logits",
      {kFloat32, {input.num_tokens, layer.config().ep.n_experts}, "(num_tokens, n_experts)"});
  if (part && out.is_none())
    raise(invalid_argument("run: out is None; all parts of a step must be given the same"));
  arguments.make_output(out, "out", {input.num_tokens, hidden}, kBFloat16);
  const Array written = arguments.array(
      out, "out",
      {kBFloat16, {input.num_tokens, hidden}, "(num_tokens, hidden)", Access::kWrite, nullptr, true});
  step.output = static_cast<bf16*>(written.data);
  step.output_stride_bytes = written.row_stride_bytes();
  const auto call = ep.core()->gate.enter("run", rank);
  need(part ? layer.run_part(part_by_name(layer, *part), rank, step, arguments.stream())
            : layer.run(rank, step, arguments.stream()));
  if (ep.session()->is_capturing()) arguments.keep(nb::find(*this));
  ep.enqueued(arguments);
  return nb::borrow<nb::any>(out);
}

std::unique_ptr<LayerHandle> create_layer(std::shared_ptr<Session> session, const nb::sequence& weights,
                                          int expert_width, const std::string& weight_format,
                                          const std::string& activation, const std::string& gate_layout,
                                          int expected_tokens_per_rank, int num_matmul_blocks,
                                          const std::string& gate_up_start, const std::string& combine_start,
                                          const std::string& launches, int64_t prefetch_bytes,
                                          const nb::kwargs& options) {
  const World& world = session->use("MoeLayer");
  MoeLayerConfig config{.ep = config_of(options),
                        .weights = parse(kWeightFormats, "weight_format", weight_format),
                        .expert_width = expert_width,
                        .activation = parse(kActivations, "activation", activation),
                        .gate_layout = parse(kGateLayouts, "gate_layout", gate_layout),
                        .expected_tokens_per_rank = expected_tokens_per_rank,
                        .num_matmul_blocks = num_matmul_blocks,
                        .gate_up_start = parse(kGateUpStarts, "gate_up_start", gate_up_start),
                        .launches = parse(kLaunches, "launches", launches),
                        .prefetch_bytes = prefetch_bytes};
  config.ep.combine_start = parse(kCombineStarts, "combine_start", combine_start);
  const std::vector<int> ranks = world.local_ranks();
  if (nb::len(weights) != ranks.size())
    raise(
        invalid_argument("MoeLayer: weights has %zu elements; this process has %zu ranks, and each needs "
                         "ExpertWeights",
                         nb::len(weights), ranks.size()));
  const int num_groups = need(ExpertParallel::num_groups(config.ep, world.n_ranks()));
  std::vector<ExpertWeights> weights_of_rank(static_cast<size_t>(world.n_ranks()));
  std::vector<nb::object> kept;
  for (size_t i = 0; i < ranks.size(); ++i) {
    kept.push_back(nb::borrow(weights[i]));
    const RankWeights* given = nullptr;
    if (!nb::try_cast(kept.back(), given) || given == nullptr) {
      PyErr_Format(PyExc_TypeError, "MoeLayer: weights[%zu] is a %s; it must be ExpertWeights", i,
                   Py_TYPE(kept.back().ptr())->tp_name);
      throw nb::python_error();
    }
    Arguments arguments("MoeLayer", *session, ranks[i]);
    weights_of_rank[static_cast<size_t>(ranks[i])] = to_library(*given, config, num_groups, arguments);
  }
  auto made = std::make_shared<std::unique_ptr<MoeLayer>>();
  need(session->wait([core = session->core(), config, weights_of_rank, made](CallerThread&) -> Status {
    Result<std::unique_ptr<MoeLayer>> layer = MoeLayer::create(*core->world, config, weights_of_rank);
    if (!layer.ok()) return layer.status();
    *made = std::move(layer).value();
    return Status();
  }));
  auto core = std::make_shared<EpCore>(session->core(), std::move(*made));
  core->weights = std::move(kept);
  auto ep = std::make_unique<EpHandle>(std::move(session), std::move(core));
  return std::make_unique<LayerHandle>(nb::cast(std::move(ep)), 0);
}

nb::dict config_of_layer(const MoeLayerConfig& config) {
  nb::dict result = to_python(config.ep);
  result["expert_width"] = config.expert_width;
  result["weight_format"] = name_of(kWeightFormats, config.weights);
  result["activation"] = name_of(kActivations, config.activation);
  result["gate_layout"] = name_of(kGateLayouts, config.gate_layout);
  result["expected_tokens_per_rank"] = config.expected_tokens_per_rank;
  result["num_matmul_blocks"] = config.num_matmul_blocks;
  result["gate_up_start"] = name_of(kGateUpStarts, config.gate_up_start);
  result["combine_start"] = name_of(kCombineStarts, config.ep.combine_start);
  result["launches"] = name_of(kLaunches, config.launches);
  result["prefetch_bytes"] = config.prefetch_bytes;
  return result;
}

void bind_weights(nb::module_& module) {
  nb::class_<RankWeights>(
      module, "ExpertWeights",
      "The weights of the experts of one rank, for a MoeLayer, which reads them where they are: gate_up, "
      "(num_groups, 2 * expert_width, hidden), and down, (num_groups, hidden, expert_width), in bfloat16; "
      "in float8_e4m3fn where rows are fp8; or codes, as GroupedMatmul takes them. The shared expert's come "
      "first, if there is one, then those of the local experts. Scales are those of GroupedMatmul's "
      "weight_scales and weight_tensor_scales; biases are float32, (num_groups, 2 * expert_width) and "
      "(num_groups, hidden).")
      .def(
          "__init__",
          [](RankWeights* self, nb::object gate_up, nb::object down, nb::object gate_up_scales,
             nb::object down_scales, nb::object gate_up_bias, nb::object down_bias,
             nb::object gate_up_tensor_scales, nb::object down_tensor_scales) {
            new (self) RankWeights{gate_up,      down,      gate_up_scales,        down_scales,
                                   gate_up_bias, down_bias, gate_up_tensor_scales, down_tensor_scales};
          },
          nb::arg("gate_up"), nb::arg("down"), nb::kw_only(), nb::arg("gate_up_scales") = nb::none(),
          nb::arg("down_scales") = nb::none(), nb::arg("gate_up_bias") = nb::none(),
          nb::arg("down_bias") = nb::none(), nb::arg("gate_up_tensor_scales") = nb::none(),
          nb::arg("down_tensor_scales") = nb::none(),
          nb::sig("def __init__(self, gate_up: object, down: object, *, gate_up_scales: object | None = "
                  "None, down_scales: object | None = None, gate_up_bias: object | None = None, down_bias: "
                  "object | None = None, gate_up_tensor_scales: object | None = None, down_tensor_scales: "
                  "object | None = None) -> None"))
      .def_ro("gate_up", &RankWeights::gate_up, "As given.")
      .def_ro("down", &RankWeights::down, "As given.");
}

constexpr const char* kLayerDoc =
    "A mixture-of-experts layer for the ranks of a world, from router to output: dispatch, the matmuls of "
    "the "
    "experts with their activation between them, and combine. weights has the ExpertWeights of each rank of "
    "this process, which are kept alive. A step is a run() on every rank; ep, its ExpertParallel, waits and "
    "raises what went wrong. Options are those of ExpertParallel, and expert_width (which must be given), "
    "weight_format ('as-rows', 'mxfp4', 'nvfp4', 'mxfp8'), activation ('silu', 'gelu', 'clamped-swiglu'), "
    "gate_layout ('stacked', 'interleaved'), expected_tokens_per_rank (by which tunings are chosen), "
    "num_matmul_blocks, gate_up_start ('behind-dispatch', 'with-rows'), combine_start ('behind-experts', "
    "'with-experts'), launches ('fused', 'split') and prefetch_bytes. dispatch_format is what the rows are "
    "multiplied in: fp8 with fp8 weights, everything else as bfloat16.";

}  // namespace

void bind_moe_layer(nb::module_& module) {
  bind_weights(module);
  nb::class_<LayerHandle>(module, "MoeLayer", kLayerDoc)
      .def(nb::new_(&create_layer), nb::arg("world"), nb::arg("weights"), nb::kw_only(),
           nb::arg("expert_width"), nb::arg("weight_format") = "as-rows", nb::arg("activation") = "silu",
           nb::arg("gate_layout") = "stacked", nb::arg("expected_tokens_per_rank") = 0,
           nb::arg("num_matmul_blocks") = 0, nb::arg("gate_up_start") = "behind-dispatch",
           nb::arg("combine_start") = "behind-experts", nb::arg("launches") = "fused",
           nb::arg("prefetch_bytes") = 0, nb::arg("options"))
      .def(
          "run",
          [](LayerHandle& layer, int rank, nb::object tokens, nb::object logits, nb::object topk_ids,
             nb::object topk_weights, nb::object scales, nb::object input_scale, nb::object out,
             std::optional<std::string> part, nb::handle stream) {
            const bool has_router = !logits.is_none();
            if (has_router && !(topk_ids.is_none() && topk_weights.is_none()))
              raise(invalid_argument("run: logits must be None where topk_ids or topk_weights are given"));
            GivenTokens given{tokens, topk_ids, topk_weights, scales, input_scale};
            given.needs_ids = !has_router;
            return layer.run(rank, given, logits, std::move(out), part, stream);
          },
          nb::arg("rank"), nb::arg("tokens").none(), nb::kw_only(), nb::arg("logits") = nb::none(),
          nb::arg("topk_ids") = nb::none(), nb::arg("topk_weights") = nb::none(),
          nb::arg("scales") = nb::none(), nb::arg("input_scale") = nb::none(), nb::arg("out") = nb::none(),
          nb::arg("part") = nb::none(), nb::arg("stream") = nb::none(),
          nb::sig(SWITCHYARD_OUT_SIGNATURES(
              "run", "rank: int, tokens: object | None",
              "logits: object | None = None, topk_ids: object | None = None, topk_weights: object | None = "
              "None, scales: object | None = None, input_scale: object | None = None, part: str | None = "
              "None, stream: object | None = None")),
          "Enqueues a step of the rank and returns out, (num_tokens, hidden). tokens are as in "
          "ExpertParallel.dispatch(). The experts of each are the top_k largest of logits, (num_tokens, "
          "n_experts) of float32, weighted by their softmax, or topk_ids, (num_tokens, top_k), with "
          "topk_weights. Every rank runs every step. With part, only this one of parts is enqueued, and all "
          "are in turn, each with the same arguments.")
      .def_prop_ro(
          "parts",
          [](const LayerHandle& layer) {
            std::vector<std::string> names;
            for (const MoePart part : parts_of(layer.use("parts").config()))
              names.emplace_back(switchyard::to_string(part));
            return names;
          },
          "The parts of a step in their order, for run(part=..).")
      .def_prop_ro(
          "ep", [](const LayerHandle& layer) { return layer.ep_object(); },
          nb::sig("def ep(self) -> ExpertParallel"),
          "The ExpertParallel of the layer: to synchronize(), poll() and reset().")
      .def_prop_ro(
          "config", [](const LayerHandle& layer) { return config_of_layer(layer.use("config").config()); },
          "The options as they are in force.")
      .def("flight", &LayerHandle::flight, nb::arg("index"),
           "Returns a layer of the same weights for a step that may be under way beside others (option "
           "steps_in_flight); 0 is this one.");
}

}  // namespace switchyard::python
