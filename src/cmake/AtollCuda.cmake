# Sets ATOLL_CUDA where the `cuda` device can be built: with a toolkit that has nvcc, and without
# sanitizers and fuzzers, whose flags nvcc does not know. The preset `cuda` makes the toolkit required.
set(ATOLL_CUDA OFF)
if(ATOLL_SANITIZE OR ATOLL_BUILD_FUZZERS)
  message(STATUS "cuda device: left out, under sanitizers and fuzzers")
  return()
endif()
find_package(CUDAToolkit 12.5 QUIET)  # which has cudaGetDriverEntryPointByVersion
if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
  message(STATUS "cuda device: left out, no CUDA toolkit of 12.5 or later was found")
  return()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
set(usual_architectures OFF)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(usual_architectures ON)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)  # A100, H100 and H200, B200 and what comes later
endif()
enable_language(CUDA)
# CMake 3.25 does not know that nvcc has C++20.
foreach(kind STANDARD EXTENSION)
  if(NOT DEFINED CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION -std=c++20)
  endif()
endforeach()
# Kernels that spill registers at their launch bounds are told; where warnings are errors, they do not
# compile for the GPUs above.
set(ptxas_options --warn-on-spills)
if(CMAKE_COMPILE_WARNING_AS_ERROR AND usual_architectures)
  string(APPEND ptxas_options ,--warning-as-error)
endif()
add_compile_options(
  "$<$<AND:$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>,$<NOT:$<CONFIG:Debug>>>:-Xptxas=${ptxas_options}>")
set(ATOLL_CUDA ON)
message(STATUS "cuda device: CUDA ${CUDAToolkit_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES}")
