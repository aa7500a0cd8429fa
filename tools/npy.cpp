#include "npy.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>

namespace switchyard::tools {

Status write_npy_bytes(const std::string& path, const char* dtype, const std::vector<uint64_t>& shape,
                       const void* data, uint64_t bytes) {
  std::string header = std::string("{'descr': '") + dtype + "', 'fortran_order': False, 'shape': (";
  for (const uint64_t extent : shape) header += std::to_string(extent) + ", ";
  header += "), }";
  // Magic, version and header length are 10 bytes; all of it together is padded to 64, with a newline last.
  constexpr size_t kPreamble = 10;
  header.append(63 - (kPreamble + header.size()) % 64, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file.write("\x93NUMPY\x01\x00", 8);
  file.put(static_cast<char>(header.size() & 0xff));
  file.put(static_cast<char>(header.size() >> 8));
  file << header;
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  if (!file) return internal_error("cannot write %s: %s", path.c_str(), std::strerror(errno));
  return Status();
}

}  // namespace switchyard::tools
