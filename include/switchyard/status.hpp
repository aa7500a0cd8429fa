// Errors as values. A Status says what went wrong, in words a caller can act on; a Result<T> is a value or a
// Status. No call of the library throws for bad arguments or a failed device, except Result::value() and
// World::rank().
#pragma once

#include <cassert>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace switchyard {

// What kind of error a Status is.
enum class StatusCode {
  kOk,
  kInvalidArgument,     // an argument is outside its limits
  kFailedPrecondition,  // the call came at the wrong time, such as after a fault and before reset()
  kResourceExhausted,   // memory, rows or blocks ran out
  kDeadlineExceeded,    // a peer did not deliver in time
  kDeadlock,            // the emulator found that no thread can ever go on
  kUnavailable,         // this machine or this build cannot do it
  kInternal,            // a defect, or an error of the CUDA runtime
};

// Returns the name of a code, such as "invalid argument".
const char* to_string(StatusCode code);

// Success, or a code with a message.
//
// A Status is a value: it owns its message, and is copied and used as freely as a string. A
// default-constructed Status is ok. The message names the argument, its value and its limit where there are
// such. The compiler warns where a Status is dropped.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // Returns "ok", or the name of the code and the message.
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// Each of these returns a Status of one code with a message that is formatted as by printf.
[[gnu::format(printf, 1, 2)]] Status invalid_argument(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status failed_precondition(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status resource_exhausted(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status unavailable(const char* format, ...);
[[gnu::format(printf, 1, 2)]] Status internal_error(const char* format, ...);

// The exception that Result::value() throws if there is no value. what() is the text of the Status.
class BadResult : public std::runtime_error {
 public:
  explicit BadResult(Status status);
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// A value, or the Status that says why there is none.
//
// A Result owns its value. `std::move(result).value()`, or `call().value()`, moves the value out. A Result
// made from a Status must be given an error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) { assert(!std::get<Status>(state_).ok()); }  // NOLINT

  bool ok() const { return std::holds_alternative<T>(state_); }
  // The error; ok if there is a value.
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }
  // Throws BadResult if there is no value. The reference stays valid as long as the Result.
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

// Returns the Status of `expression` from the enclosing function unless it is ok.
#define SWITCHYARD_RETURN_IF_ERROR(expression)                                      \
  do {                                                                              \
    if (::switchyard::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
