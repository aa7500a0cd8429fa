# Sets SWITCHYARD_HAS_OPENSHMEM, and how the plugin is compiled and linked, where an OpenSHMEM is found that has the
# progress of MPI: Open MPI's, whose compiler knows its flags.
include(${CMAKE_CURRENT_LIST_DIR}/report_plugin.cmake)
set(SWITCHYARD_OPENSHMEM "AUTO" CACHE STRING "Build the OpenSHMEM plugin: AUTO (if oshcc is there), ON, OFF")
set_property(CACHE SWITCHYARD_OPENSHMEM PROPERTY STRINGS AUTO ON OFF)
set(SWITCHYARD_HAS_OPENSHMEM OFF)
set(reason "")
find_program(SWITCHYARD_OSHCC oshcc)
find_program(SWITCHYARD_OSHRUN oshrun)
mark_as_advanced(SWITCHYARD_OSHCC SWITCHYARD_OSHRUN)
if(SWITCHYARD_OPENSHMEM STREQUAL "OFF")
  set(reason "SWITCHYARD_OPENSHMEM is OFF")
elseif(SWITCHYARD_SANITIZER)
  set(reason "Open MPI does not bear a sanitizer")
elseif(NOT SWITCHYARD_OSHCC)
  set(reason "there is no oshcc (Debian: openmpi-bin libopenmpi-dev)")
else()
  foreach(stage compile link)
    execute_process(COMMAND ${SWITCHYARD_OSHCC} --showme:${stage} OUTPUT_VARIABLE flags
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    separate_arguments(SWITCHYARD_OPENSHMEM_${stage} UNIX_COMMAND "${flags}")
  endforeach()
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS ${SWITCHYARD_OPENSHMEM_compile})
  list(JOIN CMAKE_REQUIRED_FLAGS " " CMAKE_REQUIRED_FLAGS)
  set(CMAKE_REQUIRED_LIBRARIES ${SWITCHYARD_OPENSHMEM_link})
  check_cxx_source_compiles("
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <shmem.h>
int main() {
  int provided = 0;
  shmem_init_thread(SHMEM_THREAD_FUNNELED, &provided);
  shmem_uint64_p(nullptr, 0, 0);
  return MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &provided, MPI_STATUS_IGNORE);
}" SWITCHYARD_OPENSHMEM_COMPILES)
  unset(CMAKE_REQUIRED_FLAGS)
  unset(CMAKE_REQUIRED_LIBRARIES)
  if(SWITCHYARD_OPENSHMEM_COMPILES)
    set(SWITCHYARD_HAS_OPENSHMEM ON)
  else()
    set(reason "${SWITCHYARD_OSHCC} does not compile a program of OpenSHMEM 1.4 and MPI")
  endif()
endif()
switchyard_report_plugin(OpenSHMEM "${SWITCHYARD_OSHCC}" "${reason}")
