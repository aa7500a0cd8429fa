/* The layout of every public struct, as programs have been compiled with it. A number here never changes:
 * fields are added at the end, and only the size of their struct grows. */
#include <stdio.h>

#include "switchyard/switchyard.h"

static int num_moved = 0;

static void expect(const char* what, size_t found, size_t expected) {
  if (found == expected) return;
  ++num_moved;
  fprintf(stderr, "%s is %zu; it was %zu\n", what, found, expected);
}

#define SIZE(type, bytes) expect("sizeof(" #type ")", sizeof(type), bytes)
#define OFFSET(type, field, bytes) expect(#type "." #field, offsetof(type, field), bytes)

static void check_memory_functions(void) {
  SIZE(switchyard_memory_functions, 32);
  OFFSET(switchyard_memory_functions, size, 0);
  OFFSET(switchyard_memory_functions, context, 8);
  OFFSET(switchyard_memory_functions, allocate, 16);
  OFFSET(switchyard_memory_functions, deallocate, 24);
}

static void check_world_options(void) {
  SIZE(switchyard_world_options, 32);
  OFFSET(switchyard_world_options, size, 0);
  OFFSET(switchyard_world_options, target, 8);
  OFFSET(switchyard_world_options, n_ranks, 12);
  OFFSET(switchyard_world_options, num_gpus, 16);
  OFFSET(switchyard_world_options, num_workers, 20);
  OFFSET(switchyard_world_options, memory, 24);
}

static void check_join_options(void) {
  SIZE(switchyard_join_options, 88);
  OFFSET(switchyard_join_options, size, 0);
  OFFSET(switchyard_join_options, transport, 8);
  OFFSET(switchyard_join_options, target, 12);
  OFFSET(switchyard_join_options, rank, 16);
  OFFSET(switchyard_join_options, num_local_ranks, 20);
  OFFSET(switchyard_join_options, n_ranks, 24);
  OFFSET(switchyard_join_options, gpu_number, 28);
  OFFSET(switchyard_join_options, num_workers, 32);
  OFFSET(switchyard_join_options, num_processes, 36);
  OFFSET(switchyard_join_options, timeout_ns, 40);
  OFFSET(switchyard_join_options, all_gather, 48);
  OFFSET(switchyard_join_options, context, 56);
  OFFSET(switchyard_join_options, rendezvous, 64);
  OFFSET(switchyard_join_options, token, 72);
  OFFSET(switchyard_join_options, memory, 80);
}

static void check_world_info(void) {
  SIZE(switchyard_world_info, 24);
  OFFSET(switchyard_world_info, size, 0);
  OFFSET(switchyard_world_info, target, 8);
  OFFSET(switchyard_world_info, n_ranks, 12);
  OFFSET(switchyard_world_info, first_local_rank, 16);
  OFFSET(switchyard_world_info, num_local_ranks, 20);
}

static void check_format_info(void) {
  SIZE(switchyard_format_info, 64);
  OFFSET(switchyard_format_info, size, 0);
  OFFSET(switchyard_format_info, element_bits, 8);
  OFFSET(switchyard_format_info, group_size, 12);
  OFFSET(switchyard_format_info, hidden_multiple, 16);
  OFFSET(switchyard_format_info, row_alignment, 20);
  OFFSET(switchyard_format_info, row_bytes, 24);
  OFFSET(switchyard_format_info, num_scales, 28);
  OFFSET(switchyard_format_info, scale_element, 32);
  OFFSET(switchyard_format_info, num_scale_dimensions, 36);
  OFFSET(switchyard_format_info, scale_shape, 40);
  OFFSET(switchyard_format_info, scales_bytes, 56);
}

