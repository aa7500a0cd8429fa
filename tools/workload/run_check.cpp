#include "run_check.hpp"

#include <algorithm>
#include <filesystem>

#include "files/npy.hpp"
#include "reference/gated_mlp.hpp"
#include "reference/per_rank.hpp"
#include "reference/token_format.hpp"

namespace switchyard::tools {
namespace {

// The difference that the combine in fp8 makes, against a combine in bf16.
void add_combine_error(const std::vector<bf16>& output, const std::vector<bf16>& as_bf16, RunReport& report) {
  for (size_t i = 0; i < output.size(); ++i) {
    const double value = to_float(as_bf16[i]), error = std::abs(to_float(output[i]) - value);
    report.combine_error = std::max(report.combine_error, error);
    report.squared_combine_error += error * error;
    report.squared_output += value * value;
  }
}

// No bit may differ between targets or from the reference: sums have one order, every operation is rounded
// once, and the exponential is ours (base/exp.hpp).
std::string compare_output(int rank, const std::vector<bf16>& output, const std::vector<bf16>& expected,
                           size_t hidden, double& max_abs_error) {
  std::string difference;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(to_float(output[i])) - to_float(expected[i]));
    if (!(error <= max_abs_error) && !std::isnan(max_abs_error)) max_abs_error = error;
    if (output[i].bits == expected[i].bits || !difference.empty()) continue;
    difference = "rank " + std::to_string(rank) + ", token " + std::to_string(i / hidden) + ", column " +
                 std::to_string(i % hidden) + ": output " + std::to_string(to_float(output[i])) +
                 ", expected " + std::to_string(to_float(expected[i]));
  }
  return difference;
}

// The same where a token's output may be off by a part of its length.
std::string compare_nearly(int rank, const std::vector<bf16>& output, const std::vector<bf16>& expected,
                           size_t hidden, double tolerance, double& max_abs_error) {
  for (size_t first = 0; first < expected.size(); first += hidden) {
    std::vector<double> values, right;
    for (size_t i = first; i < first + hidden; ++i) {
      values.push_back(static_cast<double>(to_float(output[i])));
      right.push_back(static_cast<double>(to_float(expected[i])));
      const double error = std::abs(values.back() - right.back());
      if (!(error <= max_abs_error) && !std::isnan(max_abs_error)) max_abs_error = error;
    }
    const double distance = reference::relative_distance(values, right);
    if (!(distance <= tolerance))
      return "rank " + std::to_string(rank) + ", token " + std::to_string(first / hidden) +
             ": output is off by " + std::to_string(distance) + " of its length, at most " +
             std::to_string(tolerance);
  }
  return "";
}

// Ids that have become padding since are not compared.
std::string compare_routing(int rank, const reference::Routing& routing, const reference::Step& step) {
  for (size_t i = 0; i < routing.topk_ids.size(); ++i) {
    const int32_t id = step.topk_ids[rank][i];
    if ((id < 0 || routing.topk_ids[i] == id) && routing.topk_weights[i] == step.topk_weights[rank][i])
      continue;
    return "rank " + std::to_string(rank) + ", token " + std::to_string(i / static_cast<size_t>(step.top_k)) +
           ": the router chose expert " + std::to_string(routing.topk_ids[i]) + " with weight " +
           std::to_string(routing.topk_weights[i]) + ", expected " + std::to_string(id) + " with " +
           std::to_string(step.topk_weights[rank][i]);
  }
  return "";
}

// Rows that only align a group have no source: LayerRun fills src_info with ones before a step.
uint64_t num_expert_rows(const reference::DispatchResult& dispatch) {
  uint64_t num_rows = 0;
  for (size_t row = 0; 2 * row < dispatch.src_info.size(); ++row) num_rows += dispatch.src_info[2 * row] >= 0;
  return num_rows;
}

