#!/usr/bin/env bash
# Builds a wheel of the Python package over the libraries of a build folder, and tests it.
#   scripts/python.sh test    installed in build/venv, beside what it was built with
#   scripts/python.sh wheel   in a clean venv, with what its users have
#   scripts/python.sh asan    under AddressSanitizer, over the libraries of build/asan
# Where there is no venv, or packages cannot be had from PyPI or its mirror, it says so and does nothing. The first two also
# check types by mypy, and run what needs PyTorch where pip gets it and CUDA 13 is there.
set -euo pipefail
cd "$(dirname "$0")/.."
libraries=${SWITCHYARD_PREBUILT:-build} venv=build/venv options=() tests= preload=
case $1 in
  wheel) venv=build/venv-wheel ;;
  asan)
    libraries=build/asan venv=build/venv-asan
    options=(--config-settings=build-dir=build/pip/asan --config-settings=cmake.build-type=Debug
      --config-settings=cmake.define.CMAKE_CXX_FLAGS_DEBUG=-O1 --config-settings=cmake.define.CMAKE_CXX_COMPILER=g++-11
      --config-settings=cmake.define.SWITCHYARD_SANITIZER=address,undefined)
    # Python is not built with the sanitizer, which must come first all the same. It frees nothing at its end.
    tests="not import_is_quick and not is_typed and not stubs"
    preload="$(g++-11 -print-file-name=libasan.so) $(g++-11 -print-file-name=libstdc++.so)"
    export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0
    ;;
esac

# Makes a venv with these packages.
make_venv() {
  local venv=$1 log
  if ! [ -x "$venv/bin/python" ] && ! python3 -m venv "$venv" >/dev/null 2>&1; then
    echo "python: skipped, python3 cannot make a venv (scripts/setup.sh python installs what it needs)"
    exit 0
  fi
  if ! log=$("$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}" 2>&1); then
    echo "python: skipped, pip cannot install ${*:2} ($(tail -n 1 <<<"$log"))"
    exit 0
  fi
}

make_venv build/venv "scikit-build-core>=0.10" "nanobind>=2.4" "numpy>=1.23" "ml_dtypes>=0.5" "pytest>=7" "mypy>=1.10"
[ -e "$libraries/build.ninja" ] || cmake --preset run
cmake --build "$libraries" --target switchyard_runtime
rm -rf build/wheels
# Stubs are made from the new extension, which must not meet the old one.
build/venv/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes switchyard-ep 2>/dev/null
build/venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  --wheel-dir build/wheels --config-settings="cmake.define.SWITCHYARD_PREBUILT=$PWD/$libraries" ${options[@]+"${options[@]}"} .

[ $venv = build/venv ] || { rm -rf $venv && make_venv $venv "numpy>=1.23" "ml_dtypes>=0.5" "pytest>=7" "mypy>=1.10"; }
$venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall build/wheels/*.whl
# What a wheel may weigh: with the CUDA target 40 MB, without it 5 MB. (That of the sanitizer is never handed out.)
most=5
! grep -q '^CMAKE_CUDA_COMPILER:' "$libraries/CMakeCache.txt" || most=40
for file in build/wheels/*.whl; do
  size=$(stat --format=%s "$file")
  awk -v name="${file##*/}" -v size="$size" 'BEGIN {printf "%s: %.1f MB\n", name, size / 1e6}'
  if [ "$1" != asan ] && [ "$size" -gt $((most * 1000000)) ]; then
    echo "python: $file has $size bytes; at most $most MB are allowed" >&2
    exit 1
  fi
done
export LD_PRELOAD=$preload
$venv/bin/python -m pytest -q -p no:cacheprovider -k "$tests" python/tests
for example in examples/*.py; do
  [ "$example" = examples/torch_layer.py ] || $venv/bin/python "$example"
done
$venv/bin/python scripts/notebook.py examples/*.ipynb
[ "$1" != asan ] || exit 0

$venv/bin/python -m mypy --strict --cache-dir=build/mypy python/tests/typed_user.py

# PyTorch lies in a folder of its own, so that what is above runs without it. It finds the CUDA libraries of the toolkit:
# those that pip would bring are gigabytes.
version=2.11.0
torch=build/torch-$version cuda=/usr/local/cuda/lib64
add_torch() {
  local target=(-m pip install --quiet --disable-pip-version-check --target "$torch.new")
  rm -rf "$torch.new"
  timeout 300 "$venv/bin/python" "${target[@]}" --no-deps "torch==$version" nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5 \
    nvidia-cufile==1.15.1.6 &&
    timeout 60 "$venv/bin/python" "${target[@]}" filelock fsspec jinja2 networkx sympy typing-extensions && mv "$torch.new" "$torch"
}
if ! [ -e $cuda/libcublas.so.13 ]; then
  echo "python: tests with PyTorch skipped, there is no CUDA 13 in ${cuda%/lib64}"
elif ! [ -e $torch ] && ! log=$(add_torch 2>&1); then
  echo "python: tests with PyTorch skipped, pip cannot install it ($(tail -n 1 <<<"$log"))"
elif ! log=$(PYTHONPATH=$torch LD_LIBRARY_PATH=$cuda $venv/bin/python -c 'import torch' 2>&1); then
  echo "python: tests with PyTorch skipped, it cannot be imported ($(tail -n 1 <<<"$log"))"
else
  export PYTHONPATH=$torch LD_LIBRARY_PATH=$cuda
  $venv/bin/python -m pytest -q -p no:cacheprovider -k "torch or process_group or on_gpu" python/tests
  $venv/bin/python examples/torch_layer.py
fi
