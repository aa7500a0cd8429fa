// GroupedMatmul: a persistent matmul over the groups of rows that dispatch writes, in bf16 or blockwise fp8.
// The rows of each group are multiplied by the weights of the group's expert. In bf16 the kernel also takes
// rows in any token format, and weights that are MXFP4, NVFP4 or MXFP8 codes, and decodes both. The kernel
// reads the number of rows of each group on the device, so the host need not know it. Before the sums are
// stored, an epilogue may add a bias, weigh the rows, or turn gates and ups into the input of the next
// matmul.
//
//   auto matmul = GroupedMatmul::create(rank, {.num_groups = 32, .inner = 7168, .columns = 4096,
//                                              .max_rows = 4096}).value();
//   Status status = matmul->run({rows, weights, output, row_offsets});
#pragma once

#include <memory>
#include <optional>

#include "switchyard/token_format.hpp"
#include "switchyard/types/bf16.hpp"
#include "switchyard/types/matmul_epilogue.hpp"
#include "switchyard/types/matmul_tuning.hpp"
#include "switchyard/world.hpp"

namespace switchyard {

struct RowCompletion;
struct RowReadiness;

// What a grouped matmul reads.
struct MatmulRows {
  MatmulElement element = MatmulElement::kBF16;
  MatmulRowScales row_scales = MatmulRowScales::kFloat;
  TokenFormatKind row_format = TokenFormatKind::kBF16;
};
// What a matmul with such weights must read where dispatch writes rows in `format`. The matrix unit
// multiplies e4m3 whose scales are of 128 elements; rows in other formats are decoded to bf16, and so are all
// where the weights are codes.
constexpr MatmulRows matmul_rows_of(TokenFormatKind format, WeightFormat weights = WeightFormat::kAsRows) {
  if (!is_coded(weights) && format == TokenFormatKind::kFP8)
    return {MatmulElement::kFP8, MatmulRowScales::kFloat};
  if (!is_coded(weights) && format == TokenFormatKind::kFP8UE8M0)
    return {MatmulElement::kFP8, MatmulRowScales::kPackedE8M0};
  if (!is_coded(weights) && format == TokenFormatKind::kFP8ByRow)
    return {MatmulElement::kFP8, MatmulRowScales::kFloatByRow};
  return {.row_format = format};
}

// The sizes of a grouped matmul; they are fixed when it is made.
struct GroupedMatmulShape {
  int num_groups = 1;
  int num_experts = 0;                                   // how many experts the weights have; 0: num_groups
  MatmulElement element = MatmulElement::kBF16;          // of rows, and of weights unless these are coded
  MatmulRowScales row_scales = MatmulRowScales::kFloat;  // in fp8
  WeightFormat weights = WeightFormat::kAsRows;          // coded ones need element bf16
  // With element bf16: what rows hold. Codes are decoded to bf16 on the way to the matrix unit, with the bits
  // that recode_rows would give. Groups begin at multiples of the format's row_alignment, as dispatch has
  // them.
  TokenFormatKind row_format = TokenFormatKind::kBF16;
  // K: a multiple of 8; of 16 in fp8; with coded weights of inner_multiple_of() them, 64 (4 bits) or 32; with
  // coded rows of the format's hidden_multiple().
  int inner = 0;
  // N, a multiple of 8; of 16 with an activation; of 128 with one in fp8, and for an output of fp8-rows.
  int columns = 0;
  // With an activation the columns of the weights are gates and ups, and the output has N / 2 columns.
  Activation activation = Activation::kNone;
  GateLayout gate_layout = GateLayout::kStacked;
  // What the output holds: bf16; fp8, in the layout that the next matmul in fp8 reads, only with an
  // activation and from a matmul in fp8; or rows of fp8, as a combine in fp8 reads them in the direct
  // protocol, only without an activation and where neither rows nor weights are codes.
  MatmulOutput output = MatmulOutput::kBF16;
  int64_t max_rows = 0;  // how many rows the tensors hold, of all groups together
  // If not 0, group g begins at row g * group_capacity, and row_counts say how many of its rows are used. If
  // 0, groups begin where row_offsets say.
  int64_t group_capacity = 0;
  // How many rows a group has on average, by which the tuning is chosen; 0: max_rows / num_groups.
  int64_t expected_rows_per_group = 0;
  int num_blocks = 0;                  // the most blocks of a launch; 0: one per multiprocessor
  std::optional<MatmulTuning> tuning;  // if empty, choose_matmul_tuning() chooses it
  // CUDA: a launch asks for so many bytes of the weights, from the first expert on, to be brought into the L2
  // while it waits for the end of the launch in front of it.
  int64_t prefetch_bytes = 0;
};

// The tensors of one launch, in memory of the rank's device. Rows, weights and output are contiguous and
// 16-byte aligned, scales 4-byte aligned; scales of rows and of weights that have none must be null. Kernels
// do not check offsets, counts and ids: these must lie within the shape.
struct GroupedMatmulTensors {
  const void* rows = nullptr;     // [max_rows][K]; of a coded row_format as dispatch writes them
  const void* weights = nullptr;  // [num_experts][N][K], of codes of 4 bits two in a byte
  // [max_rows][N], or [N / 2]; rows of fp8: of combine_row_bytes(CombineFormat::kFP8, N) bytes each. Rows of
  // no group are not written.
  void* output = nullptr;
  const uint32_t* row_offsets = nullptr;  // [num_groups + 1]; [num_groups] with row_counts
  const uint32_t* row_counts = nullptr;   // [num_groups]; null: a group ends where the next one begins
  const int32_t* expert_ids = nullptr;    // [num_groups]; null: group g has the weights of expert g
  // fp8: element = code * scale. float [ceil(K / 128)][max_rows rounded up to 4], as dispatch in fp8 writes
  // them; packed, uint32_t [ceil(K / 512)][max_rows rounded up to 4], as dispatch in fp8-ue8m0 does; by row,
  // float [max_rows][ceil(K / 128)], as dispatch in fp8-by-row does.
  // Of a coded row_format, as dispatch writes its scales: TokenFormatInfo::scale_tensor(max_rows, K).
  const void* row_scales = nullptr;
  // Rows in NVFP4: their tensor scale, or where it is in the rank's memory. If row_tensor_scales is not null,
  // the last groups have one each, [num_row_tensor_scales] (0: all groups), and the groups in front of them
  // that; groups must then lie in their order.
  float row_tensor_scale = 1;
  const float* device_row_tensor_scale = nullptr;
  const float* row_tensor_scales = nullptr;
  int num_row_tensor_scales = 0;
  // fp8: float [num_experts][ceil(N / 128)][ceil(K / 128)]. Coded weights: e8m0 [num_experts][N][K / 32], of
  // scales from 2^-80 to 2^32; of NVFP4, e4m3 [num_experts][N][K / 16]. Neither these nor the weights may be
  // NaN.
  const void* weight_scales = nullptr;
  // Coded weights: [num_experts], what all weights of an expert are multiplied by, which NVFP4 calls the
  // tensor scale; null: 1. The sums are multiplied by it, so that it rounds no weight.
  const float* weight_tensor_scales = nullptr;
  // Added to the sums: [num_experts][N], with the columns as in the weights; null: none.
  const float* bias = nullptr;
  // Without an activation: [max_rows], the factor of each row, bias included. Null: rows are not multiplied.
  const float* row_weights = nullptr;
  // Output in fp8: [ceil(N / 2 / 128)][max_rows rounded up to 4], as row_scales of the next matmul.
  float* output_scales = nullptr;
  // Rows that may still be on their way: the launch stands between dispatch_async and dispatch_wait, and a
  // tile is begun when the rows of its group have arrived (row_readiness.hpp). Its last groups are the rank's
  // experts; the groups before them need no wait. Only with an activation, with an output of the rows'
  // element, where neither rows nor weights are codes, and without row_counts, which dispatch_wait writes.
  // Scales of rows in fp8 come with the rows, as those of fp8-by-row do. Null: all rows are there. It is read
  // before run() returns.
  const RowReadiness* readiness = nullptr;
  // Rows that combine takes while this launch still runs: it tells of each group that is complete
  // (row_completion.hpp), and lets the launch behind it in at once. Without an activation, where neither rows
  // nor weights are codes, with output in bf16 and without expert_ids. Null: the end of the launch tells. It
  // is read before run() returns.
  const RowCompletion* completion = nullptr;
};

// A grouped matmul of one shape on one rank.
//
// Ownership: the caller owns the object, and the rank must outlive it. The object owns the word from which
// blocks take their tiles; the caller owns the tensors, which must stay valid until the launch has ended. The
// object may be destroyed while its launches run, but must outlive the launches of a graph that holds one.
// Stream: run() enqueues one kernel, on the rank's stream or on the one that it is given, and returns. It
// allocates nothing, waits for nothing and copies nothing, so it can be captured as a graph, by
// World::capture() or by the caller. The destructor waits for the device if run() was ever given a stream of
// the caller's.
//   With `readiness` the launch waits for peers: row_readiness() counts its num_blocks(), and the launch
//   behind it becomes resident when its blocks end.
// Threads: one call at a time. Launches of one object must not overlap; on one stream they never do.
// Errors: create() and run() check shape and pointers and return kInvalidArgument with the argument, its
// value and its limit; nothing has been enqueued then. create() returns kResourceExhausted if memory is
// short. What the kernel reads on the device is not checked. What goes wrong while it runs is returned by
// Rank::synchronize().
class GroupedMatmul {
 public:
  // Checks the shape, chooses the tuning, loads the kernel and allocates what its launches need.
  static Result<std::unique_ptr<GroupedMatmul>> create(Rank& rank, const GroupedMatmulShape& shape);
  ~GroupedMatmul();

  // Enqueues the matmul. An output element is the sum over K of exact products, in fp32, in an order that the
  // target sets, rounded once. It has the same bits from run to run and for every number of blocks.
  // In fp8 the matrix unit adds 128 products with fewer bits than fp32 has; all other sums are in fp32. Coded
  // weights are decoded to bf16, which is exact: a code times its scale has at most 6 significant bits.
  // Epilogues compute in fp32, from sums that were not rounded.
  Status run(const GroupedMatmulTensors& tensors, Stream stream = {});

  // The shape as given, with num_experts and expected_rows_per_group filled in.
  const GroupedMatmulShape& shape() const;
  const MatmulTuning& tuning() const;
  // The blocks of a launch. The number is even if blocks work in pairs.
  uint32_t num_blocks() const;

 private:
  struct Impl;

  explicit GroupedMatmul(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
