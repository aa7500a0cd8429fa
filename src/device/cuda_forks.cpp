#include "cuda_forks.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "cuda_driver.hpp"

namespace switchyard {
namespace {

Result<std::vector<cudaGraphNode_t>> nodes_of(cudaGraph_t graph) {
  size_t num_nodes = 0;
  SWITCHYARD_RETURN_IF_ERROR(check_cuda(cudaGraphGetNodes(graph, nullptr, &num_nodes), "cudaGraphGetNodes"));
  std::vector<cudaGraphNode_t> nodes(num_nodes);
  SWITCHYARD_RETURN_IF_ERROR(
      check_cuda(cudaGraphGetNodes(graph, nodes.data(), &num_nodes), "cudaGraphGetNodes"));
  return nodes;
}

Result<bool> is_kernel(cudaGraphNode_t node) {
  cudaGraphNodeType type{};
  SWITCHYARD_RETURN_IF_ERROR(check_cuda(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType"));
  return type == cudaGraphNodeTypeKernel;
}

// Returns the one node whose end a node waits for, null if it waits for none; nothing if it waits for more.
Result<std::optional<cudaGraphNode_t>> only_predecessor(cudaGraphNode_t node) {
  cudaGraphNode_t predecessor = nullptr;
  cudaGraphEdgeData edge{};
  size_t num_predecessors = 0;
  SWITCHYARD_RETURN_IF_ERROR(
      check_cuda(cudaGraphNodeGetDependencies(node, nullptr, nullptr, &num_predecessors),
                 "cudaGraphNodeGetDependencies"));
  if (num_predecessors > 1) return std::optional<cudaGraphNode_t>();
  if (num_predecessors == 1)
    SWITCHYARD_RETURN_IF_ERROR(
        check_cuda(cudaGraphNodeGetDependencies(node, &predecessor, &edge, &num_predecessors),
                   "cudaGraphNodeGetDependencies"));
  if (edge.from_port != 0 || edge.type != cudaGraphDependencyTypeDefault)
    return std::optional<cudaGraphNode_t>();
  return std::optional<cudaGraphNode_t>(predecessor);
}

using KernelParamsOf = decltype(&cuGraphKernelNodeGetParams);

// The driver's function. A CUDA runtime knows the kernels of its own library only, and fails for those of
// another one: a plugin has a runtime, and kernels, of its own.
Result<KernelParamsOf> look_up_kernel_params() {
  KernelParamsOf function = nullptr;
  SWITCHYARD_RETURN_IF_ERROR(look_up_in_driver("cuGraphKernelNodeGetParams", function));
  return function;
}

// Whether all its blocks become resident at once on an idle device.
Result<bool> begins_at_once(cudaGraphNode_t node, int num_multiprocessors) {
  static const Result<KernelParamsOf> kernel_params_of = look_up_kernel_params();
  if (!kernel_params_of.ok()) return kernel_params_of.status();
  CUDA_KERNEL_NODE_PARAMS params{};
  SWITCHYARD_RETURN_IF_ERROR(
      check_driver(kernel_params_of.value()(node, &params), "cuGraphKernelNodeGetParams"));
  return uint64_t{params.gridDimX} * params.gridDimY * params.gridDimZ <=
         static_cast<uint64_t>(num_multiprocessors);
}

Status wait_for_start(cudaGraph_t graph, cudaGraphNode_t node, cudaGraphNode_t first,
                      cudaGraphNode_t predecessor) {
  if (predecessor != nullptr)
    SWITCHYARD_RETURN_IF_ERROR(check_cuda(cudaGraphRemoveDependencies(graph, &predecessor, &node, nullptr, 1),
                                          "cudaGraphRemoveDependencies"));
  cudaGraphEdgeData edge{};
  edge.from_port = cudaGraphKernelNodePortLaunchCompletion;
  return check_cuda(cudaGraphAddDependencies(graph, &first, &node, &edge, 1), "cudaGraphAddDependencies");
}

}  // namespace

Status stagger_forks(cudaGraph_t graph, int num_multiprocessors) {
  Result<std::vector<cudaGraphNode_t>> nodes = nodes_of(graph);
  if (!nodes.ok()) return nodes.status();
  std::map<cudaGraphNode_t, cudaGraphNode_t> first_behind;
  for (const cudaGraphNode_t node : nodes.value()) {
    const Result<bool> is_candidate = is_kernel(node);
    if (!is_candidate.ok()) return is_candidate.status();
    if (!is_candidate.value()) continue;
    const Result<std::optional<cudaGraphNode_t>> predecessor = only_predecessor(node);
    if (!predecessor.ok()) return predecessor.status();
    if (!predecessor.value().has_value()) continue;
    const auto first = first_behind.find(*predecessor.value());
    if (first != first_behind.end()) {
      SWITCHYARD_RETURN_IF_ERROR(wait_for_start(graph, node, first->second, *predecessor.value()));
      continue;
    }
    const Result<bool> at_once = begins_at_once(node, num_multiprocessors);
    if (!at_once.ok()) return at_once.status();
    if (at_once.value()) first_behind.emplace(*predecessor.value(), node);
  }
  return Status();
}

}  // namespace switchyard
