# atoll_warnings(TARGET) enables the warnings for targets of this project.
# CMAKE_COMPILE_WARNING_AS_ERROR, which presets set, turns them into errors.
function(atoll_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wswitch-enum>
    $<$<COMPILE_LANGUAGE:CXX>:-Wconversion>
    # GCC 12 warns about overlaps in std::string operator+ that do not exist (GCC bug 105651).
    $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
  if(CMAKE_UNITY_BUILD)
    # Several sources are one translation unit here: a local name may be that of another file, and a
    # class of a source may have members of that source's anonymous namespace. Builds of the presets
    # dev and tsan, where each source is compiled alone, keep these warnings.
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:C,CXX>:-Wno-shadow>
      $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage;-Wno-maybe-uninitialized>)
  endif()
endfunction()

# Compiler options for code whose speed does not matter, such as command lines and tests: -O1 in
# release builds, which halves the compile time of headers such as CLI11, doctest and
# cudnn-frontend.
set(ATOLL_LIGHT_OPTIONS $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:C,CXX>>:-O1>)

# atoll_optimize_lightly(TARGET...) compiles the targets with these options.
function(atoll_optimize_lightly)
  foreach(target ${ARGN})
    target_compile_options(${target} PRIVATE ${ATOLL_LIGHT_OPTIONS})
  endforeach()
endfunction()

# atoll_optimize_test(TARGET) does the same for a test program. The code of tests itself is not
# checked for undefined behaviour and not instrumented for fuzzers, which halves its compile time.
function(atoll_optimize_test target)
  atoll_optimize_lightly(${target})
  if(ATOLL_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined -fno-sanitize=fuzzer-no-link)
  endif()
endfunction()

# Highway's targets that no kernel is compiled for. SVE has the scalable vectors of Arm: a scalable
# vector cannot be a member of a structure, so kernels that keep vectors in structures use NEON.
# AVX-512 runs the same code as AVX2, which suffices for sanitizers.
set(atoll_highway_disabled "HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128")
if(ATOLL_SANITIZE)
  string(APPEND atoll_highway_disabled "|HWY_AVX3")
endif()

# atoll_library(TARGET) sets the version in the file names of a library for users and, if it is
# shared, the symbols that it exports. A linker script hides symbols that the compiler cannot hide,
# such as instances of templates of the C++ library, whose headers request default visibility.
# Until version 1.0 minor versions are incompatible, so the SONAME contains the minor version.
function(atoll_library target)
  set(soversion ${PROJECT_VERSION_MAJOR})
  if(PROJECT_VERSION VERSION_LESS 1.0)
    string(APPEND soversion .${PROJECT_VERSION_MINOR})
  endif()
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${soversion})
  if(BUILD_SHARED_LIBS)
    set(script ${PROJECT_SOURCE_DIR}/src/cmake/exports.map)
    target_link_options(${target} PRIVATE LINKER:--version-script=${script})
    set_target_properties(${target} PROPERTIES LINK_DEPENDS ${script})
  endif()
endfunction()

# atoll_internal_library(TARGET FOLDER LIBRARIES...) adds TARGET_internal, for tests: the headers in
# FOLDER, and the objects of TARGET in an archive, because a shared library hides its internals.
# LIBRARIES are the dependencies of these objects.
function(atoll_internal_library target folder)
  if(BUILD_SHARED_LIBS)
    add_library(${target}_internal STATIC $<TARGET_OBJECTS:${target}>)
    set_target_properties(${target}_internal PROPERTIES LINKER_LANGUAGE CXX)
    target_link_libraries(${target}_internal PUBLIC ${ARGN})
    target_include_directories(${target}_internal PUBLIC ${folder})
  else()
    add_library(${target}_internal INTERFACE)
    target_link_libraries(${target}_internal INTERFACE ${target} ${ARGN})
    target_include_directories(${target}_internal INTERFACE ${folder})
  endif()
endfunction()

# atoll_name_unbuilt(TARGET COMPONENT) makes the installation of COMPONENT print a line if TARGET
# was not built, for example after `cmake --build --target`. The installation rules of TARGET must
# be OPTIONAL.
function(atoll_name_unbuilt target component)
  install(CODE "if(NOT EXISTS \"$<TARGET_FILE:${target}>\")
    message(STATUS \"Not installed, because it was not built: $<TARGET_FILE_NAME:${target}>\")
  endif()" COMPONENT ${component})
endfunction()

include(AtollPlugin)
