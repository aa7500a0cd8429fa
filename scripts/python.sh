#!/usr/bin/env bash
# Builds a wheel of the Python package over the libraries of a build folder, and tests it.
#   scripts/python.sh test    installed in build/venv, beside what it was built with
#   scripts/python.sh wheel   in a clean venv, with what its users have
# Where packages cannot be had from PyPI or its mirror, it says so and does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
libraries=${SWITCHYARD_PREBUILT:-build}

# Makes a venv with these packages.
make_venv() {
  local venv=$1 log
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  if ! log=$("$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}" 2>&1); then
    echo "python: skipped, pip cannot install ${*:2} ($(tail -n 1 <<<"$log"))"
    exit 0
  fi
}

make_venv build/venv "scikit-build-core>=0.10" "nanobind>=2.4" "numpy>=1.23" "ml_dtypes>=0.5" "pytest>=7"
[ -e "$libraries/build.ninja" ] || cmake --preset run
cmake --build "$libraries" --target switchyard_runtime
rm -rf build/wheels
build/venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  --wheel-dir build/wheels -C "cmake.define.SWITCHYARD_PREBUILT=$PWD/$libraries" .

venv=build/venv
if [ "$1" = wheel ]; then
  venv=build/venv-wheel
  rm -rf $venv
  make_venv $venv "numpy>=1.23" "ml_dtypes>=0.5" "pytest>=7"
fi
$venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall build/wheels/*.whl
ls -l build/wheels | awk 'NR > 1 {printf "%s: %.1f MB\n", $9, $5 / 1e6}'
$venv/bin/python -m pytest -q -p no:cacheprovider python/tests
$venv/bin/python examples/two_experts.py
