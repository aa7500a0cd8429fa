// What is behind the handles of switchyard.h, and what its functions have in common.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <unordered_map>

#include "switchyard/attention.hpp"
#include "switchyard/detail/base/fork.hpp"
#include "switchyard/expert_parallel.hpp"
#include "switchyard/grouped_matmul.hpp"
#include "switchyard/moe_layer.hpp"
#include "switchyard/switchyard.h"
#include "switchyard/world.hpp"

// The members of each are destroyed in the reverse order: the world goes last. In a fork of the process that
// made it a handle is leaked.
struct switchyard_world {
  switchyard::ProcessMark process{};
  struct Memory {
    std::mutex mutex;
    std::unordered_map<void*, std::pair<int, switchyard::Buffer<std::byte>>> buffers;  // with their ranks
  };
  std::shared_ptr<switchyard::World> world;
  std::shared_ptr<Memory> memory;
};
struct switchyard_ep {
  switchyard::ProcessMark process{};
  std::shared_ptr<switchyard::World> world;
  std::shared_ptr<switchyard::ExpertParallel> whole;
  switchyard::ExpertParallel* ep;  // that, or a flight of it
};
struct switchyard_attention {
  switchyard::ProcessMark process{};
  std::shared_ptr<switchyard::World> world;
  std::unique_ptr<switchyard::Attention> attention;
};
struct switchyard_matmul {
  switchyard::ProcessMark process{};
  std::shared_ptr<switchyard::World> world;
  std::unique_ptr<switchyard::GroupedMatmul> matmul;
};
struct switchyard_moe_layer {
  switchyard::ProcessMark process{};
  std::shared_ptr<switchyard::World> world;
  std::shared_ptr<switchyard::MoeLayer> whole;
  switchyard::MoeLayer* layer;  // that, or a flight of it
};

namespace switchyard::c_api {

// Keeps the message for switchyard_last_error(), and returns the code.
switchyard_status report(const Status& status) noexcept;

// Calls `function`, which returns a Status. No exception leaves it.
template <typename Function>
switchyard_status guard(Function function) noexcept {
  try {
    return report(function());
  } catch (const std::bad_alloc&) {
    return report(Status(StatusCode::kResourceExhausted, "out of memory"));
  } catch (const std::out_of_range& error) {
    return report(Status(StatusCode::kInvalidArgument, error.what()));
  } catch (const std::exception& error) {
    return report(Status(StatusCode::kInternal, error.what()));
  } catch (...) {
    return report(Status(StatusCode::kInternal, "an exception of unknown type"));
  }
}

template <typename Handle>
void destroy(Handle* handle) noexcept {
  if (handle != nullptr && !handle->process.is_of_parent()) delete handle;
}

inline Status check_pointer(const char* name, const void* pointer) {
  return pointer != nullptr ? Status() : invalid_argument("%s is NULL", name);
}

template <typename T>
Status check_size(const char* name, const T* given) {
  SWITCHYARD_RETURN_IF_ERROR(check_pointer(name, given));
  if (given->size >= sizeof(size_t) && given->size <= 64 * sizeof(T)) return Status();
  return invalid_argument("%s->size is %zu; it must be sizeof the struct, which is %zu here", name,
                          given->size, sizeof(T));
}

// Copies the fields that the caller knows of; the others are 0. Fields that only the caller knows of must be
// 0.
template <typename T>
Status read(const char* name, const T* given, T& copy) {
  SWITCHYARD_RETURN_IF_ERROR(check_size(name, given));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < given->size; ++i)
    if (bytes[i] != 0)
      return invalid_argument("%s has a field at offset %zu that this library (%s) does not know", name, i,
                              switchyard_version());
  std::memset(&copy, 0, sizeof(T));
  std::memcpy(&copy, given, std::min(given->size, sizeof(T)));
  return Status();
}

// The other way round.
template <typename T>
Status write(const char* name, T values, T* wanted) {
  SWITCHYARD_RETURN_IF_ERROR(check_size(name, wanted));
  values.size = wanted->size;
  if (wanted->size > sizeof(T)) std::memset(wanted + 1, 0, wanted->size - sizeof(T));
  std::memcpy(wanted, &values, std::min(wanted->size, sizeof(T)));
  return Status();
}

// What is to become a field: a program that sets it means more than this library knows.
inline Status check_reserved(const char* name, int32_t value) {
  return value == 0 ? Status() : invalid_argument("%s is %d; it must be 0", name, value);
}

// An enumerator of `last + 1`, counted from 0.
template <typename Enum>
Status read_enum(const char* name, int32_t value, Enum last, Enum& read) {
  if (value < 0 || value > static_cast<int32_t>(last))
    return invalid_argument("%s is %d; it must be 0..%d", name, value, static_cast<int>(last));
  read = static_cast<Enum>(value);
  return Status();
}

// A token format by its name; NULL is the default.
inline Status read_format(const char* field, const char* name, TokenFormatKind& format) {
  if (name == nullptr) return Status();
  for (const TokenFormatKind kind : kTokenFormatKinds)
    if (std::strcmp(to_string(kind), name) == 0) {
      format = kind;
      return Status();
    }
  return invalid_argument("%s is \"%s\"; there is no such format (docs/formats.md)", field, name);
}

Status read_config(const char* name, const switchyard_ep_config* given, int n_ranks,
                   ExpertParallelConfig& config);
// As the fields `placement` and `num_experts_of_rank` of a configuration say.
Result<ExpertPlacement> read_placement(int n_experts, int n_ranks, const int32_t* experts,
                                       const int32_t* num_experts_of_rank);

inline Stream stream_of(switchyard_stream stream) {
  return stream == SWITCHYARD_RANK_STREAM ? Stream() : Stream(stream);
}

// 0 is the default.
template <typename T>
T or_default(T value, T otherwise) {
  return value != T{0} ? value : otherwise;
}

}  // namespace switchyard::c_api
