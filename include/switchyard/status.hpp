// Errors as values: what went wrong, in words a caller can act on. `Result<T>` is a value or a Status.
#pragma once

#include <cassert>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace switchyard {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // a parameter is outside its limits
  kFailedPrecondition,  // a call in the wrong order
  kResourceExhausted,   // memory, rows or blocks ran out
  kDeadlineExceeded,    // a peer did not answer in time
  kDeadlock,            // the emulator found threads that can never go on
  kUnavailable,         // this machine or build cannot do it
  kInternal,            // a defect, or an error of the CUDA runtime
};

const char* to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// printf-style constructors for the common codes.
[[gnu::format(printf, 1, 2)]] Status invalid_argument(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status failed_precondition(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status resource_exhausted(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status unavailable(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status internal_error(const char* format, ...);

// What Result::value() throws where there is no value: what() is the text of the Status.
class BadResult : public std::runtime_error {
 public:
  explicit BadResult(Status status);
  const Status& status() const { return status_; }

 private:
  Status status_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) { assert(!std::get<Status>(state_).ok()); }  // NOLINT

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }
  // Throws BadResult if there is none.
  T& value() & { return require_value(), std::get<T>(state_); }
  const T& value() const& { return require_value(), std::get<T>(state_); }
  T&& value() && { return require_value(), std::get<T>(std::move(state_)); }

 private:
  void require_value() const {
    if (!ok()) throw BadResult(std::get<Status>(state_));
  }

  std::variant<T, Status> state_;
};

}  // namespace switchyard

// Leaves the enclosing function with the Status of `expression` unless it is ok.
#define SWITCHYARD_RETURN_IF_ERROR(expression)                                      \
  do {                                                                              \
    if (::switchyard::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
