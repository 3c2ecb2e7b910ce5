# Functions that give every target of the project the same warnings and layout.

# Warnings as design: on for our own targets only, errors in the presets (CMAKE_COMPILE_WARNING_AS_ERROR).
function(atoll_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wswitch-enum>
    $<$<COMPILE_LANGUAGE:CXX>:-Wconversion>
    # GCC 12 sees overlaps in std::string operator+ that are not there (its bug 105651).
    $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
endfunction()

# atoll_add_plugin(NAME SOURCES...): a backend, lib/atoll/libatoll-NAME.so, found by the loader.
function(atoll_add_plugin name)
  add_library(atoll_plugin_${name} MODULE ${ARGN})
  set_target_properties(atoll_plugin_${name} PROPERTIES
    OUTPUT_NAME atoll-${name}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/atoll
    CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(atoll_plugin_${name} PRIVATE atoll::plugin_api Threads::Threads)
  atoll_warnings(atoll_plugin_${name})
  install(TARGETS atoll_plugin_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/atoll)
endfunction()
