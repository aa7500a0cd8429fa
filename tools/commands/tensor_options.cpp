#include "tensor_options.hpp"

namespace switchyard::tools {

void add_tensor_options(Command& command, reference::TensorStyle& style) {
  command.add_choice("--ids", style.has_wide_ids, {{"int32", false}, {"int64", true}},
                     "What expert ids are given as: int32, int64");
  command.add_flag("--encoded-tokens", style.is_encoded,
                   "Tokens come in --format already, as codes and scales, which are sent as they are");
  command.add_flag("--device-scale", style.has_device_scale,
                   "The input scale of nvfp4 is given with each call, in the rank's memory");
  command.add_number("--row-gap", style.gap_bytes, 0, 65536,
                     "Bytes between tokens and between rows of the output, a multiple of 16");
}

Status check_tensor_options(const reference::TensorStyle& style, TokenFormatKind format,
                            bool skips_all_to_all) {
  const TokenFormatInfo info = info_of(format);
  if (style.gap_bytes % 16 != 0)
    return invalid_argument("--row-gap: %d must be a multiple of 16", style.gap_bytes);
  if (style.gap_bytes != 0 && skips_all_to_all)
    return invalid_argument("--row-gap: with --skip-a2a outputs are contiguous; it must be 0");
  if (style.is_encoded && (info.scale == ScaleType::kNone || info.encodes_by_expert))
    return invalid_argument("--encoded-tokens: --format is %s; it must have scales, the same for all experts",
                            info.name);
  if (style.has_device_scale && format != TokenFormatKind::kNVFP4)
    return invalid_argument("--device-scale: --format is %s; only nvfp4 has such a scale", info.name);
  return Status();
}

}  // namespace switchyard::tools
