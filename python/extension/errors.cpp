#include "errors.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

namespace switchyard::python {
namespace {

// (code, message, fault or None) -> exception; set by switchyard_ep/errors.py. It is never freed: exceptions
// may be raised until the interpreter ends.
nb::object& make_exception() {
  static nb::object* factory = new nb::object();
  return *factory;
}

}  // namespace

void raise(const Status& status, const std::optional<FaultRecord>& fault) {
  nb::object record = fault ? nb::cast(*fault) : nb::none();
  const nb::object exception =
      make_exception()(switchyard::to_string(status.code()), status.message(), record);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

const char* to_string(FaultKind kind) {
  switch (kind) {
    case FaultKind::kNone:
      return "none";
    case FaultKind::kTimeout:
      return "timeout";
    case FaultKind::kBadExpertId:
      return "bad expert id";
    case FaultKind::kTooManyRows:
      return "too many rows";
    case FaultKind::kOverCapacity:
      return "over capacity";
    case FaultKind::kTokenCountMismatch:
      return "token count mismatch";
    case FaultKind::kBadSourceInfo:
      return "bad source info";
    case FaultKind::kNoExpertRows:
      return "no expert rows";
    case FaultKind::kPeerEnded:
      return "peer ended";
    case FaultKind::kCalledOff:
      return "called off";
  }
  return "(no fault kind)";
}

void bind_errors(nb::module_& module) {
  module.def(
      "_set_exception_factory", [](nb::object factory) { make_exception() = std::move(factory); },
      nb::sig("def _set_exception_factory(factory: object) -> None"));
  nb::class_<FaultRecord>(module, "FaultRecord",
                          "What a kernel found wrong: who waited where, for whom and for how long.")
      .def_prop_ro(
          "kind", [](const FaultRecord& record) { return to_string(record.kind); },
          "'timeout', 'bad expert id', 'too many rows', 'over capacity', 'token count mismatch', "
          "'bad source info', 'no expert rows', 'peer ended' or 'called off'.")
      .def_prop_ro(
          "phase", [](const FaultRecord& record) { return switchyard::to_string(record.phase); },
          "The call whose kernel found it, such as 'dispatch_wait'.")
      .def_ro("waiting_rank", &FaultRecord::waiting_rank, "The rank that found the fault.")
      .def_ro("late_rank", &FaultRecord::late_rank, "The rank that it waited for; -1: none in particular.")
      .def_ro("expert", &FaultRecord::expert, "The expert; -1: none in particular.")
      .def_ro("expected", &FaultRecord::expected, "What the rank waited for, or what would have been right.")
      .def_ro("seen", &FaultRecord::seen, "What it found instead.")
      .def_ro("elapsed_ns", &FaultRecord::elapsed_ns, "Timeouts: how long the rank has waited.")
      .def("__str__", [](const FaultRecord& record) { return describe(record); })
      .def("__repr__", [](const FaultRecord& record) { return "<FaultRecord: " + describe(record) + ">"; });
}

}  // namespace switchyard::python
