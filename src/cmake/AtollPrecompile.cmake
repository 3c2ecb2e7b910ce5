# atoll_precompile(TARGET [doctest]) makes TARGET use a precompiled header with the standard headers
# and {fmt}, which most sources include. It is compiled once per build. TARGET is a library or, with
# doctest, a test program. Sources still include every header that they use, so
# CMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds the same programs.
set(ATOLL_PRECOMPILED_HEADERS
  <algorithm> <array> <atomic> <cerrno> <charconv> <chrono> <cmath> <condition_variable> <cstddef>
  <cstdint> <cstdio> <cstdlib> <cstring> <deque> <exception> <filesystem> <fstream> <functional>
  <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span> <sstream> <stdexcept> <string>
  <string_view> <thread> <tuple> <unordered_map> <utility> <variant> <vector>
  <fmt/format.h>)

# ccache recognizes the use of a precompiled header only with -fpch-preprocess. GCC 12 does not
# treat precompiled standard headers as system headers and would warn about overflows in them, so
# these warnings are disabled.
set(ATOLL_PRECOMPILE_OPTIONS
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-fpch-preprocess;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>)

function(atoll_precompile target)
  set(source atoll_precompiled)
  set(libraries fmt::fmt Threads::Threads)
  set(headers ${ATOLL_PRECOMPILED_HEADERS})
  if("doctest" IN_LIST ARGN)
    set(source atoll_precompiled_tests)
    list(APPEND libraries doctest::doctest)
    list(APPEND headers <doctest/doctest.h>)
  endif()
  if(NOT TARGET ${source})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${source}.cpp CONTENT "")
    add_library(${source} OBJECT ${PROJECT_BINARY_DIR}/${source}.cpp)
    if("doctest" IN_LIST ARGN)
      # GCC accepts a precompiled header only under the flags that it was made with: programs are
      # compiled with -fPIE, libraries with -fPIC.
      set_target_properties(${source} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${source} PRIVATE ${CMAKE_CXX_COMPILE_OPTIONS_PIE})
      atoll_optimize_test(${source})
    endif()
    target_link_libraries(${source} PRIVATE ${libraries})
    target_compile_options(${source} PRIVATE ${ATOLL_PRECOMPILE_OPTIONS})
    atoll_warnings(${source})
    target_precompile_headers(${source} PRIVATE ${headers})
  endif()
  target_compile_options(${target} PRIVATE ${ATOLL_PRECOMPILE_OPTIONS})
  target_precompile_headers(${target} REUSE_FROM ${source})
endfunction()