static void check_ep_config(void) {
  SIZE(switchyard_ep_config, 168);
  OFFSET(switchyard_ep_config, size, 0);
  OFFSET(switchyard_ep_config, n_experts, 8);
  OFFSET(switchyard_ep_config, top_k, 12);
  OFFSET(switchyard_ep_config, hidden, 16);
  OFFSET(switchyard_ep_config, max_tokens_per_rank, 20);
  OFFSET(switchyard_ep_config, n_sms, 24);
  OFFSET(switchyard_ep_config, num_threads, 28);
  OFFSET(switchyard_ep_config, timeout_ns, 32);
  OFFSET(switchyard_ep_config, first_timeout_ns, 40);
  OFFSET(switchyard_ep_config, dependent_launch, 48);
  OFFSET(switchyard_ep_config, protocol, 52);
  OFFSET(switchyard_ep_config, capacity_factor, 56);
  OFFSET(switchyard_ep_config, row_layout, 64);
  OFFSET(switchyard_ep_config, row_alignment, 68);
  OFFSET(switchyard_ep_config, max_rows_per_expert, 72);
  OFFSET(switchyard_ep_config, combine_format, 76);
  OFFSET(switchyard_ep_config, dispatch_format, 80);
  OFFSET(switchyard_ep_config, input_scale, 88);
  OFFSET(switchyard_ep_config, num_expert_input_scales, 92);
  OFFSET(switchyard_ep_config, expert_input_scales, 96);
  OFFSET(switchyard_ep_config, has_shared_expert, 104);
  OFFSET(switchyard_ep_config, skips_all_to_all, 108);
  OFFSET(switchyard_ep_config, p2p_world_size, 112);
  OFFSET(switchyard_ep_config, allreduce_world_size, 116);
  OFFSET(switchyard_ep_config, max_experts_per_rank, 120);
  OFFSET(switchyard_ep_config, counts_experts, 124);
  OFFSET(switchyard_ep_config, placement, 128);
  OFFSET(switchyard_ep_config, num_experts_of_rank, 136);
  OFFSET(switchyard_ep_config, steps_in_flight, 144);
  OFFSET(switchyard_ep_config, reserved, 148);
  OFFSET(switchyard_ep_config, row_sets, 152);
  OFFSET(switchyard_ep_config, row_delivery, 156);
  OFFSET(switchyard_ep_config, reduce_at_owner, 160);
  OFFSET(switchyard_ep_config, reserved_end, 164);
}

static void check_ep_info(void) {
  SIZE(switchyard_ep_info, 72);
  OFFSET(switchyard_ep_info, size, 0);
  OFFSET(switchyard_ep_info, n_ranks, 8);
  OFFSET(switchyard_ep_info, n_local_experts, 12);
  OFFSET(switchyard_ep_info, num_groups, 16);
  OFFSET(switchyard_ep_info, n_sms, 20);
  OFFSET(switchyard_ep_info, protocol, 24);
  OFFSET(switchyard_ep_info, max_rows_per_expert, 28);
  OFFSET(switchyard_ep_info, max_recv_rows, 32);
  OFFSET(switchyard_ep_info, dispatch_message_bytes, 40);
  OFFSET(switchyard_ep_info, combine_message_bytes, 44);
  OFFSET(switchyard_ep_info, bytes_per_rank, 48);
  OFFSET(switchyard_ep_info, rows_per_set, 56);
  OFFSET(switchyard_ep_info, row_delivery, 64);
  OFFSET(switchyard_ep_info, reserved, 68);
}

static void check_row_buffers(void) {
  SIZE(switchyard_row_buffers, 64);
  OFFSET(switchyard_row_buffers, size, 0);
  OFFSET(switchyard_row_buffers, rows, 8);
  OFFSET(switchyard_row_buffers, scales, 16);
  OFFSET(switchyard_row_buffers, src_info, 24);
  OFFSET(switchyard_row_buffers, expert_outputs, 32);
  OFFSET(switchyard_row_buffers, encoded_outputs, 40);
  OFFSET(switchyard_row_buffers, max_rows, 48);
  OFFSET(switchyard_row_buffers, reserved, 52);
  OFFSET(switchyard_row_buffers, expert_tensor_scales, 56);
}

