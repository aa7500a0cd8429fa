#!/usr/bin/env python3
"""docs/api.md says what the public headers declare, and scripts/api_reference.py understands what they are written in."""
import importlib.util
import pathlib
import re
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
struct Nothing {};

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
  // Goes.
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

### `struct Nothing`

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

### `concept Thing`

What a thing must have.

```cpp
template <typename T>
concept Thing = requires(T thing) {
  // Goes.
  { thing.go() };
};
```

### Functions, constants, macros

| | |
|---|---|
| `inline constexpr int kMost = 4` | at most so many |
| `using Numbers = std::vector<int>` |  |
| `bool go(const char* format, ...)` | Goes. |
| `bool stop()` |  |
| `#define SWITCHYARD_LEAVE(why)` | Returns early. |"""


# Types that public declarations name and no public header declares, because a user only hands them on.
HANDED_ON = {
    "OwnAttentionKernels", "OwnEpilogue", "OwnFormat",  # own_..() makes them, a configuration takes them
    "WaitContext",  # ExpertParallel::row_readiness() makes it, wait_for_expert_rows() takes it
    "RankPointers", "Scope",  # ExpertParallel::row_completion() makes them, complete_part() takes them
    "Vec16",  # target::ld_16() and pack_bf16() make it, target::st_16() takes it
    "Device", "KernelTable",  # a Rank has them, and hands them on to the library's own launches
    "Impl",  # of a World, for the library itself
    "TestHooks",  # of tests and simulations only
}


def parameters_of(text):
    """The names of the template parameters of a declaration."""
    text = re.sub(r"^SWITCHYARD_\w+ ", "", text)
    header = text[:len(text) - len(api.without_template(text))]
    return set(re.findall(r"(\w+)\s*(?:=[^,>]*)?[,>]", header))


def types_in(text):
    """The names of ours that a declaration spells and that look like types."""
    plain = re.sub(r'"[^"]*"|\bstd::\w+', "", api.signature(text))
    return set(re.findall(r"\b(?:[A-Z]\w*[a-z]\w*|bf16|e[0-9]m[0-9])\b", plain))


def undeclared_types(headers):
    """Types that the declarations of headers, {name: text}, spell but do not declare: "name in header"."""
    declared, spelled = set(), set()
    for header, text in headers.items():
        for declaration in api.public_declarations(re.sub(r"^(//[^\n]*\n)*", "", text)):
            declared.add(api.name_of(declaration.text))
            members = api.public_members(declaration) if api.kind_of(declaration.text) in ("class", "struct") else []
            declared |= {api.name_of(member.text) for member in members if api.is_type(member.text)}
            own = parameters_of(declaration.text)
            # What concepts ask for names parameters of their own, in comments, too.
            if api.kind_of(declaration.text) != "concept":
                members = [declaration, *members]
            for part in members:
                names = types_in(part.text) - own - parameters_of(part.text)
                spelled |= {(name, header) for name in names}
    return sorted(f"{name} in {header}" for name, header in spelled if name not in declared)


class ApiReference(unittest.TestCase):
    maxDiff = None

    def test_no_declaration_names_a_type_that_only_detail_declares(self):
        contracts, types = api.public_headers()
        headers = {api.title_of(path): path.read_text() for path in contracts + types}
        found = [use for use in undeclared_types(headers) if use.split()[0] not in HANDED_ON]
        self.assertEqual(found, [])

    def test_a_type_that_only_detail_declares_is_found(self):
        text = "namespace switchyard {\nstruct Open {\n  Closed value;\n  Open* next;\n};\n" \
               "template <typename T>\nstd::vector<T> all(const Hidden<T>& hidden, bf16 x);\n}\n"
        self.assertEqual(undeclared_types({"a.hpp": text}), ["Closed in a.hpp", "Hidden in a.hpp", "bf16 in a.hpp"])

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
