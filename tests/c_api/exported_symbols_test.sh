#!/usr/bin/env bash
# What libswitchyard.so exports is what exported_symbols.txt lists, and its name carries the version of the ABI.
set -euo pipefail

library=$1 expected=$2
exported=$(nm --dynamic --defined-only "$library" | awk '{ print $3 }' | LC_ALL=C sort)
if ! diff <(LC_ALL=C sort "$expected") <(echo "$exported"); then
  echo "$library exports other symbols (>) than $expected lists (<)" >&2
  exit 1
fi
if ! readelf -d "$library" | grep -q 'SONAME.*\[libswitchyard\.so\.0\]'; then
  echo "the SONAME of $library is not libswitchyard.so.0" >&2
  exit 1
fi
