#!/usr/bin/env bash
# Compiles the host library and the command, unoptimised, with other compilers than the machine's own, and with libc++,
# whose headers include less of each other than libstdc++'s; then runs the command once.
set -euo pipefail

compile() {
  local name=$1 compiler=$2 flags=$3
  echo "== $name"
  cmake -S . -B "build/$name" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS="$flags -Werror" \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DSWITCHYARD_HOT_FLAGS= \
    -DSWITCHYARD_CUDA=OFF -DSWITCHYARD_BUILD_TESTS=OFF "${@:4}" >/dev/null
  cmake --build "build/$name" --target switchyard_tool
  "build/$name/switchyard" run --ranks 2 --tokens 4 --experts 4 --top-k 2 --hidden 64 --expert-width 32 >/dev/null
}

# Several files at once where the language is what is tried; one by one where each is to show what it includes.
compile g++-11 g++-11 "" -DCMAKE_UNITY_BUILD=ON
compile clang-16 clang++-16 "" -DCMAKE_UNITY_BUILD=ON
compile clang-16-libc++ clang++-16 -stdlib=libc++ -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON

# The kernels that are not Hopper's alone, for an architecture without its copy engine; a format with and one without
# scales stands for all.
if command -v nvcc >/dev/null; then
  echo "== sm_80"
  mkdir -p build/sm_80
  for kind in kBF16 kFP8; do
    printf '#include "launch/make_format_kernels.hpp"\nnamespace switchyard {\n%s\n}\n' \
      "template FormatKernels kernels_of_kind<TokenFormatKind::$kind, RunTimeShape>();" >"build/sm_80/$kind.cu"
  done
  printf '%s\n' build/sm_80/kBF16.cu build/sm_80/kFP8.cu src/launch/kernel_table.cu |
    xargs -P "$(nproc)" -I{} sh -c 'nvcc -std=c++20 -arch=sm_80 --expt-relaxed-constexpr -fmad=false -Iinclude -Isrc -I. \
      -c {} -o build/sm_80/$(basename {}).o'
fi