// Compares source ranks only; check_dispatch() compares the tokens.
std::string compare_sources(const reference::Step& step, int rank, const std::vector<int32_t>& src_rank) {
  std::vector<int32_t> expected;
  for (const auto& expert_rows : reference::dispatched_rows(step, rank)) {
    const size_t next_group = step.next_group(expected.size(), expert_rows.size());
    for (const reference::RowOrigin& origin : expert_rows) expected.push_back(origin.src_rank);
    expected.resize(next_group, -1);
  }
  for (size_t row = 0; row < expected.size(); ++row)
    if (row >= src_rank.size() || src_rank[row] != expected[row])
      return "rank " + std::to_string(rank) + ", row " + std::to_string(row) + ": counted as from rank " +
             (row < src_rank.size() ? std::to_string(src_rank[row]) : "none") + ", expected " +
             std::to_string(expected[row]);
  return "";
}

const char* dtype_of(ScaleTensorElement element) {
  switch (element) {
    case ScaleTensorElement::kFloat:
      return npy_dtype(float{});
    case ScaleTensorElement::kWord:
      return npy_dtype(uint32_t{});
    case ScaleTensorElement::kE8M0:  // NumPy has none
    case ScaleTensorElement::kTileByte:
      return npy_dtype(uint8_t{});
  }
  return npy_dtype(uint8_t{});
}

// Codes and scales as the device wrote them (docs/formats.md has the layouts), and their tensor scales.
Status dump_encoded(const std::string& folder, const reference::Step& step, int rank, uint32_t max_rows,
                    const reference::DispatchResult& dispatch) {
  const TokenFormatInfo format = info_of(step.format);
  const auto file = [&](const char* name) { return OutputName{"--dump", folder + name}; };
  SWITCHYARD_RETURN_IF_ERROR(write_npy(file("codes.npy"),
                                       {dispatch.row_offsets.back(), format.row_bytes(step.hidden)},
                                       dispatch.encoded_rows));
  const std::vector<float> tensor_scales = step.group_input_scales(rank);
  SWITCHYARD_RETURN_IF_ERROR(
      write_npy(file("group_input_scales.npy"), {tensor_scales.size()}, tensor_scales));
  if (!dispatch.scale_row_offsets.empty())
    SWITCHYARD_RETURN_IF_ERROR(write_npy(file("scale_row_offsets.npy"), {dispatch.scale_row_offsets.size()},
                                         dispatch.scale_row_offsets));
  const ScaleTensor scales = format.scale_tensor(max_rows, step.hidden);
  return write_npy_bytes(file("scales.npy"), dtype_of(scales.element),
                         {scales.shape, scales.shape + scales.num_dimensions}, dispatch.scales.data(),
                         dispatch.scales.size());
}

// What experts wrote as a combine in fp8 reads it, as bf16: each row's codes, and then a float for each 128.
std::vector<bf16> decoded_outputs(size_t hidden, size_t num_rows, const std::vector<uint8_t>& encoded) {
  constexpr size_t kGroupSize = 128;
  std::vector<bf16> rows;
  for (size_t row = 0; row < num_rows; ++row) {
    const auto codes = encoded.begin() + static_cast<ptrdiff_t>(row * (encoded.size() / num_rows)),
               scales = codes + static_cast<ptrdiff_t>(align_up<size_t>(hidden, 16));
    const std::vector<bf16> values = reference::decoded(reference::decode_token(
        TokenFormatKind::kFP8, {codes, codes + static_cast<ptrdiff_t>(hidden)},
        {scales, scales + static_cast<ptrdiff_t>(hidden / kGroupSize * sizeof(float))}, 1));
    rows.insert(rows.end(), values.begin(), values.end());
  }
  return rows;
}

