# Decides whether the CUDA target is built, and for which GPU. Where it is left out, SWITCHYARD_LEFT_OUT says why and
# what to do about it, in one sentence that `make run` shows.
set(SWITCHYARD_HAS_CUDA OFF)
set(left_out "")
file(GLOB gpus /dev/nvidia[0-9]* /dev/dxg)
if(SWITCHYARD_CUDA STREQUAL "OFF" OR SWITCHYARD_SANITIZER)
  # That was asked for.
elseif(SWITCHYARD_CUDA STREQUAL "IF_GPU" AND NOT gpus)
  set(left_out "this machine has no GPU; `make test` and `cmake --preset release` build it wherever nvcc is")
else()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # wgmma and setmaxnreg need the "a" variant of the architecture.
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90a-real)
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    # Older CMake does not know that nvcc speaks C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(SWITCHYARD_HAS_CUDA ON)
  elseif(SWITCHYARD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SWITCHYARD_CUDA=ON, but there is no nvcc; put it on the PATH or set CUDACXX")
  else()
    set(left_out "there is no nvcc; put it on the PATH or set CUDACXX, then run `cmake --preset release`")
  endif()
endif()
message(STATUS "Switchyard: CUDA target ${SWITCHYARD_HAS_CUDA}")
set(SWITCHYARD_LEFT_OUT "${left_out}" CACHE INTERNAL "Why there is no CUDA target, unless that was asked for")

# How every .cu of ours is compiled. No contraction to fma: host and device agree bit for bit.
if(SWITCHYARD_HAS_CUDA)
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
                      $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>
                      "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
endif()
