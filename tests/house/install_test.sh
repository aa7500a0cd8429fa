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

# In C, with nothing but the shared library and what pkg-config says; without pkg-config, with what it would say.
description=$(find "$work/installed" -name switchyard.pc)
if [[ -n $description ]]; then
  libraries=$(dirname "$(dirname "$description")")
  flags="-I$work/installed/include -L$libraries -lswitchyard"
  if command -v pkg-config >/dev/null; then
    flags=$(PKG_CONFIG_PATH=$(dirname "$description") pkg-config --cflags --libs switchyard)
  fi
  # shellcheck disable=SC2086  # flags are words
  cc -std=c11 "$work/examples/c_step.c" $flags -o "$work/build/c_step"
  LD_LIBRARY_PATH=$libraries "$work/build/c_step"
fi
