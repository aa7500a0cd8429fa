// A run with plain matmuls: ExpertParallel, and kernels around it that compute what the reference does, bit
// by bit, in every format and layout.
#include <algorithm>
#include <numeric>

#include "buffers.hpp"
#include "layer_run.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard::tools {
namespace {

// The matrices of a rank's experts, contiguous.
std::vector<bf16> matrices_of(const std::vector<std::vector<bf16>>& matrices,
                              const std::vector<size_t>& of_rank) {
  std::vector<bf16> all;
  for (const size_t expert : of_rank) all.insert(all.end(), matrices[expert].begin(), matrices[expert].end());
  return all;
}

}  // namespace

Status LayerRun::allocate_plain(int r, const reference::MlpExperts& experts) {
  const Rank& rank = world_.rank(r);
  RankBuffers& buffers = of(r);
  const uint64_t num_groups = static_cast<uint64_t>(ep_->num_groups());
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.routed_ids, rank, buffers.topk_weights.size()));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.expert_ids, rank, num_groups));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_offsets, rank, num_groups + 1));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_counts, rank, num_groups));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.group_input_scales, rank, num_groups));
  if (is_per_rank()) SWITCHYARD_RETURN_IF_ERROR(allocate_choices(r));
  if (info_of(ep_->config().dispatch_format).placement == ScalePlacement::kTiled)
    SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.scale_row_offsets, rank, num_groups));
  const std::vector<size_t> of_rank = experts_of_rank(*ep_, r, workload_.n_experts);
  SWITCHYARD_RETURN_IF_ERROR(
      upload_into(buffers.gate_up_weights, rank, matrices_of(experts.gate_up, of_rank)));
  return upload_into(buffers.down_weights, rank, matrices_of(experts.down, of_rank));
}

Status LayerRun::allocate_choices(int r) {
  RankBuffers& buffers = of(r);
  const Rank& rank = world_.rank(r);
  const uint64_t num_choices = uint64_t{max_rows_} * static_cast<uint64_t>(workload_.top_k);
  const uint64_t num_groups = static_cast<uint64_t>(num_matrices());
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_experts, rank, num_choices));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_weights, rank, num_choices));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.row_of_choice, rank, num_choices));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.group_offsets, rank, num_groups + 1));
  SWITCHYARD_RETURN_IF_ERROR(allocate_into(buffers.group_counts, rank, num_groups));
  std::vector<int32_t> ids(num_groups);
  std::iota(ids.begin(), ids.end(), 0);
  return upload_into(buffers.group_ids, rank, ids);
}

// The experts' intermediate buffers hold the rows of this step, not of the worst case: the tool knows the
// routing.
Status LayerRun::reserve_rows(int r, uint64_t num_rows, uint64_t num_expert_rows) {
  RankBuffers& buffers = of(r);
  const uint64_t width = static_cast<uint64_t>(workload_.expert_width);
  const uint64_t hidden = static_cast<uint64_t>(workload_.hidden);
  const auto reserve = [&](Buffer<bf16>& buffer, uint64_t size) {
    return buffer.size() < size ? allocate_into(buffer, world_.rank(r), size) : Status();
  };
  if (is_per_rank()) {
    SWITCHYARD_RETURN_IF_ERROR(reserve(buffers.expert_rows, num_expert_rows * hidden));
    SWITCHYARD_RETURN_IF_ERROR(reserve(buffers.expert_results, num_expert_rows * hidden));
  }
  if (is_encoded()) SWITCHYARD_RETURN_IF_ERROR(reserve(buffers.decoded, num_rows * hidden));
  if (encodes_outputs()) SWITCHYARD_RETURN_IF_ERROR(reserve(buffers.down, num_rows * hidden));
  const uint64_t num_worked_on = is_per_rank() ? num_expert_rows : num_rows;
  SWITCHYARD_RETURN_IF_ERROR(reserve(buffers.gate_up, num_worked_on * 2 * width));
  return reserve(buffers.activated, num_worked_on * width);
}

LaunchShape LayerRun::layer_launch(int rank) const {
  const bool is_host = world_.target() == Target::kHost;
  const int num_blocks = is_host ? ep_->n_sms() : 4 * device_of(world_.rank(rank)).num_multiprocessors();
  return {.num_blocks = static_cast<uint32_t>(num_blocks), .num_threads = is_host ? kHostThreads : 256u};
}

std::vector<LayerRun::Phase> LayerRun::plain_phases(const reference::Step& step) {
  std::vector<Phase> phases;
  if (has_router(workload_))
    phases.push_back({"route", [this, &step](int rank) { return route(rank, step); }});
  add_dispatch(step, phases);
  add_experts(phases);
  add_combine(step, phases);
  return phases;
}

