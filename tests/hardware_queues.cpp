// How many hardware queues CUDA is asked for when the tests start.
#include <cstdlib>

namespace {

// Tests that give each rank a thread and a stream need a queue for every stream (docs/architecture.md,
// "Residency and queues"). Of CUDA's 8, two streams may share one, depending on how many streams the tests
// before have made. Processes of one rank each need few, and under MPS there are not 32 for each of them.
[[maybe_unused]] const int kIsSet =
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::getenv("SWITCHYARD_PROCESS_TARGET") != nullptr ? "2" : "32",
           /*overwrite=*/0);

}  // namespace
