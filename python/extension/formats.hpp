// Token formats as Python has them: their names, and what dispatch writes in them as arrays.
#pragma once

#include <vector>

#include "options.hpp"
#include "switchyard/token_format.hpp"
#include "tensor.hpp"

namespace switchyard::python {

inline constexpr Choice<TokenFormatKind> kFormats[] = {
#define SWITCHYARD_CHOICE(kind, name, ...) {name, TokenFormatKind::kind},
    SWITCHYARD_TOKEN_FORMATS(SWITCHYARD_CHOICE)
#undef SWITCHYARD_CHOICE
};

struct ArrayType {
  Element element;
  std::vector<size_t> shape;
};
// The rows of a dispatch, and their scales as they lie in memory (docs/formats.md).
ArrayType rows_in(const TokenFormatInfo& format, uint32_t max_rows, int hidden);
ArrayType scales_in(const TokenFormatInfo& format, uint32_t max_rows, int hidden);

void bind_formats(nb::module_& module);

}  // namespace switchyard::python
