#!/usr/bin/env bash
# Builds and runs the host tests under each sanitizer, those of the Python package under AddressSanitizer.
set -euo pipefail

export ASAN_OPTIONS=detect_stack_use_after_return=0 TSAN_OPTIONS=halt_on_error=1
for preset in asan tsan; do
  echo "== $preset"
  cmake --preset "$preset" >/dev/null
  cmake --build "build/$preset"
  scripts/test.sh "build/$preset"
  [ $preset != asan ] || scripts/python.sh asan
done
