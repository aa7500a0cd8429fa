// What the examples do with an error.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "switchyard/status.hpp"

// A value, or the end of the program with the reason.
inline void need(const switchyard::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(1);
}
template <typename T>
T need(switchyard::Result<T> result) {
  need(result.status());
  return std::move(result).value();
}