// Rows of codes as bf16: matmuls in fp8 read them as they are, so that no kernel has decoded them.
std::vector<bf16> decoded_rows(const reference::Step& step, const reference::DispatchResult& dispatch) {
  const TokenFormatInfo format = info_of(step.format);
  const size_t row_bytes = format.row_bytes(step.hidden),
               scale_bytes = static_cast<size_t>(format.scale_bytes),
               num_scales = static_cast<size_t>(format.num_scales(step.hidden));
  std::vector<bf16> rows;
  for (size_t row = 0; row * row_bytes < dispatch.encoded_rows.size(); ++row) {
    const auto codes = dispatch.encoded_rows.begin() + static_cast<ptrdiff_t>(row * row_bytes);
    std::vector<uint8_t> scales;
    for (size_t group = 0; group < num_scales; ++group) {
      const uint64_t offset =
          reference::scale_offset(step.format, row, group, step.hidden, dispatch.max_rows);
      const auto scale = dispatch.scales.begin() + static_cast<ptrdiff_t>(offset);
      scales.insert(scales.end(), scale, scale + static_cast<ptrdiff_t>(scale_bytes));
    }
    const std::vector<bf16> values = reference::decoded(reference::decode_token(
        step.format, {codes, codes + static_cast<ptrdiff_t>(row_bytes)}, scales, step.input_scale));
    rows.insert(rows.end(), values.begin(), values.end());
  }
  return rows;
}

uint64_t bytes_moved(const ExpertParallel& ep, const reference::Step& step) {
  if (step.skips_all_to_all)  // every rank reads the partial sums of the others of its group
    return static_cast<uint64_t>(step.n_ranks) * static_cast<uint64_t>(step.num_reducing() - 1) *
           static_cast<uint64_t>(step.num_tokens(0)) * static_cast<uint64_t>(step.hidden) * sizeof(bf16);
  uint64_t num_messages = 0, num_rows = 0;
  for (const std::vector<int32_t>& ids_of_rank : step.topk_ids)
    for (auto first = ids_of_rank.begin(); first != ids_of_rank.end(); first += step.top_k) {
      std::vector<int32_t> ids(first, first + step.top_k);
      ids.erase(std::remove(ids.begin(), ids.end(), -1), ids.end());
      num_rows += ids.size();
      if (ep.config().protocol == Protocol::kSlotted) {  // which sends a repeated id once
        std::sort(ids.begin(), ids.end());
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      }
      num_messages += ids.size();
    }
  return num_messages * ep.dispatch_message_bytes() + num_rows * ep.combine_message_bytes();
}

}  // namespace

Status check_step(const LayerRun& layer, const reference::Step& step, const reference::MlpExperts& experts,
                  const std::string& label, RunReport& report) {
  const reference::Step sent = layer.exchanged(step);
  const std::vector<std::vector<bf16>> expected = layer.expected_outputs(step, experts);
  std::vector<std::vector<bf16>> as_bf16;
  if (step.combine_format != CombineFormat::kBF16 || step.reduces_at_owner) {
    reference::Step plain = step;
    plain.combine_format = CombineFormat::kBF16;
    plain.reduces_at_owner = false;
    as_bf16 =
        layer.is_per_rank() ? reference::moe_layer(plain, experts) : layer.expected_outputs(plain, experts);
  }
  report.rows_per_rank.assign(static_cast<size_t>(step.n_ranks), 0);
  const auto note = [&](const std::string& difference) {
    if (difference.empty() || !report.verified) return;
    report.verified = false;
    report.first_difference = label + difference;
  };
  report.ranks = layer.local_ranks();
  for (const int rank : report.ranks) {
    if (!layer.is_alive(rank)) {
      note("rank " + std::to_string(rank) + " was killed");
      continue;
    }
    Result<LayerRun::Results> results = layer.download(rank);
    if (!results.ok()) return results.status();
    const auto& [routing, dispatch, src_rank, expert_outputs, encoded_outputs, output] = results.value();
    report.rows_per_rank[rank] = num_expert_rows(dispatch);
    note(compare_routing(rank, routing, step));
    note(reference::check_dispatch(sent, rank, dispatch));
    note(compare_sources(sent, rank, src_rank));
    if (layer.is_per_rank()) note(reference::check_choices(step, rank, dispatch));
    const size_t hidden = static_cast<size_t>(step.hidden);
    note(layer.tolerance() == 0
             ? compare_output(rank, output, expected[rank], hidden, report.max_abs_error)
             : compare_nearly(rank, output, expected[rank], hidden, layer.tolerance(), report.max_abs_error));
    if (!as_bf16.empty()) add_combine_error(output, as_bf16[rank], report);
  }
  report.bytes_moved = bytes_moved(layer.ep(), sent);
  if (!step.skips_all_to_all)
    report.traffic = reference::count_traffic(sent, reference::traffic_options(layer.ep()));
  return Status();
}

