#!/usr/bin/env bash
# Runs every test of a build folder and closes with one line: N passed, N failed, N skipped.
set -uo pipefail

build=$1
report=$build/test-report.xml
rm -f "$report"

# Of a process with many tests it shows those that failed, and the one that ran when the process ended too soon. The
# list of skipped tests at the end is long where there is no GPU, and each line above says "Skipped" already.
shorten() {
  awk '
    /^The following tests did not run:/ { is_skipped_list = 1 }
    is_skipped_list { if ($0 == "") is_skipped_list = 0; next }
    /^\[ RUN      \]/ { test = $0; next }
    test != "" && /\[ (      OK| SKIPPED) \] .* \([0-9]+ ms\)$/ { test = ""; next }
    test != "" && /^\[  FAILED  \]|^ +Start +[0-9]+:|^ *[0-9]+\/[0-9]+ Test +#/ { print test; test = "" }
    test != "" { test = test "\n" $0; next }
    /^\[-----|^\[  SKIPPED \] [^ ]+$/ { next }
    { print }
    END { if (test != "") print test }'
}

# Every test of a process with many counts, the one that ran when the process ended too soon as failed.
count() {
  awk '
    /^\t<testcase / { status = $0; sub(/.*status="/, "", status); sub(/".*/, "", status); tests = failures = is_running = 0 }
    /^\[ RUN      \]/ { ++tests; is_running = 1 }
    /\[       OK \] .* \([0-9]+ ms\)$/ { is_running = 0; ++passed }
    /\[  SKIPPED \] .* \([0-9]+ ms\)$/ { is_running = 0; ++skipped }
    /\[  FAILED  \] .* \([0-9]+ ms\)$/ { is_running = 0; ++failures; ++failed }
    /^\t<\/testcase>/ {
      if (is_running || (status == "fail" && failures == 0)) ++failed
      else if (tests == 0 && status == "run") ++passed
      else if (tests == 0 && status != "fail") ++skipped
    }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$report"
}

ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "${CTEST_PARALLEL_LEVEL:-$(nproc)}" \
  --output-junit "$PWD/$report" --test-output-size-passed 1000000 --test-output-size-failed 1000000 | shorten
status=$?
count
exit $status
