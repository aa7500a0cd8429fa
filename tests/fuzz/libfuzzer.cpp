// What clang's libFuzzer calls: `switchyard_libfuzzer -max_total_time=60`.
#include <algorithm>

#include "fuzz_text.hpp"

extern "C" {

size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

int LLVMFuzzerInitialize(int*, char***) {
  switchyard::fuzz::check_that_readers_are_reached();
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  switchyard::fuzz::fuzz_text(std::string(data, data + size));
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  std::mt19937_64 random(seed);
  if (random() % 4 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string input(data, data + size);
  const std::string changed = random() % 32 == 0 || input.find('\n') == std::string::npos
                                  ? switchyard::fuzz::draw_input(random)
                                  : switchyard::fuzz::change_input(input, random);
  const size_t new_size = std::min(changed.size(), max_size);
  std::copy_n(changed.begin(), new_size, data);
  return new_size;
}

}  // extern "C"
