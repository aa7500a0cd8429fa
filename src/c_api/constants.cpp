// The constants of switchyard.h are those of the C++ enumerations, which its functions cast to.
#include "handles.hpp"

namespace switchyard::c_api {
namespace {

template <typename Enum>
constexpr bool is_same(int32_t constant, Enum value) {
  return constant == static_cast<int32_t>(value);
}

static_assert(is_same(SWITCHYARD_OK, StatusCode::kOk));
static_assert(is_same(SWITCHYARD_INVALID_ARGUMENT, StatusCode::kInvalidArgument));
static_assert(is_same(SWITCHYARD_FAILED_PRECONDITION, StatusCode::kFailedPrecondition));
static_assert(is_same(SWITCHYARD_RESOURCE_EXHAUSTED, StatusCode::kResourceExhausted));
static_assert(is_same(SWITCHYARD_DEADLINE_EXCEEDED, StatusCode::kDeadlineExceeded));
static_assert(is_same(SWITCHYARD_DEADLOCK, StatusCode::kDeadlock));
static_assert(is_same(SWITCHYARD_UNAVAILABLE, StatusCode::kUnavailable));
static_assert(is_same(SWITCHYARD_INTERNAL, StatusCode::kInternal));

static_assert(is_same(SWITCHYARD_TARGET_AUTO, TargetChoice::kAuto));
static_assert(is_same(SWITCHYARD_TARGET_HOST, TargetChoice::kHost));
static_assert(is_same(SWITCHYARD_TARGET_CUDA, TargetChoice::kCuda));

static_assert(is_same(SWITCHYARD_TRANSPORT_PROCESS, TransportChoice::kProcess));
static_assert(is_same(SWITCHYARD_TRANSPORT_SHMEM, TransportChoice::kShmem));

static_assert(is_same(SWITCHYARD_PROTOCOL_AUTOMATIC, Protocol::kAutomatic));
static_assert(is_same(SWITCHYARD_PROTOCOL_SLOTTED, Protocol::kSlotted));
static_assert(is_same(SWITCHYARD_PROTOCOL_DIRECT, Protocol::kDirect));

static_assert(is_same(SWITCHYARD_ROWS_RAGGED, RowLayout::kRagged));
static_assert(is_same(SWITCHYARD_ROWS_MASKED, RowLayout::kMasked));
static_assert(is_same(SWITCHYARD_ROWS_PER_RANK, RowLayout::kPerRank));

static_assert(is_same(SWITCHYARD_COMBINE_BF16, CombineFormat::kBF16));
static_assert(is_same(SWITCHYARD_COMBINE_FP8, CombineFormat::kFP8));

static_assert(is_same(SWITCHYARD_REDUCTION_WEIGHTED, CombineReduction::kWeighted));
static_assert(is_same(SWITCHYARD_REDUCTION_UNREDUCED, CombineReduction::kUnreduced));

static_assert(is_same(SWITCHYARD_INPUT_BF16, InputFormat::kBF16));
static_assert(is_same(SWITCHYARD_INPUT_ENCODED, InputFormat::kEncoded));

static_assert(is_same(SWITCHYARD_SCALES_FLOAT, ScaleTensorElement::kFloat));
static_assert(is_same(SWITCHYARD_SCALES_BYTE, ScaleTensorElement::kE8M0));
static_assert(is_same(SWITCHYARD_SCALES_WORD, ScaleTensorElement::kWord));
static_assert(is_same(SWITCHYARD_SCALES_TILED, ScaleTensorElement::kTileByte));

static_assert(is_same(SWITCHYARD_GATE_UP_BEHIND_DISPATCH, GateUpStart::kBehindDispatch));
static_assert(is_same(SWITCHYARD_GATE_UP_WITH_ROWS, GateUpStart::kWithRows));

static_assert(is_same(SWITCHYARD_COMBINE_BEHIND_EXPERTS, CombineStart::kBehindExperts));
static_assert(is_same(SWITCHYARD_COMBINE_WITH_EXPERTS, CombineStart::kWithExperts));

static_assert(is_same(SWITCHYARD_LAUNCHES_FUSED, StepLaunches::kFused));
static_assert(is_same(SWITCHYARD_LAUNCHES_SPLIT, StepLaunches::kSplit));

static_assert(is_same(SWITCHYARD_DELIVERY_AUTOMATIC, RowDelivery::kAutomatic));
static_assert(is_same(SWITCHYARD_DELIVERY_SENDER, RowDelivery::kSender));
static_assert(is_same(SWITCHYARD_DELIVERY_RECEIVER, RowDelivery::kReceiver));

static_assert(is_same(SWITCHYARD_UNWRITTEN_LEFT, UnwrittenRows::kLeft));
static_assert(is_same(SWITCHYARD_UNWRITTEN_MARKED, UnwrittenRows::kMarked));
static_assert(is_same(SWITCHYARD_UNWRITTEN_ZEROED, UnwrittenRows::kZeroed));

static_assert(is_same(SWITCHYARD_FAULT_NONE, FaultKind::kNone));
static_assert(is_same(SWITCHYARD_FAULT_TIMEOUT, FaultKind::kTimeout));
static_assert(is_same(SWITCHYARD_FAULT_BAD_EXPERT_ID, FaultKind::kBadExpertId));
static_assert(is_same(SWITCHYARD_FAULT_TOO_MANY_ROWS, FaultKind::kTooManyRows));
static_assert(is_same(SWITCHYARD_FAULT_OVER_CAPACITY, FaultKind::kOverCapacity));
static_assert(is_same(SWITCHYARD_FAULT_TOKEN_COUNT_MISMATCH, FaultKind::kTokenCountMismatch));
static_assert(is_same(SWITCHYARD_FAULT_BAD_SOURCE_INFO, FaultKind::kBadSourceInfo));
static_assert(is_same(SWITCHYARD_FAULT_NO_EXPERT_ROWS, FaultKind::kNoExpertRows));
static_assert(is_same(SWITCHYARD_FAULT_PEER_ENDED, FaultKind::kPeerEnded));
static_assert(is_same(SWITCHYARD_FAULT_CALLED_OFF, FaultKind::kCalledOff));

static_assert(is_same(SWITCHYARD_PHASE_NONE, Phase::kNone));
static_assert(is_same(SWITCHYARD_PHASE_DISPATCH_ASYNC, Phase::kDispatchAsync));
static_assert(is_same(SWITCHYARD_PHASE_DISPATCH_WAIT, Phase::kDispatchWait));
static_assert(is_same(SWITCHYARD_PHASE_COMBINE_ASYNC, Phase::kCombineAsync));
static_assert(is_same(SWITCHYARD_PHASE_COMBINE_WAIT, Phase::kCombineWait));
static_assert(is_same(SWITCHYARD_PHASE_ALL_REDUCE, Phase::kAllReduce));

static_assert(is_same(SWITCHYARD_KV_BF16, KvFormat::kBF16));
static_assert(is_same(SWITCHYARD_KV_FP8, KvFormat::kFP8));

static_assert(is_same(SWITCHYARD_MATMUL_BF16, MatmulElement::kBF16));
static_assert(is_same(SWITCHYARD_MATMUL_FP8, MatmulElement::kFP8));

static_assert(is_same(SWITCHYARD_MATMUL_BF16, MatmulOutput::kBF16));
static_assert(is_same(SWITCHYARD_MATMUL_FP8, MatmulOutput::kFP8));
static_assert(is_same(SWITCHYARD_MATMUL_FP8_ROWS, MatmulOutput::kFP8Rows));

static_assert(is_same(SWITCHYARD_ACTIVATION_NONE, Activation::kNone));
static_assert(is_same(SWITCHYARD_ACTIVATION_SILU, Activation::kSiLU));
static_assert(is_same(SWITCHYARD_ACTIVATION_GELU, Activation::kGELU));
static_assert(is_same(SWITCHYARD_ACTIVATION_CLAMPED_SWIGLU, Activation::kClampedSwiGLU));

static_assert(is_same(SWITCHYARD_GATES_STACKED, GateLayout::kStacked));
static_assert(is_same(SWITCHYARD_GATES_INTERLEAVED, GateLayout::kInterleaved));

static_assert(is_same(SWITCHYARD_WEIGHTS_AS_ROWS, WeightFormat::kAsRows));
static_assert(is_same(SWITCHYARD_WEIGHTS_MXFP4, WeightFormat::kMXFP4));
static_assert(is_same(SWITCHYARD_WEIGHTS_NVFP4, WeightFormat::kNVFP4));
static_assert(is_same(SWITCHYARD_WEIGHTS_MXFP8, WeightFormat::kMXFP8));

static_assert(is_same(SWITCHYARD_ROW_SCALES_FLOAT, MatmulRowScales::kFloat));
static_assert(is_same(SWITCHYARD_ROW_SCALES_PACKED_E8M0, MatmulRowScales::kPackedE8M0));
static_assert(is_same(SWITCHYARD_ROW_SCALES_FLOAT_BY_ROW, MatmulRowScales::kFloatByRow));

}  // namespace
}  // namespace switchyard::c_api
