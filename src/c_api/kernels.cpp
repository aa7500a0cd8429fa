// Attention and grouped matmul.
#include "handles.hpp"

namespace switchyard::c_api {
namespace {

Status read_shape(const switchyard_attention_shape* given, AttentionShape& shape) {
  switchyard_attention_shape from;
  SWITCHYARD_RETURN_IF_ERROR(read("shape", given, from));
  SWITCHYARD_RETURN_IF_ERROR(check_reserved("shape->reserved", from.reserved));
  shape.head_dim = or_default(from.head_dim, shape.head_dim);
  shape.num_heads = or_default(from.num_heads, 1);
  shape.num_kv_heads = or_default(from.num_kv_heads, 1);
  shape.batch_size = or_default(from.batch_size, 1);
  shape.max_query_len = from.max_query_len;
  shape.max_key_len = from.max_key_len;
  shape.num_query_rows = from.num_query_rows;
  shape.num_key_rows = from.num_key_rows;
  shape.causal = from.causal != 0;
  shape.window = from.window;
  shape.page_size = from.page_size;
  shape.pages_per_sequence = from.pages_per_sequence;
  shape.scale = from.scale;
  shape.num_blocks = from.num_blocks;
  shape.value_dim = from.value_dim;
  shape.soft_cap = from.soft_cap;
  return read_enum("kv_format", from.kv_format, KvFormat::kFP8, shape.kv_format);
}

Status read_shape(const switchyard_matmul_shape* given, GroupedMatmulShape& shape) {
  switchyard_matmul_shape from;
  SWITCHYARD_RETURN_IF_ERROR(read("shape", given, from));
  shape.num_groups = or_default(from.num_groups, 1);
  shape.num_experts = from.num_experts;
  shape.inner = from.inner;
  shape.columns = from.columns;
  shape.max_rows = from.max_rows;
  shape.group_capacity = from.group_capacity;
  shape.expected_rows_per_group = from.expected_rows_per_group;
  shape.num_blocks = from.num_blocks;
  shape.prefetch_bytes = from.prefetch_bytes;
  SWITCHYARD_RETURN_IF_ERROR(read_enum("element", from.element, MatmulElement::kFP8, shape.element));
  SWITCHYARD_RETURN_IF_ERROR(
      read_enum("activation", from.activation, Activation::kClampedSwiGLU, shape.activation));
  SWITCHYARD_RETURN_IF_ERROR(
      read_enum("gate_layout", from.gate_layout, GateLayout::kInterleaved, shape.gate_layout));
  SWITCHYARD_RETURN_IF_ERROR(read_enum("output", from.output, MatmulOutput::kFP8Rows, shape.output));
  SWITCHYARD_RETURN_IF_ERROR(read_enum("weights", from.weights, WeightFormat::kMXFP8, shape.weights));
  SWITCHYARD_RETURN_IF_ERROR(read_format("row_format", from.row_format, shape.row_format));
  return read_enum("row_scales", from.row_scales, MatmulRowScales::kFloatByRow, shape.row_scales);
}

}  // namespace
}  // namespace switchyard::c_api

using namespace switchyard;
using namespace switchyard::c_api;

switchyard_status switchyard_attention_create(const switchyard_world* world, int32_t rank,
                                              const switchyard_attention_shape* shape,
                                              switchyard_attention** attention) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("attention", attention));
    AttentionShape wanted;
    SWITCHYARD_RETURN_IF_ERROR(read_shape(shape, wanted));
    Result<std::unique_ptr<Attention>> made = Attention::create(world->world->rank(rank), wanted);
    if (made.ok()) *attention = new switchyard_attention{{}, world->world, std::move(made).value()};
    return made.status();
  });
}

void switchyard_attention_destroy(switchyard_attention* attention) { destroy(attention); }

switchyard_status switchyard_attention_run(switchyard_attention* attention,
                                           const switchyard_attention_tensors* tensors,
                                           switchyard_stream stream) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("attention", attention));
    switchyard_attention_tensors from;
    SWITCHYARD_RETURN_IF_ERROR(read("tensors", tensors, from));
    return attention->attention->run({.queries = static_cast<const bf16*>(from.queries),
                                      .keys = static_cast<const bf16*>(from.keys),
                                      .values = static_cast<const bf16*>(from.values),
                                      .output = static_cast<bf16*>(from.output),
                                      .lse = from.lse,
                                      .query_offsets = from.query_offsets,
                                      .key_offsets = from.key_offsets,
                                      .key_lengths = from.key_lengths,
                                      .page_table = from.page_table,
                                      .sinks = from.sinks,
                                      .key_codes = from.key_codes,
                                      .value_codes = from.value_codes,
                                      .key_scales = from.key_scales,
                                      .value_scales = from.value_scales},
                                     stream_of(stream));
  });
}

switchyard_status switchyard_matmul_create(const switchyard_world* world, int32_t rank,
                                           const switchyard_matmul_shape* shape, switchyard_matmul** matmul) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("world", world));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("matmul", matmul));
    GroupedMatmulShape wanted;
    SWITCHYARD_RETURN_IF_ERROR(read_shape(shape, wanted));
    Result<std::unique_ptr<GroupedMatmul>> made = GroupedMatmul::create(world->world->rank(rank), wanted);
    if (made.ok()) *matmul = new switchyard_matmul{{}, world->world, std::move(made).value()};
    return made.status();
  });
}

void switchyard_matmul_destroy(switchyard_matmul* matmul) { destroy(matmul); }

switchyard_status switchyard_matmul_run(switchyard_matmul* matmul, const switchyard_matmul_tensors* tensors,
                                        switchyard_stream stream) {
  return guard([&] {
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("matmul", matmul));
    switchyard_matmul_tensors from;
    SWITCHYARD_RETURN_IF_ERROR(read("tensors", tensors, from));
    return matmul->matmul->run({.rows = from.rows,
                                .weights = from.weights,
                                .output = from.output,
                                .row_offsets = from.row_offsets,
                                .row_counts = from.row_counts,
                                .expert_ids = from.expert_ids,
                                .row_scales = from.row_scales,
                                .row_tensor_scale = or_default(from.row_tensor_scale, 1.0f),
                                .device_row_tensor_scale = from.device_row_tensor_scale,
                                .row_tensor_scales = from.row_tensor_scales,
                                .num_row_tensor_scales = from.num_row_tensor_scales,
                                .weight_scales = from.weight_scales,
                                .weight_tensor_scales = from.weight_tensor_scales,
                                .bias = from.bias,
                                .row_weights = from.row_weights,
                                .output_scales = from.output_scales},
                               stream_of(stream));
  });
}
