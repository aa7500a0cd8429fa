// Options of how tokens and ids are handed over to the library.
#pragma once

#include "command_line.hpp"
#include "reference/token_tensors.hpp"

namespace switchyard::tools {

// --ids, --encoded-tokens, --device-scale and --row-gap.
void add_tensor_options(Command& command, reference::TensorStyle& style);
// Whether they suit --format and --skip-a2a.
Status check_tensor_options(const reference::TensorStyle& style, TokenFormatKind format,
                            bool skips_all_to_all);

}  // namespace switchyard::tools