Status dump_step(const std::string& directory, const LayerRun& layer, const reference::Step& step,
                 const reference::MlpExperts& experts) {
  for (const int rank : layer.local_ranks()) {
    const std::string folder = directory + "/rank_" + std::to_string(rank) + "/";
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return unavailable("--dump: cannot make %s: %s", folder.c_str(), error.message().c_str());
    const auto file = [&](const char* name) { return OutputName{"--dump", folder + name}; };
    Result<LayerRun::Results> results = layer.download(rank);
    if (!results.ok()) return results.status();
    const auto& [routing, dispatch, src_rank, expert_outputs, encoded_outputs, output] = results.value();
    const uint64_t tokens = static_cast<uint64_t>(step.num_tokens(rank)),
                   top_k = static_cast<uint64_t>(step.top_k);
    const uint64_t hidden = static_cast<uint64_t>(step.hidden), width = static_cast<uint64_t>(experts.width);
    const uint64_t rows = dispatch.row_offsets.back(), groups = static_cast<uint64_t>(step.num_groups());
    std::vector<bf16> gate_up, down;
    if (step.has_shared_expert) {
      gate_up = experts.gate_up.back();
      down = experts.down.back();
    }
    for (int seat = 0; seat < step.n_local_experts(); ++seat) {
      // An empty seat is dumped with the weights of expert 0; it has no rows.
      const auto expert = static_cast<size_t>(std::max(0, step.expert_at(rank, seat)));
      gate_up.insert(gate_up.end(), experts.gate_up[expert].begin(), experts.gate_up[expert].end());
      down.insert(down.end(), experts.down[expert].begin(), experts.down[expert].end());
    }
    SWITCHYARD_RETURN_IF_ERROR(write_npy(file("tokens.npy"), {tokens, hidden}, step.tokens[rank]));
    SWITCHYARD_RETURN_IF_ERROR(write_npy(file("topk_ids.npy"), {tokens, top_k}, step.topk_ids[rank]));
    SWITCHYARD_RETURN_IF_ERROR(write_npy(file("topk_weights.npy"), {tokens, top_k}, step.topk_weights[rank]));
    SWITCHYARD_RETURN_IF_ERROR(write_npy(file("gate_up_weights.npy"), {groups, hidden, 2 * width}, gate_up));
    SWITCHYARD_RETURN_IF_ERROR(write_npy(file("down_weights.npy"), {groups, width, hidden}, down));
    SWITCHYARD_RETURN_IF_ERROR(write_npy(file("row_offsets.npy"), {groups + 1}, dispatch.row_offsets));
    SWITCHYARD_RETURN_IF_ERROR(write_npy(file("expert_ids.npy"), {groups}, dispatch.expert_ids));
    SWITCHYARD_RETURN_IF_ERROR(write_npy(file("src_info.npy"), {rows, 2}, dispatch.src_info));
    SWITCHYARD_RETURN_IF_ERROR(write_npy(file("src_rank.npy"), {rows}, src_rank));
    SWITCHYARD_RETURN_IF_ERROR(
        write_npy(file("expert_rows.npy"), {rows, hidden},
                  dispatch.rows.empty() ? decoded_rows(step, dispatch) : dispatch.rows));
    if (step.format != TokenFormatKind::kBF16)
      SWITCHYARD_RETURN_IF_ERROR(dump_encoded(folder, step, rank, layer.max_rows(rank), dispatch));
    if (!encoded_outputs.empty())
      SWITCHYARD_RETURN_IF_ERROR(
          write_npy(file("encoded_outputs.npy"), {rows, encoded_outputs.size() / rows}, encoded_outputs));
    SWITCHYARD_RETURN_IF_ERROR(
        write_npy(file("expert_outputs.npy"), {rows, hidden},
                  expert_outputs.empty() ? decoded_outputs(hidden, rows, encoded_outputs) : expert_outputs));
    SWITCHYARD_RETURN_IF_ERROR(write_npy(file("output.npy"), {tokens, hidden}, output));
  }
  return Status();
}

}  // namespace switchyard::tools
