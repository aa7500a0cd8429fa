#!/usr/bin/env bash
# scripts/setup.sh on machines that lack something, or have it from elsewhere than Debian's packages. What it may use is
# a folder of links, in which a stand-in for apt-get installs.
set -euo pipefail

source_dir=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "setup_test: $1: exit $status, and it said: $output" >&2
  exit 1
}
# Everything but what packages are asked for with. Links keep their names, by which compilers know what they are.
make_machine() {
  rm -rf "$work/bin"
  mkdir "$work/bin"
  local tool
  for tool in bash cat grep head tail id make mktemp rm sort tr sed uname ninja cmake c++ g++ as ld ar ranlib nm objdump strip; do
    ln -s "$(command -v "$tool")" "$work/bin/$tool"
  done
  for tool in oshcc ip; do  # they are only looked for
    printf '#!/bin/bash\n' >"$work/bin/$tool"
    chmod +x "$work/bin/$tool"
  done
  rm -f "$work/asked_for"
}
make_apt_get() {
  printf '#!/bin/bash\n[ "$1" = update ] || { echo "$@" >>%q; %s; }\n' "$work/asked_for" "$1" >"$work/bin/apt-get"
  printf '#!/bin/bash\nexec "$@"\n' >"$work/bin/sudo"
  printf '#!/bin/bash\nshift; exec "$@"\n' >"$work/bin/env"
  chmod +x "$work/bin/apt-get" "$work/bin/sudo" "$work/bin/env"
}
setup() {
  status=0
  output=$(PATH=$work/bin CXX= "$BASH" "$source_dir/scripts/setup.sh" "$@" 2>&1) || status=$?
}
says() { [[ $output == *"$1"* ]]; }
is_one_line() { [ "$(wc -l <<<"$output")" -eq 1 ]; }

make_machine
setup tests
[ $status -eq 0 ] && [ -z "$output" ] || fail "all is there, though not from packages"

make_machine
rm "$work/bin/oshcc"
setup
[ $status -eq 0 ] && [ -z "$output" ] || fail "the command needs no OpenSHMEM"
setup tests
[ $status -eq 0 ] && is_one_line && says "tests with OpenSHMEM are skipped" || fail "no OpenSHMEM and no apt-get"
make_apt_get "$(command -v touch) $work/bin/oshcc"
setup tests
[ $status -eq 0 ] && [[ $(<"$work/asked_for") == *"openmpi-bin libopenmpi-dev" ]] ||
  fail "no OpenSHMEM, and apt-get brings it"

make_machine
rm "$work/bin/ip" "$work/bin/id"
printf '#!/bin/bash\necho $user\n' >"$work/bin/id"
chmod +x "$work/bin/id"
export user=0
setup
[ $status -eq 0 ] && [ -z "$output" ] || fail "the command needs no network namespaces"
setup tests
[ $status -eq 0 ] && is_one_line && says "test of two nodes is skipped" || fail "no ip and no apt-get"
make_apt_get "$(command -v touch) $work/bin/ip"
setup tests
[ $status -eq 0 ] && [[ $(<"$work/asked_for") == *"--no-install-recommends iproute2" ]] ||
  fail "no ip, and apt-get brings it"
user=1000
rm "$work/bin/ip"
setup tests
[ $status -eq 0 ] && [ -z "$output" ] || fail "who is not root makes no network namespaces"

make_machine
rm "$work/bin/ninja"
setup
[ $status -eq 1 ] && is_one_line && says "no ninja on the PATH" && says "install ninja-build," &&
  says "no apt-get" || fail "no ninja and no apt-get"

make_machine
rm "$work/bin/ninja"
make_apt_get "$(command -v ln) -s $(command -v ninja) $work/bin/ninja"
setup
[ $status -eq 0 ] && [[ $(<"$work/asked_for") == *"--no-install-recommends ninja-build" ]] ||
  fail "no ninja, and apt-get brings it"

make_machine
rm "$work/bin/ninja"
make_apt_get 'echo "E: Could not resolve deb.debian.org" >&2; exit 100'
setup
[ $status -eq 1 ] && says "no ninja on the PATH" && says "E: Could not resolve" || fail "apt-get without a network"

make_machine
rm "$work/bin/cmake"
printf '#!/bin/bash\necho cmake version 3.16.3\n' >"$work/bin/cmake"
chmod +x "$work/bin/cmake"
setup
[ $status -eq 1 ] && is_one_line && says "is 3.16.3, older than 3.22" || fail "an old CMake"

make_machine
rm "$work/bin/cmake"
printf '#!/bin/bash\nexec %q "$@" -DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON\n' \
  "$(command -v cmake)" >"$work/bin/cmake"
chmod +x "$work/bin/cmake"
setup
[ $status -eq 1 ] && is_one_line && says "no static Boost.Context" && says "install libboost-context-dev," ||
  fail "no Boost, and GoogleTest is not needed"
setup tests
[ $status -eq 1 ] && is_one_line && says "install libboost-context-dev libgtest-dev," || fail "no Boost and no GoogleTest"

make_machine
rm "$work/bin/cmake"
printf '#!/bin/bash\nexec %q "$@" -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON\n' "$(command -v cmake)" >"$work/bin/cmake"
chmod +x "$work/bin/cmake"
setup
[ $status -eq 1 ] && is_one_line && says "no nlohmann-json" && says "install nlohmann-json3-dev," || fail "no nlohmann-json"

make_machine
setup python
[ $status -eq 1 ] && is_one_line && says "no python3 on the PATH" && says "install python3 python3-venv python3-dev" ||
  fail "no Python"
