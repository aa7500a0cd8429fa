// A Status as a Python exception. The exceptions themselves are in switchyard_ep/errors.py; one that comes
// from a fault carries its record.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <utility>

#include "switchyard/status.hpp"
#include "switchyard/types/fault.hpp"

namespace switchyard::python {

namespace nb = nanobind;

// Raises the exception of the status' code.
[[noreturn]] void raise(const Status& status, const std::optional<FaultRecord>& fault = {});

inline void need(const Status& status) {
  if (!status.ok()) raise(status);
}
template <typename T>
T need(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}

const char* to_string(FaultKind kind);

void bind_errors(nb::module_& module);

}  // namespace switchyard::python
