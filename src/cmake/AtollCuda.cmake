# Sets ATOLL_CUDA if the `cuda` device can be built: ATOLL_BUILD_CUDA is on, a CUDA toolkit with
# nvcc is found, and the build has neither sanitizers nor fuzzers, because nvcc does not support
# their flags.
set(ATOLL_CUDA OFF)
# FindCUDAToolkit of CMake 3.25 fails with CUDA 13, which has no nvToolsExt library, unless this
# target exists. atoll does not link it.
if(CMAKE_VERSION VERSION_LESS 3.26 AND NOT TARGET CUDA::nvToolsExt)
  add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
endif()
if(NOT ATOLL_BUILD_CUDA)
  message(STATUS "cuda device: left out, ATOLL_BUILD_CUDA is off")
  return()
endif()
if(ATOLL_SANITIZE OR ATOLL_BUILD_FUZZERS)
  message(STATUS "cuda device: left out, because this build has sanitizers or fuzzers")
  return()
endif()
find_package(CUDAToolkit 12.5 QUIET)  # 12.5 added cudaGetDriverEntryPointByVersion
if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
  message(STATUS "cuda device: left out, no CUDA toolkit 12.5 or later with nvcc was found")
  return()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # For A100; for H100 and H200; for B200 and later.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
endif()
enable_language(CUDA)
# CMake 3.25 does not know that nvcc supports C++20, so the option is set here.
foreach(kind STANDARD EXTENSION)
  if(NOT DEFINED CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION -std=c++20)
  endif()
endforeach()
# Makes ptxas warn about kernels that spill registers at their launch bounds. The launch bounds were
# chosen for the GPU architectures 80, 90 and 100. If the build has only these, and treats compiler
# warnings as errors, a spill is an error.
set(ptxas_options --warn-on-spills)
set(other_architectures ${CMAKE_CUDA_ARCHITECTURES})
list(FILTER other_architectures EXCLUDE REGEX "^(80|90|100)(-real|-virtual)?$")
if(CMAKE_COMPILE_WARNING_AS_ERROR AND NOT other_architectures)
  string(APPEND ptxas_options ,--warning-as-error)
endif()
add_compile_options(
  "$<$<AND:$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>,$<NOT:$<CONFIG:Debug>>>:-Xptxas=${ptxas_options}>")
set(ATOLL_CUDA ON)
message(STATUS "cuda device: built with CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
