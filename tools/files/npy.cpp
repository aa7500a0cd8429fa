#include "npy.hpp"

namespace switchyard::tools {

Status write_npy_bytes(const OutputName& name, const char* dtype, const std::vector<uint64_t>& shape,
                       const void* data, uint64_t bytes) {
  std::string header = std::string("{'descr': '") + dtype + "', 'fortran_order': False, 'shape': (";
  for (const uint64_t extent : shape) header += std::to_string(extent) + ", ";
  header += "), }";
  // Magic, version and header length are 10 bytes; all of it together is padded to 64, with a newline last.
  constexpr size_t kPreamble = 10;
  header.append(63 - (kPreamble + header.size()) % 64, ' ');
  header += '\n';
  const char preamble[kPreamble] = {'\x93',
                                    'N',
                                    'U',
                                    'M',
                                    'P',
                                    'Y',
                                    1,
                                    0,
                                    static_cast<char>(header.size() & 0xff),
                                    static_cast<char>(header.size() >> 8)};
  OutputFile file(name);
  file.write({preamble, kPreamble});
  file.write(header);
  file.write({static_cast<const char*>(data), bytes});
  return file.close();
}

}  // namespace switchyard::tools
