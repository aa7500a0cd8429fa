// ExpertParallelConfig as keyword arguments and as a dictionary.
#pragma once

#include "errors.hpp"
#include "switchyard/expert_parallel.hpp"

namespace switchyard::python {

// Reads keyword arguments; one that there is none of, or of another type, raises TypeError.
ExpertParallelConfig config_of(const nb::kwargs& options);
nb::dict to_python(const ExpertParallelConfig& config);
ExpertPlacement placement_of(int n_experts, nb::handle experts_of_rank);

}  // namespace switchyard::python
