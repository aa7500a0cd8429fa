// A kind that is known at run time, made a template argument.
#pragma once

#include "switchyard/token_format.hpp"

namespace switchyard {

// Returns visit.operator()<kind>(), or otherwise() for a value that is no kind.
template <typename Visit, typename Otherwise>
constexpr auto visit_kind(TokenFormatKind kind, const Visit& visit, const Otherwise& otherwise)
    -> decltype(otherwise()) {
  switch (kind) {
#define SWITCHYARD_CASE(kind, ...) \
  case TokenFormatKind::kind:      \
    return visit.template operator()<TokenFormatKind::kind>();
    SWITCHYARD_TOKEN_FORMATS(SWITCHYARD_CASE)
#undef SWITCHYARD_CASE
  }
  return otherwise();
}

}  // namespace switchyard