static void check_dispatch_input(void) {
  SIZE(switchyard_dispatch_input, 104);
  OFFSET(switchyard_dispatch_input, size, 0);
  OFFSET(switchyard_dispatch_input, tokens, 8);
  OFFSET(switchyard_dispatch_input, topk_ids, 16);
  OFFSET(switchyard_dispatch_input, num_tokens, 24);
  OFFSET(switchyard_dispatch_input, topk_weights, 32);
  OFFSET(switchyard_dispatch_input, topk_ids_64, 40);
  OFFSET(switchyard_dispatch_input, token_stride_bytes, 48);
  OFFSET(switchyard_dispatch_input, scales, 56);
  OFFSET(switchyard_dispatch_input, scales_stride_bytes, 64);
  OFFSET(switchyard_dispatch_input, input_scale, 72);
  OFFSET(switchyard_dispatch_input, input_format, 80);
  OFFSET(switchyard_dispatch_input, rank_wait_ns, 88);
  OFFSET(switchyard_dispatch_input, row_set, 96);
  OFFSET(switchyard_dispatch_input, reserved, 100);
}

static void check_dispatch_output(void) {
  SIZE(switchyard_dispatch_output, 128);
  OFFSET(switchyard_dispatch_output, size, 0);
  OFFSET(switchyard_dispatch_output, rows, 8);
  OFFSET(switchyard_dispatch_output, src_info, 16);
  OFFSET(switchyard_dispatch_output, row_offsets, 24);
  OFFSET(switchyard_dispatch_output, expert_ids, 32);
  OFFSET(switchyard_dispatch_output, scales, 40);
  OFFSET(switchyard_dispatch_output, scale_row_offsets, 48);
  OFFSET(switchyard_dispatch_output, row_counts, 56);
  OFFSET(switchyard_dispatch_output, src_ranks, 64);
  OFFSET(switchyard_dispatch_output, max_rows, 72);
  OFFSET(switchyard_dispatch_output, unwritten, 76);
  OFFSET(switchyard_dispatch_output, row_experts, 80);
  OFFSET(switchyard_dispatch_output, row_weights, 88);
  OFFSET(switchyard_dispatch_output, rank_wait_ns, 96);
  OFFSET(switchyard_dispatch_output, expert_totals, 104);
  OFFSET(switchyard_dispatch_output, source_ranges, 112);
  OFFSET(switchyard_dispatch_output, row_totals, 120);
}

static void check_combine_input(void) {
  SIZE(switchyard_combine_input, 32);
  OFFSET(switchyard_combine_input, size, 0);
  OFFSET(switchyard_combine_input, expert_rows, 8);
  OFFSET(switchyard_combine_input, src_info, 16);
  OFFSET(switchyard_combine_input, awaits_readers, 24);
  OFFSET(switchyard_combine_input, reserved, 28);
}

static void check_combine_output(void) {
  SIZE(switchyard_combine_output, 56);
  OFFSET(switchyard_combine_output, size, 0);
  OFFSET(switchyard_combine_output, topk_ids, 8);
  OFFSET(switchyard_combine_output, topk_weights, 16);
  OFFSET(switchyard_combine_output, output, 24);
  OFFSET(switchyard_combine_output, num_tokens, 32);
  OFFSET(switchyard_combine_output, reduction, 36);
  OFFSET(switchyard_combine_output, output_stride_bytes, 40);
  OFFSET(switchyard_combine_output, rank_wait_ns, 48);
}

static void check_expert_rows(void) {
  SIZE(switchyard_expert_rows, 48);
  OFFSET(switchyard_expert_rows, size, 0);
  OFFSET(switchyard_expert_rows, rows, 8);
  OFFSET(switchyard_expert_rows, num_rows, 16);
  OFFSET(switchyard_expert_rows, row_offsets, 24);
  OFFSET(switchyard_expert_rows, row_counts, 32);
  OFFSET(switchyard_expert_rows, rows_per_group, 40);
  OFFSET(switchyard_expert_rows, reserved, 44);
}

