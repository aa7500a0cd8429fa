# The two commands of the README, and what CI adds. Each installs what it needs, builds and runs.
.PHONY: run test sanitize format clean

run: build/build.ninja
	cmake --build build --target switchyard_tool
	build/switchyard run

test: build/build.ninja
	cmake --build build
	scripts/test.sh build

# Host tests under AddressSanitizer, UBSan and ThreadSanitizer.
sanitize:
	scripts/setup.sh
	scripts/sanitize.sh

format:
	git ls-files '*.hpp' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	rm -rf build

build/build.ninja: CMakePresets.json scripts/setup.sh
	scripts/setup.sh
	cmake --preset release
