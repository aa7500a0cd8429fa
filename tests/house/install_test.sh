#!/usr/bin/env bash
# Installs the build, then builds and runs examples/ against the installed copy alone.
set -euo pipefail

source_dir=$1 build_dir=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build_dir" --prefix "$work/installed" >/dev/null
cp -r "$source_dir/examples" "$work/examples"
cmake -S "$work/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/installed" >/dev/null
cmake --build "$work/build"
"$work/build/two_experts"
"$work/build/own_format"
"$work/build/own_epilogue"
"$work/build/own_scheduler"
