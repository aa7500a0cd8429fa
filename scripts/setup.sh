#!/usr/bin/env bash
# Looks for what the build needs, wherever it comes from, and installs with apt what is not there.
#   scripts/setup.sh             for the command
#   scripts/setup.sh tests       and for the tests, of which those with OpenSHMEM, and of two nodes, are skipped where what
#                                they need cannot be installed
#   scripts/setup.sh compilers   and for scripts/compile_with.sh and ThreadSanitizer
#   scripts/setup.sh python      for the command and scripts/python.sh
# The README says what each is for.
set -uo pipefail
scope=${1:-command}

missing=() packages=()  # what was looked for in vain, and Debian's names for it
lack() { missing+=("$1") packages+=("${@:2}"); }
has() { command -v "$1" >/dev/null; }
is_older() { [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

look_for_python() {
  [ "$scope" = python ] || return 0
  has python3 || { lack "no python3 on the PATH" python3 python3-venv python3-dev && return; }
  python3 -c 'import ensurepip, venv' 2>/dev/null || lack "python3 has no venv" python3-venv
  python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
    lack "python3 has no headers" python3-dev
}

look_for_tools() {
  local compiler=${CXX:-c++}
  has "${compiler%% *}" || lack "no C++ compiler on the PATH" g++
  has make || lack "no make on the PATH" make
  has ninja || lack "no ninja on the PATH" ninja-build
  if ! has cmake; then
    lack "no cmake on the PATH" cmake
  else
    local version=$(cmake --version | grep -oE -m 1 '[0-9]+\.[0-9.]+')
    ! is_older "$version" 3.22 || lack "$(command -v cmake) is $version, older than 3.22" cmake
  fi
  look_for_python
  [ "$scope" = compilers ] || return 0
  has g++-11 || lack "no g++-11 on the PATH" g++-11
  has clang++-16 || lack "no clang++-16 on the PATH" clang-16
  echo '#include <version>' | clang++-16 -stdlib=libc++ -E -x c++ - >/dev/null 2>&1 ||
    lack "clang++-16 finds no libc++" libc++-16-dev libc++abi-16-dev
  echo 'int main() {}' | clang++-16 -fsanitize=thread -o /dev/null -x c++ - >/dev/null 2>&1 ||
    lack "clang++-16 finds no ThreadSanitizer" libclang-rt-16-dev
}

# What CMake finds is what counts, so CMake is asked, the way the build asks it.
look_for_libraries() {
  local probe=$(mktemp -d)
  cat >"$probe/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.22)
project(probe LANGUAGES CXX)
function(lack)
  string(REPLACE ";" "|" line "${ARGV}")
  file(APPEND ${CMAKE_SOURCE_DIR}/missing "${line}\n")
endfunction()
file(WRITE ${CMAKE_SOURCE_DIR}/missing "")
set(oldest_GNU 11)
set(oldest_Clang 16)
if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS "${oldest_${CMAKE_CXX_COMPILER_ID}}")
  lack("${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_VERSION}, older than ${oldest_${CMAKE_CXX_COMPILER_ID}}" g++)
endif()
set(Boost_USE_STATIC_LIBS ON)
find_package(Boost 1.74 CONFIG QUIET COMPONENTS context)
if(NOT TARGET Boost::context)
  lack("CMake finds no static Boost.Context of 1.74 or later" libboost-context-dev)
endif()
find_package(CLI11 QUIET)
if(NOT CLI11_FOUND)
  lack("CMake finds no CLI11" libcli11-dev)
endif()
find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
  lack("CMake finds no nlohmann-json" nlohmann-json3-dev)
endif()
if(NOT SCOPE MATCHES "^(command|python)$")
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    lack("CMake finds no GoogleTest" libgtest-dev)
  endif()
endif()
END
  local log what names
  if log=$(cmake -S "$probe" -B "$probe/build" -G Ninja -DSCOPE="$scope" 2>&1); then
    while IFS='|' read -r what names; do lack "$what" "$names"; done <"$probe/missing"
  else
    lack "CMake cannot use the compiler ($(grep -m 1 -A 2 'CMake Error' <<<"$log" | tr -s '\n ' ' '))" g++
  fi
  rm -rf "$probe"
}

look() {
  missing=() packages=()
  look_for_tools
  [ ${#missing[@]} -gt 0 ] || look_for_libraries
}

install() {
  local as_root=() log
  failure=""
  if ! has apt-get; then
    failure="there is no apt-get here"
  elif [ "$(id -u)" -ne 0 ] && ! has sudo; then
    failure="you are not root, and there is no sudo"
  else
    echo "setup: installing $*"
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    # An update that fails may be that of another package's source: what counts is whether the installation does.
    "${as_root[@]}" apt-get update -qq >/dev/null 2>&1
    log=$("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "$@" 2>&1) ||
      failure="apt-get failed: $(grep -m 1 '^E:' <<<"$log" || tail -n 1 <<<"$log")"
  fi
  [ -z "$failure" ]
}

# What some tests need, and nothing else. Only root can make network namespaces.
install_for_some_tests() {
  [ "$scope" = tests ] || exit 0
  has oshcc || install openmpi-bin libopenmpi-dev ||
    echo "setup: no oshcc on the PATH ($failure): the tests with OpenSHMEM are skipped"
  [ "$(id -u)" -ne 0 ] || has ip || install iproute2 ||
    echo "setup: no ip on the PATH ($failure): the test of two nodes is skipped"
  exit 0
}

failure=""
# Twice, since libraries are looked for once there is a CMake to look for them.
for attempt in 1 2; do
  look
  [ ${#missing[@]} -gt 0 ] || install_for_some_tests
  install "${packages[@]}" || break
done
look
[ ${#missing[@]} -gt 0 ] || install_for_some_tests
printf -v list '%s; ' "${missing[@]}"
echo "setup: ${list%; }. Please install ${packages[*]}, as Debian names them${failure:+ ($failure)}." >&2
exit 1