void LayerRun::add_dispatch(const reference::Step& step, std::vector<Phase>& phases) {
  const auto input = [this, &step](int rank) {
    DispatchInput given = of(rank).tokens.input(step.num_tokens(rank), of(rank).topk_weights.data());
    given.topk_ids = topk_ids(rank);
    return given;
  };
  const auto output = [this](int rank) {
    const RankBuffers& buffers = of(rank);
    return DispatchOutput{.rows = buffers.rows.data(),
                          .src_info = buffers.src_info.data(),
                          .max_rows = static_cast<uint32_t>(buffers.src_info.size() / 2),
                          .row_offsets = buffers.row_offsets.data(),
                          .expert_ids = buffers.expert_ids.data(),
                          .scales = buffers.scales.data(),
                          .scale_row_offsets = buffers.scale_row_offsets.data(),
                          .row_counts = buffers.row_counts.data(),
                          .row_experts = buffers.row_experts.data(),
                          .row_weights = buffers.row_weights.data()};
  };
  if (options_.mode == StepMode::kFused) {
    phases.push_back(
        {"dispatch", [=, this](int rank) { return ep_->dispatch(rank, input(rank), output(rank)); }});
    return;
  }
  phases.push_back(
      {"dispatch_async", [=, this](int rank) { return ep_->dispatch_async(rank, input(rank)); }});
  phases.push_back({"dispatch_wait", [=, this](int rank) { return ep_->dispatch_wait(rank, output(rank)); }});
}

void LayerRun::add_experts(std::vector<Phase>& phases) {
  // The matmuls take bf16 only.
  if (is_encoded()) phases.push_back({"decode", [this](int rank) { return decode_rows(rank); }});
  if (is_per_rank()) phases.push_back({"expand", [this](int rank) { return expand_rows(rank); }});
  phases.push_back({"gate_up", [this](int rank) {
                      return matmul(rank, expert_input(rank), workload_.hidden,
                                    of(rank).gate_up_weights.data(), 2 * workload_.expert_width,
                                    of(rank).gate_up.data());
                    }});
  phases.push_back({"silu_mul", [this](int rank) { return silu_mul(rank); }});
  phases.push_back({"down", [this](int rank) {
                      return matmul(rank, of(rank).activated.data(), workload_.expert_width,
                                    of(rank).down_weights.data(), workload_.hidden, expert_output(rank));
                    }});
  if (is_per_rank()) phases.push_back({"sum", [this](int rank) { return sum_choices(rank); }});
  if (encodes_outputs()) phases.push_back({"encode", [this](int rank) { return encode_outputs(rank); }});
}

void LayerRun::add_combine(const reference::Step& step, std::vector<Phase>& phases) {
  const auto input = [this](int rank) {
    return CombineInput{of(rank).expert_outputs.data(), of(rank).src_info.data()};
  };
  const auto output = [this, &step](int rank) {
    return CombineOutput{topk_ids(rank), of(rank).topk_weights.data(), step.num_tokens(rank),
                         of(rank).tokens.destination()};
  };
  if (options_.mode == StepMode::kFused) {
    phases.push_back(
        {"combine", [=, this](int rank) { return ep_->combine(rank, input(rank), output(rank)); }});
  } else {
    phases.push_back(
        {"combine_async", [=, this](int rank) { return ep_->combine_async(rank, input(rank)); }});
    phases.push_back({"combine_wait", [=, this](int rank) { return ep_->combine_wait(rank, output(rank)); }});
  }
  if (ep_->config().routing == Routing::kAllToAll || step.num_reducing() == 1) return;
  phases.push_back({"all_reduce", [this, &step](int rank) {
                      return ep_->all_reduce(rank, of(rank).tokens.destination().output,
                                             step.num_tokens(rank));
                    }});
}

Status LayerRun::route(int rank, const reference::Step& step) {
  const RankBuffers& buffers = of(rank);
  const TopkSoftmaxParams params{step.num_tokens(rank),     workload_.n_experts,
                                 workload_.top_k,           buffers.logits.data(),
                                 buffers.routed_ids.data(), buffers.topk_weights.data()};
  return kernel_table(world_.rank(rank)).topk_softmax(layer_launch(rank), world_.rank(rank).stream(), params);
}

const int32_t* LayerRun::topk_ids(int rank) const {
  return takes_routed_ids() ? of(rank).routed_ids.data() : of(rank).tokens.topk_ids();
}

Status LayerRun::matmul(int rank, const bf16* rows, int inner, const bf16* weights, int columns,
                        bf16* output) {
  const ExpertGroups groups = expert_groups(rank);
  return kernel_table(world_.rank(rank))
      .grouped_matmul(layer_launch(rank), world_.rank(rank).stream(),
                      {num_matrices(), inner, columns, rows, weights, groups.row_offsets, groups.row_counts,
                       groups.expert_ids, output});
}

