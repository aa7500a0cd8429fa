#!/usr/bin/env bash
# Compiles the host library and the command, unoptimised, with other compilers than the machine's own, and with libc++,
# whose headers include less of each other than libstdc++'s; then runs the command once. Compiles the kernels for another
# architecture than Hopper's.
#   scripts/compile_with.sh [g++-11 | clang-16 | clang-16-libc++ | sm_80]..   without a name all of them
#   scripts/compile_with.sh sm_89 sm_100a sm_120a                             other architectures
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
  local name=$1 compiler=$2 flags=$3
  cmake -S . -B "build/$name" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS="$flags -Werror" \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DSWITCHYARD_HOT_FLAGS= \
    -DSWITCHYARD_CUDA=OFF -DSWITCHYARD_BUILD_TESTS=OFF "${@:4}" >/dev/null
  cmake --build "build/$name" --target switchyard_tool
  "build/$name/switchyard" run --ranks 2 --tokens 4 --experts 4 --top-k 2 --hidden 64 --expert-width 32 >/dev/null
}

# The kernels that are not Hopper's alone, for an architecture such as sm_80, which is without its copy engine; a format
# with and one without scales stands for all.
compile_for() {
  local folder=build/$1
  command -v nvcc >/dev/null || { echo "skipped, there is no nvcc" && return; }
  mkdir -p "$folder"
  printf '#include "launch/make_format_kernels.hpp"\nnamespace switchyard {\n%s\n%s\n}\n' \
    'template FormatKernels kernels_of_kind<TokenFormatKind::kBF16, RunTimeShape>();' \
    'template FormatKernels kernels_of_kind<TokenFormatKind::kFP8, RunTimeShape>();' >"$folder/formats.cu"
  # The assembler does not optimise: nothing of it runs.
  printf '%s\n' "$folder/formats.cu" src/launch/kernel_table.cu |
    xargs -P "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" -I{} sh -c "nvcc -std=c++20 -arch=$1 --expt-relaxed-constexpr \
      -fmad=false -Xptxas -O0 -Iinclude -Isrc -I. -c {} -o $folder/\$(basename {}).o"
}

[ $# -gt 0 ] || set -- g++-11 clang-16 clang-16-libc++ sm_80
for name; do
  echo "== $name"
  case $name in
    # Several files at once where the language is what is tried; one by one where each is to show what it includes.
    g++-11) compile "$name" g++-11 "" -DCMAKE_UNITY_BUILD=ON ;;
    clang-16) compile "$name" clang++-16 "" -DCMAKE_UNITY_BUILD=ON ;;
    clang-16-libc++) compile "$name" clang++-16 -stdlib=libc++ -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON ;;
    sm_*) compile_for "$name" ;;
    *) echo "scripts/compile_with.sh: there is no $name" >&2 && exit 2 ;;
  esac
done
