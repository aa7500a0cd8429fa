// Token formats and combine epilogues of one's own, with all that ExpertParallel does. A file that includes
// this instantiates the library's kernels for a caller's type, for the target that the file is compiled for:
// the CPU, or CUDA where nvcc compiles it.
//
//   config.own_format = own_format<MyFormat>();        // ExpertParallelConfig
//   config.own_epilogue = own_epilogue<MyEpilogue>();
//   ep->combine(rank, input, {ids, weights, num_tokens, own_destination(MyEpilogue{..})});
//
// A function that kernels call is marked SWITCHYARD_DEVICE; one that the host calls, too, SWITCHYARD_HD. What
// is written with the words of switchyard::target runs on either target, and the emulator sees its accesses:
//
//   ld(p), st(p, value)                 one element; ld_16, st_16: 16 bytes, a Vec16, at a multiple of 16
//   copy_row(to, from, num_bytes, worker_idx, num_workers)   by workers together, a multiple of 16 bytes
//   lane_idx(), shuffle(value, lane), shuffle_xor(value, lane_mask), sync_warp()   in a warp of kWarpSize
//   divide(a, b)                        rounded as on the host, so that both targets give the same bits
//
// Ownership. What own_format() and own_epilogue() return lives as long as the program. A format is made anew
//   for every launch, over the tensors of that call; an epilogue is copied into the launch, so that it need
//   not outlive the call, but what it points to must be valid until the step has ended.
// Threads. The functions here may be called from any thread. Formats and epilogues run inside kernels, in
//   many threads of many blocks at once: types/token_format_concepts.hpp and types/combine_epilogue.hpp say
//   which member is called by how many threads, and what these may do.
// Groups. The kernels are made twice: for one group of ranks, and with a wire between groups
//   (ExpertParallelConfig::p2p_world_size), on every transport but NVSHMEM's (docs/transports.md).
// Errors. A type that lacks something does not compile, and the concepts below say what. Kernels of another
//   target than the world's, a protocol that cannot carry the format, and a wire that its kernels cannot use
//   are errors of create().
#pragma once

#include <concepts>
#include <type_traits>

#include "switchyard/detail/launch/make_own_kernels.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/types/bf16.hpp"
#include "switchyard/types/combine_epilogue.hpp"
#include "switchyard/types/expert_parallel.hpp"
#include "switchyard/types/token_format_concepts.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

// What a format of one's own has beyond what the slotted protocol asks (DispatchFormat,
// types/token_format_concepts.hpp). It is a DirectFormat, too, if the direct protocol is to carry it. make()
// is called on the host; the sizes are asked there and in kernels. If the format has a `static Status
// check(int hidden)`, create() calls it first and returns its error.
template <typename Format>
concept OwnTokenFormat = DispatchFormat<Format> && std::is_trivially_copyable_v<Format> &&
    std::same_as<typename Format::Input, bf16> &&
    requires(const Format format, int hidden, const FormatTensors& tensors) {
  // What errors call it.
  { Format::kName } -> std::convertible_to<const char*>;
  // The format over the tensors of a DispatchOutput; these are null where only sizes are asked for.
  { Format::make(hidden, tensors) } -> std::same_as<Format>;
  // Bytes of a row of the output; for the direct protocol, a multiple of 16.
  { format.row_bytes() } -> std::convertible_to<uint32_t>;
  // Bytes of a row's scales, 0 if there are none. The tensor is [max_rows][scales_bytes()], unless the format
  // has a scale_tensor_bytes(max_rows); one that interleaves rows must have it.
  { format.scales_bytes() } -> std::convertible_to<uint32_t>;
};

// For ExpertParallelConfig::own_format.
template <OwnTokenFormat Format>
const OwnFormat* own_format() {
  return &kOwnFormat<Format>;
}

// An epilogue of one's own: what combine_wait calls with each token's weighted sum
// (types/combine_epilogue.hpp).
template <typename Epilogue>
concept OwnCombineEpilogue = CombineEpilogue<Epilogue> && std::is_trivially_copyable_v<Epilogue>;

// For ExpertParallelConfig::own_epilogue.
template <OwnCombineEpilogue Epilogue>
const OwnEpilogue* own_epilogue() {
  return &kOwnEpilogue<Epilogue>;
}

// For CombineOutput::destination. The epilogue must live until the call has returned.
template <OwnCombineEpilogue Epilogue>
CombineDestination own_destination(const Epilogue& epilogue) {
  return {.reduction = CombineReduction::kOwnEpilogue,
          .output = nullptr,
          .epilogue = &epilogue,
          .epilogue_kernels = &kOwnEpilogue<Epilogue>};
}

}  // namespace switchyard::inline SWITCHYARD_TARGET