static void check_routing(void) {
  SIZE(switchyard_routing_input, 32);
  OFFSET(switchyard_routing_input, size, 0);
  OFFSET(switchyard_routing_input, topk_ids, 8);
  OFFSET(switchyard_routing_input, num_tokens, 16);
  OFFSET(switchyard_routing_input, top_k, 20);
  OFFSET(switchyard_routing_input, n_experts, 24);
  OFFSET(switchyard_routing_input, reserved, 28);
  SIZE(switchyard_routing_counts, 32);
  OFFSET(switchyard_routing_counts, size, 0);
  OFFSET(switchyard_routing_counts, tokens_of_rank, 8);
  OFFSET(switchyard_routing_counts, choices_of_expert, 16);
  OFFSET(switchyard_routing_counts, is_token_in_rank, 24);
}

static void check_fault(void) {
  SIZE(switchyard_fault, 56);
  OFFSET(switchyard_fault, size, 0);
  OFFSET(switchyard_fault, kind, 8);
  OFFSET(switchyard_fault, phase, 12);
  OFFSET(switchyard_fault, waiting_rank, 16);
  OFFSET(switchyard_fault, late_rank, 20);
  OFFSET(switchyard_fault, expert, 24);
  OFFSET(switchyard_fault, expected, 32);
  OFFSET(switchyard_fault, seen, 40);
  OFFSET(switchyard_fault, elapsed_ns, 48);
}

static void check_attention_shape(void) {
  SIZE(switchyard_attention_shape, 88);
  OFFSET(switchyard_attention_shape, size, 0);
  OFFSET(switchyard_attention_shape, head_dim, 8);
  OFFSET(switchyard_attention_shape, num_heads, 12);
  OFFSET(switchyard_attention_shape, num_kv_heads, 16);
  OFFSET(switchyard_attention_shape, batch_size, 20);
  OFFSET(switchyard_attention_shape, max_query_len, 24);
  OFFSET(switchyard_attention_shape, max_key_len, 28);
  OFFSET(switchyard_attention_shape, num_query_rows, 32);
  OFFSET(switchyard_attention_shape, num_key_rows, 40);
  OFFSET(switchyard_attention_shape, causal, 48);
  OFFSET(switchyard_attention_shape, window, 52);
  OFFSET(switchyard_attention_shape, page_size, 56);
  OFFSET(switchyard_attention_shape, pages_per_sequence, 60);
  OFFSET(switchyard_attention_shape, scale, 64);
  OFFSET(switchyard_attention_shape, num_blocks, 68);
  OFFSET(switchyard_attention_shape, value_dim, 72);
  OFFSET(switchyard_attention_shape, kv_format, 76);
  OFFSET(switchyard_attention_shape, soft_cap, 80);
  OFFSET(switchyard_attention_shape, reserved, 84);
}

static void check_attention_tensors(void) {
  SIZE(switchyard_attention_tensors, 120);
  OFFSET(switchyard_attention_tensors, size, 0);
  OFFSET(switchyard_attention_tensors, queries, 8);
  OFFSET(switchyard_attention_tensors, keys, 16);
  OFFSET(switchyard_attention_tensors, values, 24);
  OFFSET(switchyard_attention_tensors, output, 32);
  OFFSET(switchyard_attention_tensors, lse, 40);
  OFFSET(switchyard_attention_tensors, query_offsets, 48);
  OFFSET(switchyard_attention_tensors, key_offsets, 56);
  OFFSET(switchyard_attention_tensors, key_lengths, 64);
  OFFSET(switchyard_attention_tensors, page_table, 72);
  OFFSET(switchyard_attention_tensors, sinks, 80);
  OFFSET(switchyard_attention_tensors, key_codes, 88);
  OFFSET(switchyard_attention_tensors, value_codes, 96);
  OFFSET(switchyard_attention_tensors, key_scales, 104);
  OFFSET(switchyard_attention_tensors, value_scales, 112);
}

