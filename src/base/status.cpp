#include "switchyard/status.hpp"

#include <cstdarg>
#include <cstdio>

namespace switchyard {
namespace {

Status formatted(StatusCode code, const char* format, va_list arguments) {
  va_list measured;
  va_copy(measured, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, measured);
  va_end(measured);
  std::string message(static_cast<size_t>(length), '\0');
  std::vsnprintf(message.data(), message.size() + 1, format, arguments);
  return Status(code, std::move(message));
}

}  // namespace

const char* to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kFailedPrecondition:
      return "failed precondition";
    case StatusCode::kResourceExhausted:
      return "resource exhausted";
    case StatusCode::kDeadlineExceeded:
      return "deadline exceeded";
    case StatusCode::kDeadlock:
      return "deadlock";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kInternal:
      return "internal";
  }
  return "unknown";
}

std::string Status::to_string() const {
  return ok() ? "ok" : std::string(switchyard::to_string(code_)) + ": " + message_;
}

BadResult::BadResult(Status status) : std::runtime_error(status.to_string()), status_(std::move(status)) {}

#define SWITCHYARD_DEFINE_STATUS(name, code)                        \
  Status name(const char* format, ...) {                            \
    va_list arguments;                                              \
    va_start(arguments, format);                                    \
    Status status = formatted(StatusCode::code, format, arguments); \
    va_end(arguments);                                              \
    return status;                                                  \
  }

SWITCHYARD_DEFINE_STATUS(invalid_argument, kInvalidArgument)
SWITCHYARD_DEFINE_STATUS(failed_precondition, kFailedPrecondition)
SWITCHYARD_DEFINE_STATUS(resource_exhausted, kResourceExhausted)
SWITCHYARD_DEFINE_STATUS(unavailable, kUnavailable)
SWITCHYARD_DEFINE_STATUS(internal_error, kInternal)

#undef SWITCHYARD_DEFINE_STATUS

}  // namespace switchyard
