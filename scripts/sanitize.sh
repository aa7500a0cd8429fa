#!/usr/bin/env bash
# Builds and runs the host tests under sanitizers.
#   scripts/sanitize.sh                        all of it, the tests of the Python package under AddressSanitizer among it
#   scripts/sanitize.sh asan|tsan build|test   a part
set -euo pipefail
cd "$(dirname "$0")/.."

build() {
  cmake --preset "$1" >/dev/null
  # CMake forgets what a preset says where it finds another compiler than before.
  grep -q '^SWITCHYARD_SANITIZER:[A-Z]*=.' "build/$1/CMakeCache.txt" || cmake --preset "$1" >/dev/null
  cmake --build "build/$1"
}
run_tests() {
  ASAN_OPTIONS=detect_stack_use_after_return=0 TSAN_OPTIONS=halt_on_error=1 scripts/test.sh "build/$1"
}

case "$*" in
  "asan build" | "tsan build") build "$1" ;;
  "asan test" | "tsan test") run_tests "$1" ;;
  "")
    for preset in asan tsan; do
      echo "== $preset"
      build $preset
      run_tests $preset
    done
    scripts/python.sh asan
    ;;
  *) echo "scripts/sanitize.sh [asan|tsan build|test]" >&2 && exit 2 ;;
esac
