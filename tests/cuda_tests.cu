// The CUDA half of these tests: the same sources, compiled by nvcc, which reads their headers once.
#include "attention/own_scheduler_test.cpp"
#include "format/token_format_test.cpp"
#include "schedule/schedule_kernel_test.cpp"
#include "target/target_copy_test.cpp"
#include "target/target_memory_test.cpp"
#include "target/target_numbers_test.cpp"
#include "target/target_test.cpp"
#include "target/wire_words_test.cpp"