static void check_matmul_shape(void) {
  SIZE(switchyard_matmul_shape, 96);
  OFFSET(switchyard_matmul_shape, size, 0);
  OFFSET(switchyard_matmul_shape, num_groups, 8);
  OFFSET(switchyard_matmul_shape, num_experts, 12);
  OFFSET(switchyard_matmul_shape, element, 16);
  OFFSET(switchyard_matmul_shape, inner, 20);
  OFFSET(switchyard_matmul_shape, columns, 24);
  OFFSET(switchyard_matmul_shape, activation, 28);
  OFFSET(switchyard_matmul_shape, gate_layout, 32);
  OFFSET(switchyard_matmul_shape, output, 36);
  OFFSET(switchyard_matmul_shape, max_rows, 40);
  OFFSET(switchyard_matmul_shape, group_capacity, 48);
  OFFSET(switchyard_matmul_shape, expected_rows_per_group, 56);
  OFFSET(switchyard_matmul_shape, num_blocks, 64);
  OFFSET(switchyard_matmul_shape, reserved, 68);
  OFFSET(switchyard_matmul_shape, weights, 72);
  OFFSET(switchyard_matmul_shape, row_scales, 76);
  OFFSET(switchyard_matmul_shape, row_format, 80);
  OFFSET(switchyard_matmul_shape, prefetch_bytes, 88);
}

static void check_matmul_tensors(void) {
  SIZE(switchyard_matmul_tensors, 128);
  OFFSET(switchyard_matmul_tensors, size, 0);
  OFFSET(switchyard_matmul_tensors, rows, 8);
  OFFSET(switchyard_matmul_tensors, weights, 16);
  OFFSET(switchyard_matmul_tensors, output, 24);
  OFFSET(switchyard_matmul_tensors, row_offsets, 32);
  OFFSET(switchyard_matmul_tensors, row_counts, 40);
  OFFSET(switchyard_matmul_tensors, expert_ids, 48);
  OFFSET(switchyard_matmul_tensors, row_scales, 56);
  OFFSET(switchyard_matmul_tensors, weight_scales, 64);
  OFFSET(switchyard_matmul_tensors, bias, 72);
  OFFSET(switchyard_matmul_tensors, row_weights, 80);
  OFFSET(switchyard_matmul_tensors, output_scales, 88);
  OFFSET(switchyard_matmul_tensors, weight_tensor_scales, 96);
  OFFSET(switchyard_matmul_tensors, device_row_tensor_scale, 104);
  OFFSET(switchyard_matmul_tensors, row_tensor_scales, 112);
  OFFSET(switchyard_matmul_tensors, num_row_tensor_scales, 120);
  OFFSET(switchyard_matmul_tensors, row_tensor_scale, 124);
}

static void check_moe_layer_config(void) {
  SIZE(switchyard_moe_layer_config, 64);
  OFFSET(switchyard_moe_layer_config, size, 0);
  OFFSET(switchyard_moe_layer_config, ep, 8);
  OFFSET(switchyard_moe_layer_config, weights, 16);
  OFFSET(switchyard_moe_layer_config, expert_width, 20);
  OFFSET(switchyard_moe_layer_config, activation, 24);
  OFFSET(switchyard_moe_layer_config, gate_layout, 28);
  OFFSET(switchyard_moe_layer_config, expected_tokens_per_rank, 32);
  OFFSET(switchyard_moe_layer_config, num_matmul_blocks, 36);
  OFFSET(switchyard_moe_layer_config, gate_up_start, 40);
  OFFSET(switchyard_moe_layer_config, combine_start, 44);
  OFFSET(switchyard_moe_layer_config, launches, 48);
  OFFSET(switchyard_moe_layer_config, reserved, 52);
  OFFSET(switchyard_moe_layer_config, prefetch_bytes, 56);
}

static void check_expert_weights(void) {
  SIZE(switchyard_expert_weights, 72);
  OFFSET(switchyard_expert_weights, size, 0);
  OFFSET(switchyard_expert_weights, gate_up, 8);
  OFFSET(switchyard_expert_weights, down, 16);
  OFFSET(switchyard_expert_weights, gate_up_scales, 24);
  OFFSET(switchyard_expert_weights, down_scales, 32);
  OFFSET(switchyard_expert_weights, gate_up_bias, 40);
  OFFSET(switchyard_expert_weights, down_bias, 48);
  OFFSET(switchyard_expert_weights, gate_up_tensor_scales, 56);
  OFFSET(switchyard_expert_weights, down_tensor_scales, 64);
}

