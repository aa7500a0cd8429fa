#!/usr/bin/env python3
"""docs/api.md says what the public headers declare, and scripts/api_reference.py understands what they are written in."""
import importlib.util
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "api_reference.py"
sys.dont_write_bytecode = True  # no __pycache__ beside the script
spec = importlib.util.spec_from_file_location("api_reference", SCRIPT)
api = importlib.util.module_from_spec(spec)
spec.loader.exec_module(api)

HEADER = """\
// A header: for the test. See Pair<T>.
#pragma once

#include <vector>

namespace switchyard {

class Later;

// How to go. The rest is not told.
enum class Way : int {
  kLeft,   // not right,
           // and not straight
  kRight,  // the other
};

enum class Bare { kOne, kTwo = 2 };

// Two values.
//
// Ownership: the pair owns both. Threads: any, one
// at a time.
// Errors. There
//   are none.
template <typename T>
class [[nodiscard]] Pair {
 public:
  Pair() = default;
  Pair(T first, T second) : first_(first), second_{second} {}
  Pair(Pair&& other) noexcept;
  Pair& operator=(Pair&& other) noexcept;
  ~Pair();

  // Returns one | the other. Never both.
  T pick(Way way,  // the way
         int times = 1) const {
    if (times > 1) { return first_; }
    return second_;
  }
  Result<std::vector<T>> all() const;
  struct Place {
    int x;
  };

 private:
  void hidden();
  T first_, second_;
};

struct Options {
  int count = 3;                   // how many
  std::vector<float> scales = {};  // NOLINT
  int many[4] = {1, 2, 3, 4};
  static_assert(sizeof(int) == 4);
  friend bool operator==(const Options&, const Options&) = default;
};

// What a thing must have.
template <typename T>
concept Thing = requires(T thing) {
  { thing.go() };
};

inline constexpr int kMost = 4;  // at most so many
using Numbers = std::vector<int>;

// Goes.
[[gnu::format(printf, 1, 2)]] SWITCHYARD_DEVICE bool go(const char* format, ...);

}  // namespace switchyard

namespace switchyard::inline SWITCHYARD_TARGET {

SWITCHYARD_DEVICE bool stop() { return true; }

}  // namespace switchyard::inline SWITCHYARD_TARGET

// Returns early.
#define SWITCHYARD_LEAVE(why) \\
  do {                        \\
    return why;               \\
  } while (false)
"""

SECTION = """\
## sample.hpp

A header: for the test. See Pair\\<T>.

### `enum class Way`

How to go. The rest is not told.

| | |
|---|---|
| `kLeft` | not right, and not straight |
| `kRight` | the other |

### `enum class Bare`

Enumerators: `kOne`, `kTwo = 2`.

### `template <typename T> class Pair`

Two values.

- **Ownership**: the pair owns both.
- **Threads**: any, one at a time.
- **Errors**: There are none.

| | |
|---|---|
| `Pair(T first, T second)` |  |
| `T pick(Way way, int times = 1) const` | Returns one \\| the other. |
| `Result<std::vector<T>> all() const` |  |
| `struct Place { int x; }` |  |

### `struct Options`

| | |
|---|---|
| `int count = 3` | how many |
| `std::vector<float> scales = {}` |  |
| `int many[4] = {1, 2, 3, 4}` |  |

### Functions, constants, macros

| | |
|---|---|
| `template <typename T> concept Thing` | What a thing must have. |
| `inline constexpr int kMost = 4` | at most so many |
| `using Numbers = std::vector<int>` |  |
| `bool go(const char* format, ...)` | Goes. |
| `bool stop()` |  |
| `#define SWITCHYARD_LEAVE(why)` | Returns early. |"""


class ApiReference(unittest.TestCase):
    maxDiff = None

    def test_the_page_says_what_the_headers_declare(self):
        found = api.differences(api.PAGE.read_text())
        self.assertEqual(found, [], "\nrun scripts/api_reference.py --write")

    def test_every_kind_of_declaration_is_understood(self):
        self.assertEqual(api.section_of_header("sample.hpp", HEADER), SECTION)

    def test_a_name_that_is_missing_and_one_that_is_gone_are_both_found(self):
        page = api.page()
        self.assertIn("`bool ok() const`", page)
        self.assertEqual(api.differences(page.replace("`Status mark(", "`Status gone(")),
                         [f"missing: {line}" for line in page.splitlines() if "`Status mark(" in line] +
                         [f"no longer in a header: {line.replace('Status mark(', 'Status gone(')}"
                          for line in page.splitlines() if "`Status mark(" in line])


if __name__ == "__main__":
    unittest.main()
