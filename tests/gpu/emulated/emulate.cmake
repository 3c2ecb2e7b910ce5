# emulate_gpu(TARGET SOURCE...) adds CUDA sources to TARGET, for the host compiler and the emulated
# GPU. It compiles copies of the sources in which emulated::start() launches the kernels, because
# only nvcc understands <<<>>>. EMULATED_CUDA_INCLUDE names the folder of the CUDA toolkit's
# headers. This file is installed beside the headers of the emulated GPU.
function(emulate_gpu target)
  foreach(source IN LISTS ARGN)
    set(path ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    file(READ ${path} text)
    string(REGEX REPLACE "([A-Za-z_]+(<[A-Za-z_]+>)?)<<<([^;]*)>>>[(]" "emulated::start(\\1, {\\3}, "
      text "${text}")
    set(copy ${CMAKE_CURRENT_BINARY_DIR}/emulated/${source}.cpp)
    file(CONFIGURE OUTPUT ${copy} CONTENT "#include <cuda_runtime.h>\n#line 1 \"${path}\"\n@text@" @ONLY)
    target_sources(${target} PRIVATE ${copy})
  endforeach()
  target_include_directories(${target} BEFORE PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  target_include_directories(${target} SYSTEM PRIVATE ${EMULATED_CUDA_INCLUDE})
  target_compile_options(${target} PRIVATE -fno-strict-aliasing -Wno-unknown-pragmas)
endfunction()
