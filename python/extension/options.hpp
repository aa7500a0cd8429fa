// Enumerators as strings, as Python writes options.
#pragma once

#include <string>
#include <utility>

#include "errors.hpp"

namespace switchyard::python {

// The signatures of a call that returns `out` if it is given, else a new Tensor. `arguments` is behind self,
// and `others` are those beside `out`, by keyword only. (Stubs import what stands behind a parenthesis and
// has a module.)
#define SWITCHYARD_OUT_SIGNATURES(name, arguments, others)                    \
  "@overload\ndef " name "(self, " arguments ", *, out: None = None, " others \
  ") -> Tensor: ...\n"                                                        \
  "@typing.overload\ndef " name "(self, " arguments ", *, out: _Out, " others ") -> _Out"

template <typename Enum>
struct Choice {
  const char* name;
  Enum value;
};

// `choices` is an array of Choice<Enum>, here and below. Returns all names, with commas between them.
template <typename Choices>
std::string names_of(const Choices& choices) {
  std::string names;
  for (const auto& choice : choices) names += (names.empty() ? "" : ", ") + std::string(choice.name);
  return names;
}

template <typename Choices>
auto parse(const Choices& choices, const char* option, const std::string& name) {
  for (const auto& choice : choices)
    if (name == choice.name) return choice.value;
  raise(
      invalid_argument("%s is '%s'; it must be one of: %s", option, name.c_str(), names_of(choices).c_str()));
}

template <typename Enum, size_t kCount>
const char* name_of(const Choice<Enum> (&choices)[kCount], Enum value) {
  for (const Choice<Enum>& choice : choices)
    if (value == choice.value) return choice.name;
  return "(none)";
}

}  // namespace switchyard::python
