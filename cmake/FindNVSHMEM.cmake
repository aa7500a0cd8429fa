# Finds NVSHMEM 3: NVIDIA's packages, or the Python wheel (nvidia-nvshmem-cu13), which has neither CMake files nor
# libraries without a version. NVSHMEM_HOME, of CMake or of the environment, says where to look first; after that come
# the site-packages of the Python on the PATH. Defines NVSHMEM::host and NVSHMEM::device.
set(hints ${NVSHMEM_HOME} $ENV{NVSHMEM_HOME})
find_program(NVSHMEM_PYTHON NAMES python3)
if(NVSHMEM_PYTHON)
  execute_process(COMMAND ${NVSHMEM_PYTHON} -c
    "import site, sysconfig; print(';'.join([*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path('purelib')]))"
    OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  foreach(folder IN LISTS folders)
    list(APPEND hints ${folder}/nvidia/nvshmem)
  endforeach()
endif()
find_path(NVSHMEM_INCLUDE_DIR NAMES nvshmem.h HINTS ${hints}
  PATH_SUFFIXES include include/nvshmem_13 include/nvshmem_12 include/nvshmem)
find_library(NVSHMEM_HOST_LIBRARY NAMES nvshmem_host libnvshmem_host.so.3 HINTS ${hints}
  PATH_SUFFIXES lib lib64 nvshmem/13 nvshmem/12)
find_library(NVSHMEM_DEVICE_LIBRARY NAMES libnvshmem_device.a HINTS ${hints} PATH_SUFFIXES lib lib64 nvshmem/13 nvshmem/12)
mark_as_advanced(NVSHMEM_PYTHON NVSHMEM_INCLUDE_DIR NVSHMEM_HOST_LIBRARY NVSHMEM_DEVICE_LIBRARY)

set(NVSHMEM_VERSION "")
if(EXISTS "${NVSHMEM_INCLUDE_DIR}/non_abi/nvshmem_version.h")
  file(STRINGS "${NVSHMEM_INCLUDE_DIR}/non_abi/nvshmem_version.h" lines REGEX "define NVSHMEM_VENDOR_(MAJOR|MINOR|PATCH)_VERSION")
  string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
  list(JOIN numbers "." NVSHMEM_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NVSHMEM
  REQUIRED_VARS NVSHMEM_INCLUDE_DIR NVSHMEM_HOST_LIBRARY NVSHMEM_DEVICE_LIBRARY VERSION_VAR NVSHMEM_VERSION)

if(NVSHMEM_FOUND AND NOT TARGET NVSHMEM::host)
  add_library(NVSHMEM::host SHARED IMPORTED)
  set_target_properties(NVSHMEM::host PROPERTIES IMPORTED_LOCATION ${NVSHMEM_HOST_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${NVSHMEM_INCLUDE_DIR})
  add_library(NVSHMEM::device STATIC IMPORTED)
  set_target_properties(NVSHMEM::device PROPERTIES IMPORTED_LOCATION ${NVSHMEM_DEVICE_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${NVSHMEM_INCLUDE_DIR})
endif()
