#!/usr/bin/env bash
# Every public struct and each of its fields stands in the test that watches sizes and offsets.
set -euo pipefail

header=$1 watch=$2
# "struct field" of each field; a declaration ends with its name, and an array with its size.
fields=$(awk '
  /^typedef struct [a-z_]+ \{/ { name = $3; next }
  /^\}/ { name = "" }
  /^ *(\/\*|\*)/ { next }  # a comment
  name != "" && /;/ {
    line = $0
    sub(/;.*/, "", line)
    gsub(/\[[^]]*\]/, "", line)
    if (match(line, /\(\*[a-z_0-9]+\)/)) field = substr(line, RSTART + 2, RLENGTH - 3)
    else { count = split(line, words, /[ *]+/); field = words[count] }
    print name, field
  }' "$header")
[ -n "$fields" ] || { echo "no struct found in $header" >&2 && exit 1; }
missing=0
while read -r name field; do
  if ! grep -qE "SIZE\($name," "$watch" || ! grep -qE "OFFSET\($name, $field," "$watch"; then
    echo "$watch does not watch $name.$field" >&2
    missing=1
  fi
done <<<"$fields"
echo "$(wc -l <<<"$fields") fields"
exit $missing
