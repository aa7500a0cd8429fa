#!/usr/bin/env bash
# Gives random text to everything of the command that reads text, for so many seconds: guided by coverage and under
# AddressSanitizer and UBSan where there is a clang with libFuzzer, else with switchyard_fuzz.
#   scripts/fuzz.sh SECONDS [BUILD_FOLDER [SEED]]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?"scripts/fuzz.sh SECONDS [BUILD_FOLDER [SEED]]"} build=${2:-build} seed=${3:-1}
cmake --build "$build" --target switchyard_fuzz

clang=
for candidate in clang++-{20,19,18,17,16} clang++; do
  command -v "$candidate" >/dev/null || continue
  [[ $("$candidate" -dumpversion) == 1[6-9].* || $("$candidate" -dumpversion) == [2-9][0-9].* ]] || continue
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    "$candidate" -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null 2>/dev/null || continue
  clang=$candidate
  break
done
if [[ -z $clang ]]; then
  echo "fuzz.sh: no clang++ 16 or later with libFuzzer; random text instead"
  exec "$build/tests/fuzz/switchyard_fuzz" --seconds "$seconds" --seed "$seed"
fi

# Only what reads text is compiled anew; the rest is linked as it was built.
folder=$build/libfuzzer
mkdir -p "$folder/corpus"
cached() { sed -n "s/^$1:[^=]*=//p" "$build/CMakeCache.txt"; }
compile() {
  "$clang" -std=c++20 -O1 -g1 -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined \
    -fno-sanitize-recover=all -Dmain=switchyard_main -I. -Iinclude -Iemulator -Itests -Itools \
    -c "$1" -o "$folder/$(basename "$1" .cpp).o"
}
export -f compile
export clang folder
# Commands together, as the build does where it may: their headers take longest.
commands=("$build"/tools/CMakeFiles/switchyard_commands.dir/Unity/unity_{options,run,merged}_cxx.cxx)
[ -e "${commands[0]}" ] || commands=(tools/commands/*.cpp)
rm -f "$folder"/*.o
printf '%s\0' "${commands[@]}" tools/files/{counts_file,placement_file,text_file}.cpp tools/workload/workload.cpp \
  tools/main.cpp tests/fuzz/fuzz_text.cpp tests/fuzz/libfuzzer.cpp |
  xargs -0 -n1 -P"${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" bash -c 'compile "$0"'
mapfile -t libraries < <(find "$build"/{tools,reference,benchmarks,src,emulator} -maxdepth 1 -name '*.a')
cudart=$(cached CUDA_cudart_static_LIBRARY)
"$clang" -fsanitize=fuzzer,address,undefined "$folder"/*.o -Wl,--start-group "${libraries[@]}" -Wl,--end-group \
  -l:libboost_context.a ${cudart:+"$cudart" -ldl -lrt} -lpthread -o "$folder/switchyard_libfuzzer"
exec "$folder/switchyard_libfuzzer" -max_total_time="$seconds" -seed="$seed" -max_len=4096 -timeout=20 \
  -print_final_stats=1 -verbosity=0 -artifact_prefix="$folder/" "$folder/corpus"