static void check_moe_layer_step(void) {
  SIZE(switchyard_moe_layer_step, 104);
  OFFSET(switchyard_moe_layer_step, size, 0);
  OFFSET(switchyard_moe_layer_step, tokens, 8);
  OFFSET(switchyard_moe_layer_step, logits, 16);
  OFFSET(switchyard_moe_layer_step, topk_ids, 24);
  OFFSET(switchyard_moe_layer_step, topk_weights, 32);
  OFFSET(switchyard_moe_layer_step, output, 40);
  OFFSET(switchyard_moe_layer_step, num_tokens, 48);
  OFFSET(switchyard_moe_layer_step, input_format, 52);
  OFFSET(switchyard_moe_layer_step, topk_ids_64, 56);
  OFFSET(switchyard_moe_layer_step, scales, 64);
  OFFSET(switchyard_moe_layer_step, input_scale, 72);
  OFFSET(switchyard_moe_layer_step, token_stride_bytes, 80);
  OFFSET(switchyard_moe_layer_step, scales_stride_bytes, 88);
  OFFSET(switchyard_moe_layer_step, output_stride_bytes, 96);
}

static void check_constants(void) {
  expect("SWITCHYARD_OK", SWITCHYARD_OK, 0);
  expect("SWITCHYARD_INVALID_ARGUMENT", SWITCHYARD_INVALID_ARGUMENT, 1);
  expect("SWITCHYARD_FAILED_PRECONDITION", SWITCHYARD_FAILED_PRECONDITION, 2);
  expect("SWITCHYARD_RESOURCE_EXHAUSTED", SWITCHYARD_RESOURCE_EXHAUSTED, 3);
  expect("SWITCHYARD_DEADLINE_EXCEEDED", SWITCHYARD_DEADLINE_EXCEEDED, 4);
  expect("SWITCHYARD_DEADLOCK", SWITCHYARD_DEADLOCK, 5);
  expect("SWITCHYARD_UNAVAILABLE", SWITCHYARD_UNAVAILABLE, 6);
  expect("SWITCHYARD_INTERNAL", SWITCHYARD_INTERNAL, 7);
  expect("SWITCHYARD_TARGET_AUTO", SWITCHYARD_TARGET_AUTO, 0);
  expect("SWITCHYARD_TARGET_HOST", SWITCHYARD_TARGET_HOST, 1);
  expect("SWITCHYARD_TARGET_CUDA", SWITCHYARD_TARGET_CUDA, 2);
  expect("SWITCHYARD_TRANSPORT_PROCESS", SWITCHYARD_TRANSPORT_PROCESS, 0);
  expect("SWITCHYARD_TRANSPORT_SHMEM", SWITCHYARD_TRANSPORT_SHMEM, 1);
  expect("SWITCHYARD_PROTOCOL_AUTOMATIC", SWITCHYARD_PROTOCOL_AUTOMATIC, 0);
  expect("SWITCHYARD_PROTOCOL_SLOTTED", SWITCHYARD_PROTOCOL_SLOTTED, 1);
  expect("SWITCHYARD_PROTOCOL_DIRECT", SWITCHYARD_PROTOCOL_DIRECT, 2);
  expect("SWITCHYARD_INPUT_BF16", SWITCHYARD_INPUT_BF16, 0);
  expect("SWITCHYARD_INPUT_ENCODED", SWITCHYARD_INPUT_ENCODED, 1);
  expect("SWITCHYARD_ALL_RANKS + 1", SWITCHYARD_ALL_RANKS + 1, 0);
  expect("SWITCHYARD_ROWS_RAGGED", SWITCHYARD_ROWS_RAGGED, 0);
  expect("SWITCHYARD_ROWS_MASKED", SWITCHYARD_ROWS_MASKED, 1);
  expect("SWITCHYARD_ROWS_PER_RANK", SWITCHYARD_ROWS_PER_RANK, 2);
  expect("SWITCHYARD_COMBINE_BF16", SWITCHYARD_COMBINE_BF16, 0);
  expect("SWITCHYARD_COMBINE_FP8", SWITCHYARD_COMBINE_FP8, 1);
  expect("SWITCHYARD_REDUCTION_WEIGHTED", SWITCHYARD_REDUCTION_WEIGHTED, 0);
  expect("SWITCHYARD_REDUCTION_UNREDUCED", SWITCHYARD_REDUCTION_UNREDUCED, 1);
  expect("SWITCHYARD_DELIVERY_AUTOMATIC", SWITCHYARD_DELIVERY_AUTOMATIC, 0);
  expect("SWITCHYARD_DELIVERY_SENDER", SWITCHYARD_DELIVERY_SENDER, 1);
  expect("SWITCHYARD_DELIVERY_RECEIVER", SWITCHYARD_DELIVERY_RECEIVER, 2);
  expect("SWITCHYARD_UNWRITTEN_LEFT", SWITCHYARD_UNWRITTEN_LEFT, 0);
  expect("SWITCHYARD_UNWRITTEN_MARKED", SWITCHYARD_UNWRITTEN_MARKED, 1);
  expect("SWITCHYARD_UNWRITTEN_ZEROED", SWITCHYARD_UNWRITTEN_ZEROED, 2);
  expect("SWITCHYARD_FAULT_NONE", SWITCHYARD_FAULT_NONE, 0);
  expect("SWITCHYARD_FAULT_TIMEOUT", SWITCHYARD_FAULT_TIMEOUT, 1);
  expect("SWITCHYARD_FAULT_BAD_EXPERT_ID", SWITCHYARD_FAULT_BAD_EXPERT_ID, 2);
  expect("SWITCHYARD_FAULT_TOO_MANY_ROWS", SWITCHYARD_FAULT_TOO_MANY_ROWS, 3);
  expect("SWITCHYARD_FAULT_OVER_CAPACITY", SWITCHYARD_FAULT_OVER_CAPACITY, 4);
  expect("SWITCHYARD_FAULT_TOKEN_COUNT_MISMATCH", SWITCHYARD_FAULT_TOKEN_COUNT_MISMATCH, 5);
  expect("SWITCHYARD_FAULT_BAD_SOURCE_INFO", SWITCHYARD_FAULT_BAD_SOURCE_INFO, 6);
  expect("SWITCHYARD_FAULT_NO_EXPERT_ROWS", SWITCHYARD_FAULT_NO_EXPERT_ROWS, 7);
  expect("SWITCHYARD_FAULT_PEER_ENDED", SWITCHYARD_FAULT_PEER_ENDED, 8);
  expect("SWITCHYARD_FAULT_CALLED_OFF", SWITCHYARD_FAULT_CALLED_OFF, 9);
  expect("SWITCHYARD_PHASE_NONE", SWITCHYARD_PHASE_NONE, 0);
  expect("SWITCHYARD_PHASE_DISPATCH_ASYNC", SWITCHYARD_PHASE_DISPATCH_ASYNC, 1);
  expect("SWITCHYARD_PHASE_DISPATCH_WAIT", SWITCHYARD_PHASE_DISPATCH_WAIT, 2);
  expect("SWITCHYARD_PHASE_COMBINE_ASYNC", SWITCHYARD_PHASE_COMBINE_ASYNC, 3);
  expect("SWITCHYARD_PHASE_COMBINE_WAIT", SWITCHYARD_PHASE_COMBINE_WAIT, 4);
  expect("SWITCHYARD_PHASE_ALL_REDUCE", SWITCHYARD_PHASE_ALL_REDUCE, 5);
  expect("SWITCHYARD_KV_BF16", SWITCHYARD_KV_BF16, 0);
  expect("SWITCHYARD_KV_FP8", SWITCHYARD_KV_FP8, 1);
  expect("SWITCHYARD_MATMUL_BF16", SWITCHYARD_MATMUL_BF16, 0);
  expect("SWITCHYARD_MATMUL_FP8", SWITCHYARD_MATMUL_FP8, 1);
  expect("SWITCHYARD_MATMUL_FP8_ROWS", SWITCHYARD_MATMUL_FP8_ROWS, 2);
  expect("SWITCHYARD_ACTIVATION_NONE", SWITCHYARD_ACTIVATION_NONE, 0);
  expect("SWITCHYARD_ACTIVATION_SILU", SWITCHYARD_ACTIVATION_SILU, 1);
  expect("SWITCHYARD_ACTIVATION_GELU", SWITCHYARD_ACTIVATION_GELU, 2);
  expect("SWITCHYARD_ACTIVATION_CLAMPED_SWIGLU", SWITCHYARD_ACTIVATION_CLAMPED_SWIGLU, 3);
  expect("SWITCHYARD_GATES_STACKED", SWITCHYARD_GATES_STACKED, 0);
  expect("SWITCHYARD_GATES_INTERLEAVED", SWITCHYARD_GATES_INTERLEAVED, 1);
  expect("SWITCHYARD_WEIGHTS_AS_ROWS", SWITCHYARD_WEIGHTS_AS_ROWS, 0);
  expect("SWITCHYARD_WEIGHTS_MXFP4", SWITCHYARD_WEIGHTS_MXFP4, 1);
  expect("SWITCHYARD_WEIGHTS_NVFP4", SWITCHYARD_WEIGHTS_NVFP4, 2);
  expect("SWITCHYARD_WEIGHTS_MXFP8", SWITCHYARD_WEIGHTS_MXFP8, 3);
  expect("SWITCHYARD_ROW_SCALES_FLOAT", SWITCHYARD_ROW_SCALES_FLOAT, 0);
  expect("SWITCHYARD_ROW_SCALES_PACKED_E8M0", SWITCHYARD_ROW_SCALES_PACKED_E8M0, 1);
  expect("SWITCHYARD_ROW_SCALES_FLOAT_BY_ROW", SWITCHYARD_ROW_SCALES_FLOAT_BY_ROW, 2);
  expect("SWITCHYARD_SCALES_FLOAT", SWITCHYARD_SCALES_FLOAT, 0);
  expect("SWITCHYARD_SCALES_BYTE", SWITCHYARD_SCALES_BYTE, 1);
  expect("SWITCHYARD_SCALES_WORD", SWITCHYARD_SCALES_WORD, 2);
  expect("SWITCHYARD_SCALES_TILED", SWITCHYARD_SCALES_TILED, 3);
  expect("SWITCHYARD_GATE_UP_BEHIND_DISPATCH", SWITCHYARD_GATE_UP_BEHIND_DISPATCH, 0);
  expect("SWITCHYARD_GATE_UP_WITH_ROWS", SWITCHYARD_GATE_UP_WITH_ROWS, 1);
  expect("SWITCHYARD_COMBINE_BEHIND_EXPERTS", SWITCHYARD_COMBINE_BEHIND_EXPERTS, 0);
  expect("SWITCHYARD_COMBINE_WITH_EXPERTS", SWITCHYARD_COMBINE_WITH_EXPERTS, 1);
  expect("SWITCHYARD_LAUNCHES_FUSED", SWITCHYARD_LAUNCHES_FUSED, 0);
  expect("SWITCHYARD_LAUNCHES_SPLIT", SWITCHYARD_LAUNCHES_SPLIT, 1);
  expect("SWITCHYARD_RANK_STREAM", (size_t)(uintptr_t)SWITCHYARD_RANK_STREAM, (size_t)-1);
}

int main(void) {
  check_memory_functions();
  check_world_options();
  check_join_options();
  check_world_info();
  check_format_info();
  check_ep_config();
  check_ep_info();
  check_row_buffers();
  check_dispatch_input();
  check_dispatch_output();
  check_combine_input();
  check_combine_output();
  check_expert_rows();
  check_routing();
  check_fault();
  check_attention_shape();
  check_attention_tensors();
  check_matmul_shape();
  check_matmul_tensors();
  check_moe_layer_config();
  check_expert_weights();
  check_moe_layer_step();
  check_constants();
  return num_moved == 0 ? 0 : 1;
}