Status LayerRun::silu_mul(int rank) {
  const SiluMulInput input{num_matrices(), workload_.expert_width, of(rank).gate_up.data(),
                           expert_groups(rank).row_offsets};
  return kernel_table(world_.rank(rank))
      .silu_mul(layer_launch(rank), world_.rank(rank).stream(), input, {.rows = of(rank).activated.data()});
}

Status LayerRun::decode_rows(int rank) {
  const RankBuffers& buffers = of(rank);
  return kernel_table(world_.rank(rank))
      .recode_rows(layer_launch(rank), world_.rank(rank).stream(),
                   {.format = ep_->config().dispatch_format,
                    .hidden = workload_.hidden,
                    .input = {.rows = reinterpret_cast<std::byte*>(buffers.rows.data()),
                              .scales = reinterpret_cast<std::byte*>(buffers.scales.data()),
                              .max_rows = max_rows(rank),
                              .tensor_scale =
                                  options_.style.has_device_scale ? kInputScale : ep_->config().input_scale},
                    .num_groups = ep_->num_groups(),
                    .row_offsets = buffers.row_offsets.data(),
                    .group_tensor_scales = buffers.group_input_scales.data(),
                    .output_format = CombineFormat::kBF16,
                    .output = buffers.decoded.data()});
}

const bf16* LayerRun::received_rows(int rank) const {
  return is_encoded() ? of(rank).decoded.data() : reinterpret_cast<const bf16*>(of(rank).rows.data());
}

const bf16* LayerRun::expert_input(int rank) const {
  return is_per_rank() ? of(rank).expert_rows.data() : received_rows(rank);
}

bf16* LayerRun::expert_output(int rank) const {
  return is_per_rank() ? of(rank).expert_results.data() : returned_rows(rank);
}

bf16* LayerRun::returned_rows(int rank) const {
  const RankBuffers& buffers = of(rank);
  return encodes_outputs() ? buffers.down.data() : reinterpret_cast<bf16*>(buffers.expert_outputs.data());
}

ExpandedRows LayerRun::expanded_rows(int rank) const {
  const RankBuffers& buffers = of(rank);
  return {.hidden = workload_.hidden,
          .top_k = workload_.top_k,
          .n_local_experts = ep_->n_local_experts(),
          .num_shared_groups = workload_.has_shared_expert ? 1 : 0,
          .row_offsets = buffers.row_offsets.data(),
          .row_counts = buffers.row_counts.data(),
          .row_experts = buffers.row_experts.data(),
          .row_weights = buffers.row_weights.data(),
          .group_offsets = buffers.group_offsets.data(),
          .group_counts = buffers.group_counts.data(),
          .row_of_choice = buffers.row_of_choice.data()};
}

LayerRun::ExpertGroups LayerRun::expert_groups(int rank) const {
  const RankBuffers& buffers = of(rank);
  if (is_per_rank())
    return {buffers.group_offsets.data(), buffers.group_counts.data(), buffers.group_ids.data()};
  return {buffers.row_offsets.data(), buffers.row_counts.data(), buffers.expert_ids.data()};
}

Status LayerRun::expand_rows(int rank) {
  const Rank& here = world_.rank(rank);
  LaunchShape one_block = layer_launch(rank);
  one_block.num_blocks = 1;
  SWITCHYARD_RETURN_IF_ERROR(kernel_table(here).place_choices(one_block, here.stream(), expanded_rows(rank)));
  return kernel_table(here).expand_rows(
      layer_launch(rank), here.stream(),
      {expanded_rows(rank), received_rows(rank), of(rank).expert_rows.data()});
}

Status LayerRun::sum_choices(int rank) {
  const Rank& here = world_.rank(rank);
  return kernel_table(here).sum_choices(layer_launch(rank), here.stream(),
                                        {expanded_rows(rank), expert_output(rank), returned_rows(rank)});
}

// Does what the epilogue of a matmul with an fp8 output would do.
Status LayerRun::encode_outputs(int rank) {
  const RankBuffers& buffers = of(rank);
  return kernel_table(world_.rank(rank))
      .recode_rows(layer_launch(rank), world_.rank(rank).stream(),
                   {.format = TokenFormatKind::kBF16,
                    .hidden = workload_.hidden,
                    .input = {.rows = reinterpret_cast<std::byte*>(buffers.down.data())},
                    .num_groups = ep_->num_groups(),
                    .row_offsets = buffers.row_offsets.data(),
                    .output_format = ep_->config().combine_format,
                    .output = buffers.expert_outputs.data()});
}

}  // namespace switchyard::tools
