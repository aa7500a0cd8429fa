# The two commands of the README, and what CI adds. Each installs what it needs, builds and runs.
.PHONY: run test python wheel sanitize compilers format clean

# What this machine can run, unless `build` has been configured already.
run:
	scripts/setup.sh
	test -e build/build.ninja || cmake --preset run
	cmake --build build --target switchyard_tool
	@sed -n 's/^SWITCHYARD_LEFT_OUT:INTERNAL=\(.\)/Without the CUDA target: \1/p' build/CMakeCache.txt
	build/switchyard run

# Everything this machine can compile; what `make run` has built is kept.
test:
	scripts/setup.sh tests
	cmake --preset release
	cmake --build build
	scripts/test.sh build

# The Python package, installed in build/venv, and its tests. It links what `make run` and `make test` have built.
python:
	scripts/setup.sh python
	scripts/python.sh test

# A wheel of it in build/wheels, tested in a venv that holds nothing else.
wheel:
	scripts/setup.sh python
	scripts/python.sh wheel

# Host tests under AddressSanitizer, UBSan and ThreadSanitizer.
sanitize:
	scripts/setup.sh tests
	scripts/setup.sh compilers
	scripts/sanitize.sh

# The library and the command with other compilers and another C++ library.
compilers:
	scripts/setup.sh compilers
	scripts/compile_with.sh

format:
	git ls-files '*.hpp' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	rm -rf build
