#include "switchyard/detail/device/file_descriptor.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace switchyard {

std::string describe_file_limit() {
  rlimit limit{};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  return "RLIMIT_NOFILE is " + std::to_string(limit.rlim_cur) + "; raise it (ulimit -n)";
}

Status no_file_descriptor(const std::string& call, int error) {
  if (error == EMFILE)
    return resource_exhausted("%s: too many open files: %s", call.c_str(), describe_file_limit().c_str());
  return unavailable("%s: %s", call.c_str(), std::strerror(error));
}

}  // namespace switchyard
