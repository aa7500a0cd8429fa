#include "shmem_plugin.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "switchyard/detail/transport/transport.hpp"
#include "switchyard/version.hpp"

namespace switchyard {
namespace {

const char* file_of(Target target) {
  return target == Target::kHost ? "libswitchyard_openshmem.so" : "libswitchyard_nvshmem.so";
}

const char* remedy_of(Target target) {
  return target == Target::kHost
             ? "install Open MPI (Debian: openmpi-bin libopenmpi-dev) and build Switchyard again"
             : "install NVSHMEM (PyPI: nvidia-nvshmem-cu13) and build Switchyard again";
}

std::vector<std::filesystem::path> plugin_folders() {
  std::vector<std::filesystem::path> folders;
  if (const char* path = std::getenv("SWITCHYARD_PLUGIN_PATH"); path != nullptr) {
    std::istringstream parts(path);
    for (std::string part; std::getline(parts, part, ':');)
      if (!part.empty()) folders.emplace_back(part);
  }
  // Beside the program, and where an installation has it, seen from the program or from a shared library that
  // this code is part of.
  std::error_code error;
  std::vector<std::filesystem::path> origins = {
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path()};
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&plugin_folders), &info) != 0 && info.dli_fname != nullptr)
    origins.push_back(std::filesystem::absolute(info.dli_fname, error).parent_path());
  for (const std::filesystem::path& origin : origins)
    for (const char* relative : {".", "switchyard", "../" SWITCHYARD_PLUGIN_FOLDER})
      folders.push_back((origin / relative).lexically_normal());
  return folders;
}

Result<const ShmemApi*> load_from(const std::string& path, Target target) {
  // Parts of Open MPI look up its symbols among the global ones.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr)
    return unavailable("the SHMEM plugin does not load (%s): %s", dlerror(), remedy_of(target));
  const auto function = reinterpret_cast<ShmemApiFunction>(dlsym(library, kShmemApiSymbol));
  if (function == nullptr)
    return failed_precondition("%s is no plugin: it has no function %s", path.c_str(), kShmemApiSymbol);
  const ShmemApi* api = function();
  SWITCHYARD_RETURN_IF_ERROR(check_shmem_api(api, target, path.c_str()));
  return api;
}

}  // namespace

Status check_shmem_api(const ShmemApi* api, Target target, const char* source) {
  if (api == nullptr) return failed_precondition("%s gives no table of functions", source);
  // Versions that differ may differ in the table, of which only the beginning is fixed.
  if (std::strcmp(api->version, kVersion) != 0)
    return failed_precondition("%s is a plugin of Switchyard %s; it must be of %s", source, api->version,
                               kVersion);
  if (api->size != sizeof(ShmemApi))
    return failed_precondition("%s has a table of %llu bytes; it must have %zu", source,
                               static_cast<unsigned long long>(api->size), sizeof(ShmemApi));
  const Target its_target = api->target == kShmemHost ? Target::kHost : Target::kCuda;
  if (its_target != target)
    return failed_precondition("%s is a plugin for %s; it must be for %s", source, to_string(its_target),
                               to_string(target));
  return Status();
}

Result<const ShmemApi*> load_shmem_plugin(Target target) {
  std::string searched;
  for (const std::filesystem::path& folder : plugin_folders()) {
    std::error_code error;
    if (std::filesystem::exists(folder / file_of(target), error))
      return load_from((folder / file_of(target)).string(), target);
    if (searched.find(folder.string() + ",") == std::string::npos) searched += folder.string() + ", ";
  }
  return unavailable("transport shmem: no %s in %sor SWITCHYARD_PLUGIN_PATH: %s", file_of(target),
                     searched.c_str(), remedy_of(target));
}

Result<std::string> describe_shmem(Target target) {
  const Result<const ShmemApi*> api = load_shmem_plugin(target);
  if (!api.ok()) return api.status();
  return std::string(api.value()->library);
}

}  // namespace switchyard
