// The kernels whose wire is NVSHMEM.
#include "launch/protocol_kernels.hpp"
#include "nvshmem_kernels.hpp"

namespace switchyard {
namespace {

constexpr KernelTable this_table() {
  KernelTable table{};
  table.wired = kWiredKernels;
  return table;
}
constexpr KernelTable kTable = this_table();

}  // namespace

const KernelTable& nvshmem_kernels() { return kTable; }

}  // namespace switchyard
