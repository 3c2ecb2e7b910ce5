# atoll_add_plugin(NAME SOURCES... [COPY SUFFIX FOLDER]) adds a backend as target atoll_plugin_NAME,
# with the file lib/atoll/libatoll-NAME.so. The core of atoll finds the file beside libatoll or in a
# folder of ATOLL_PLUGIN_PATH. The backend is part of the installed package. With COPY the target is
# atoll_plugin_NAME_SUFFIX, a copy for tests. It has the same file name, but is built in FOLDER of the
# build folder and never installed.
function(atoll_add_plugin name)
  include(GNUInstallDirs)
  find_package(Threads REQUIRED)
  cmake_parse_arguments(arg "" "" "COPY" ${ARGN})
  set(target atoll_plugin_${name})
  set(folder lib/atoll)
  if(arg_COPY)
    list(GET arg_COPY 0 suffix)
    list(GET arg_COPY 1 folder)
    string(APPEND target _${suffix})
  endif()
  add_library(${target} MODULE ${arg_UNPARSED_ARGUMENTS})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME atoll-${name}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${folder}
    CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${target} PRIVATE atoll::plugin_sdk Threads::Threads)
  if(COMMAND atoll_warnings)
    atoll_warnings(${target})
  endif()
  if(NOT arg_COPY)
    install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/atoll)
  endif()
endfunction()
