# atoll_add_plugin(NAME SOURCES... [COPY SUFFIX FOLDER]) adds a backend as the target
# atoll_plugin_NAME, which builds and installs lib/atoll/libatoll-NAME.so. The library finds
# backends beside libatoll and in the folders of ATOLL_PLUGIN_PATH. COPY adds a copy of a backend
# for tests: the target is atoll_plugin_NAME_SUFFIX, and the shared object has the same name, is in
# FOLDER of the build tree, and is not installed. This file is part of the installed package.
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
    INSTALL_RPATH $ORIGIN/..
    CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${target} PRIVATE atoll::plugin_sdk Threads::Threads)
  if(COMMAND atoll_warnings)
    atoll_warnings(${target})
  endif()
  if(NOT arg_COPY)
    set(if_built "")
    if(COMMAND atoll_name_unbuilt)
      set(if_built OPTIONAL)
      atoll_name_unbuilt(${target} backends)
    endif()
    install(TARGETS ${target} ${if_built}
      LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/atoll COMPONENT backends)
  endif()
endfunction()
