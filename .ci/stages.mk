# The stages of CI, and what each needs. make starts them in the order of the first line, as soon as what they need is there:
# first what others wait for, last what is short, so that both halves of the machine end together.
all: build tests asan-build asan-tests tsan-build tsan-tests wheel asan-python fuzz calls draw simulate \
  g++-11 clang-16 clang-16-libc++ sm_80

# All tests; with nvcc all CUDA code is compiled.
build: ; @.ci/stage $@ 'cmake --preset release >/dev/null && cmake --build build'
tests: build ; @.ci/stage $@ make test

# The host tests under the sanitizers.
asan-build tsan-build: %-build: ; @.ci/stage $@ scripts/sanitize.sh $* build
asan-tests tsan-tests: %-tests: %-build ; @.ci/stage $@ scripts/sanitize.sh $* test

# The tests of the Python package: in a clean venv, and under AddressSanitizer. Both use the folder of wheels. This and the
# fuzzers ask ninja for the libraries of the folder `build`, as `make test` does: one at a time.
wheel: tests ; @.ci/stage $@ scripts/python.sh wheel
asan-python: asan-build wheel ; @.ci/stage $@ scripts/python.sh asan

# Random text, calls and configurations; random interleavings on a weak memory, with and without faults.
fuzz: tests ; @.ci/stage $@ scripts/fuzz.sh 60 build
calls: build ; @.ci/stage $@ build/tests/switchyard_api_fuzz --seconds 60
draw: build ; @.ci/stage $@ scripts/draw_configurations.py build/switchyard --seconds 60
simulate: build ; @.ci/stage $@ 'build/switchyard simulate --seeds 5000 && build/switchyard simulate --seeds 1000 --faults all'

# Other compilers, another C++ library, another architecture.
g++-11 clang-16 clang-16-libc++ sm_80: ; @.ci/stage $@ scripts/compile_with.sh $@

.PHONY: all build tests asan-build asan-tests tsan-build tsan-tests wheel asan-python fuzz calls draw simulate \
  g++-11 clang-16 clang-16-libc++ sm_80
