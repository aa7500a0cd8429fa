// What the experts of a layer do between dispatch and combine.
#include "buffers.hpp"
#include "moe_layer.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard::tools {

const bf16* MoeLayer::received_rows(int rank) const {
  const RankBuffers& buffers = ranks_[static_cast<size_t>(rank)];
  return decodes_rows() ? buffers.decoded.data() : reinterpret_cast<const bf16*>(buffers.rows.data());
}

// The matmuls here take bf16 only.
Status MoeLayer::decode_rows() {
  return enqueue("decode", [&](int rank) {
    RankBuffers& buffers = ranks_[rank];
    return kernel_table(world_.rank(rank))
        .recode_rows(
            layer_launch(rank), world_.rank(rank).stream(),
            {.format = ep_->config().dispatch_format,
             .hidden = workload_.hidden,
             .input = {.rows = reinterpret_cast<std::byte*>(buffers.rows.data()),
                       .scales = reinterpret_cast<std::byte*>(buffers.scales.data()),
                       .max_rows = static_cast<uint32_t>(buffers.src_info.size() / 2),
                       .tensor_scale = style_.has_device_scale ? kInputScale : ep_->config().input_scale},
             .num_groups = ep_->num_groups(),
             .row_offsets = buffers.row_offsets.data(),
             .group_tensor_scales = buffers.group_input_scales.data(),
             .output_format = CombineFormat::kBF16,
             .output = buffers.decoded.data()});
  });
}

const bf16* MoeLayer::expert_input(int rank) const {
  return is_per_rank() ? ranks_[static_cast<size_t>(rank)].expert_rows.data() : received_rows(rank);
}

bf16* MoeLayer::expert_output(int rank) const {
  return is_per_rank() ? ranks_[static_cast<size_t>(rank)].expert_results.data() : returned_rows(rank);
}

bf16* MoeLayer::returned_rows(int rank) const {
  const RankBuffers& buffers = ranks_[static_cast<size_t>(rank)];
  return encodes_outputs() ? buffers.down.data() : reinterpret_cast<bf16*>(buffers.expert_outputs.data());
}

ExpandedRows MoeLayer::expanded_rows(int rank) const {
  const RankBuffers& buffers = ranks_[static_cast<size_t>(rank)];
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

MoeLayer::ExpertGroups MoeLayer::expert_groups(int rank) const {
  const RankBuffers& buffers = ranks_[static_cast<size_t>(rank)];
  if (is_per_rank())
    return {buffers.group_offsets.data(), buffers.group_counts.data(), buffers.group_ids.data()};
  return {buffers.row_offsets.data(), buffers.row_counts.data(), buffers.expert_ids.data()};
}

Status MoeLayer::expand_rows() {
  return enqueue("expand", [&](int rank) {
    const Rank& here = world_.rank(rank);
    LaunchShape one_block = layer_launch(rank);
    one_block.num_blocks = 1;
    SWITCHYARD_RETURN_IF_ERROR(
        kernel_table(here).place_choices(one_block, here.stream(), expanded_rows(rank)));
    return kernel_table(here).expand_rows(
        layer_launch(rank), here.stream(),
        {expanded_rows(rank), received_rows(rank), ranks_[static_cast<size_t>(rank)].expert_rows.data()});
  });
}

Status MoeLayer::sum_choices() {
  return enqueue("sum", [&](int rank) {
    const Rank& here = world_.rank(rank);
    return kernel_table(here).sum_choices(layer_launch(rank), here.stream(),
                                          {expanded_rows(rank), expert_output(rank), returned_rows(rank)});
  });
}

// Does what the epilogue of a matmul with an fp8 output would do.
Status MoeLayer::encode_outputs() {
  return enqueue("encode", [&](int rank) {
    RankBuffers& buffers = ranks_[rank];
    return kernel_table(world_.rank(rank))
        .recode_rows(layer_launch(rank), world_.rank(rank).stream(),
                     {.format = TokenFormatKind::kBF16,
                      .hidden = workload_.hidden,
                      .input = {.rows = reinterpret_cast<std::byte*>(buffers.down.data())},
                      .num_groups = ep_->num_groups(),
                      .row_offsets = buffers.row_offsets.data(),
                      .output_format = ep_->config().combine_format,
                      .output = buffers.expert_outputs.data()});
  });
}

Status MoeLayer::enqueue_experts() {
  if (decodes_rows()) SWITCHYARD_RETURN_IF_ERROR(decode_rows());
  if (is_per_rank()) SWITCHYARD_RETURN_IF_ERROR(expand_rows());
  SWITCHYARD_RETURN_IF_ERROR(is_fast() ? enqueue_fast_experts() : enqueue_plain_experts());
  if (is_per_rank()) SWITCHYARD_RETURN_IF_ERROR(sum_choices());
  return encodes_outputs() ? encode_outputs() : Status();
}

Status MoeLayer::enqueue_plain_experts() {
  const int num_groups = num_matrices(*ep_);
  const auto matmul = [&](int rank, const bf16* rows, int inner, const bf16* weights, int columns,
                          bf16* output) {
    const ExpertGroups groups = expert_groups(rank);
    const GroupedMatmulParams params{
        num_groups,        inner, columns, rows, weights, groups.row_offsets, groups.row_counts,
        groups.expert_ids, output};
    return kernel_table(world_.rank(rank))
        .grouped_matmul(layer_launch(rank), world_.rank(rank).stream(), params);
  };
  SWITCHYARD_RETURN_IF_ERROR(enqueue("gate_up", [&](int rank) {
    RankBuffers& buffers = ranks_[rank];
    return matmul(rank, expert_input(rank), workload_.hidden, buffers.gate_up_weights.data(),
                  2 * workload_.expert_width, buffers.gate_up.data());
  }));
  SWITCHYARD_RETURN_IF_ERROR(enqueue("silu_mul", [&](int rank) {
    RankBuffers& buffers = ranks_[rank];
    const SiluMulInput input{num_groups, workload_.expert_width, buffers.gate_up.data(),
                             expert_groups(rank).row_offsets};
    return kernel_table(world_.rank(rank))
        .silu_mul(layer_launch(rank), world_.rank(rank).stream(), input, {.rows = buffers.activated.data()});
  }));
  return enqueue("down", [&](int rank) {
    RankBuffers& buffers = ranks_[rank];
    return matmul(rank, buffers.activated.data(), workload_.expert_width, buffers.down_weights.data(),
                  workload_.hidden, expert_output(rank));
  });
}

Status MoeLayer::enqueue_fast_experts() {
  SWITCHYARD_RETURN_IF_ERROR(enqueue("gate_up", [&](int rank) {
    const ExpertGroups groups = expert_groups(rank);
    return fast_experts_->gate_up(rank, expert_input(rank), ranks_[static_cast<size_t>(rank)].scales.data(),
                                  {groups.row_offsets, groups.row_counts});
  }));
  return enqueue("down", [&](int rank) {
    const ExpertGroups groups = expert_groups(rank);
    return fast_experts_->down(rank, {groups.row_offsets, groups.row_counts}, expert_output(rank));
  });
}

double MoeLayer::tolerance() const {
  if (!is_fast()) return 0;
  const bool has_fp8 = multiplies_fp8() || ep_->config().combine_format != CombineFormat::kBF16;
  return has_fp8 ? 0.06 : 0.01;
}

}  // namespace switchyard::tools
