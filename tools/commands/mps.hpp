// Whether processes that share a GPU can run kernels at once here: they need the daemon of MPS.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace switchyard::tools {

// Where processes of this environment look for the daemon, and the daemon has its control pipe.
inline std::filesystem::path mps_folder() {
  const char* set = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return set != nullptr && *set != '\0' ? set : "/tmp/nvidia-mps";
}

// Whether the daemon has its control pipe there: a socket, or a named pipe of older drivers.
inline bool mps_runs(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::file_status control = std::filesystem::status(folder / "control", error);
  return std::filesystem::is_socket(control) || std::filesystem::is_fifo(control);
}

// What processes that share a GPU can do, and what to do where they cannot.
inline std::string describe_mps(const std::filesystem::path& folder) {
  const std::string control = folder / "control";
  if (mps_runs(folder)) return "MPS runs (" + control + "), so processes may share a GPU";
  return "processes that share a GPU need MPS, which does not run (there is no pipe " + control +
         "; CUDA_MPS_PIPE_DIRECTORY says where): start it by nvidia-cuda-mps-control -d. Without it they run "
         "in time slices, and kernels that wait for each other starve";
}

}  // namespace switchyard::tools
