#!/usr/bin/env bash
# Runs every test of a build folder and closes with one line: N passed, N failed, N skipped.
set -uo pipefail

build=$1
report=$build/test-report.xml
rm -f "$report"
# The list of skipped tests at the end is long where there is no GPU, and each line above says "Skipped" already.
ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "$(nproc)" --output-junit "$PWD/$report" |
  sed '/^The following tests did not run:/,/^$/d'
status=$?
count() { grep -m1 -oP "\\b$1=\"\\K[0-9]+" "$report"; }
tests=$(count tests) failed=$(count failures) skipped=$(count skipped) disabled=$(count disabled)
skipped=$((skipped + disabled))
echo "$((tests - failed - skipped)) passed, $failed failed, $skipped skipped"
exit $status
