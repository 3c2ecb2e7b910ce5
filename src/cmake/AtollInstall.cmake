# Installs the package in the components runtime, tools, backends and development. The prefix may be
# moved: every path in it is relative. This file installs the libraries (runtime), and the headers
# and the files for find_package(atoll) and pkg-config (development). Parts of a build that were not
# built are left out and named, except for libatoll and libatoll_topology, which are required.
include(CMakePackageConfigHelpers)

# Examples that any program can compile: optimizers that are written outside the library.
set(examples ${PROJECT_SOURCE_DIR}/tools/train/optimizers)
install(FILES ${examples}/arithmetic.hpp ${examples}/cpu_arithmetic.cpp ${examples}/cuda_arithmetic.cu
  ${examples}/message_plan.cpp ${examples}/message_plan.hpp ${examples}/muon.cpp
  ${examples}/muon.hpp
  DESTINATION ${CMAKE_INSTALL_DATADIR}/atoll/examples COMPONENT development)

# Consumers must compile the public headers as C++20, except for plugin.h, which is C.
target_compile_features(atoll_topology INTERFACE cxx_std_20)
target_compile_features(atoll_inspect INTERFACE cxx_std_20)
target_compile_features(atoll INTERFACE cxx_std_20)

set(libdir ${CMAKE_INSTALL_LIBDIR})
# The pages to which the public headers refer, and all files to which a page links, in the same
# folders as in the source.
set(pages README.md include/atoll/README.md src/comm/README.md src/comm/fallbacks.md src/fsdp/README.md
  src/checkpoint/checkpoints.md src/fsdp/numerics.md topology/README.md topology/inspect/README.md
  plugins/README.md plugins/collectives/README.md plugins/collectives/between_hosts.md
  plugins/host/README.md plugins/mpi/README.md plugins/nccl/README.md plugins/verbs/README.md
  tools/busbw/README.md tools/data/README.md tools/topo/README.md tools/train/README.md
  tools/train/data/README.md tools/train/data/token_files.md topology/facts.hpp)
set(installed_pages "")
while(pages)
  list(POP_FRONT pages page)
  if(page IN_LIST installed_pages)
    continue()
  endif()
  list(APPEND installed_pages ${page})
  cmake_path(GET page PARENT_PATH folder)
  install(FILES ${PROJECT_SOURCE_DIR}/${page}
    DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder} COMPONENT development)
  if(page MATCHES "[.]md$")
    file(READ ${PROJECT_SOURCE_DIR}/${page} text)
    string(REPLACE "](" "<link " text "${text}")
    string(REGEX REPLACE "[][;]" "" text "${text}")  # CMake's lists interpret these characters
    string(REGEX MATCHALL "<link [^)#: ]+" links "${text}")
    foreach(link IN LISTS links)
      string(REPLACE "<link " "" link "${link}")
      cmake_path(APPEND folder ${link} OUTPUT_VARIABLE target)
      cmake_path(NORMAL_PATH target)
      if(EXISTS ${PROJECT_SOURCE_DIR}/${target} AND NOT IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${target})
        list(APPEND pages ${target})
      endif()
    endforeach()
  endif()
endwhile()

install(TARGETS atoll_plugin_api atoll_plugin_sdk atoll_topology atoll EXPORT atoll-targets
  LIBRARY DESTINATION ${libdir} COMPONENT runtime NAMELINK_COMPONENT development
  ARCHIVE DESTINATION ${libdir} COMPONENT development)
# The libraries of tools have lists of targets of their own, because a build for trainers leaves them
# out.
foreach(library inspect planner)
  install(TARGETS atoll_${library} EXPORT atoll-${library}-targets
    LIBRARY DESTINATION ${libdir} OPTIONAL COMPONENT runtime NAMELINK_COMPONENT development
    ARCHIVE DESTINATION ${libdir} OPTIONAL COMPONENT development)
  atoll_name_unbuilt(atoll_${library} runtime)
endforeach()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/atoll DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development PATTERN "*.md" EXCLUDE)
foreach(targets atoll-targets atoll-inspect-targets atoll-planner-targets)
  install(EXPORT ${targets} NAMESPACE atoll:: DESTINATION ${libdir}/cmake/atoll
    COMPONENT development)
endforeach()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/atoll-config.cmake.in
  ${PROJECT_BINARY_DIR}/atoll-config.cmake
  INSTALL_DESTINATION ${libdir}/cmake/atoll)
set(compatible SameMajorVersion)
if(PROJECT_VERSION VERSION_LESS 1.0)
  set(compatible SameMinorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/atoll-config-version.cmake
  COMPATIBILITY ${compatible})
install(FILES ${PROJECT_BINARY_DIR}/atoll-config.cmake ${CMAKE_CURRENT_LIST_DIR}/AtollPlugin.cmake
  ${PROJECT_BINARY_DIR}/atoll-config-version.cmake
  DESTINATION ${libdir}/cmake/atoll COMPONENT development)

# atoll_pkg_config(NAME DESCRIPTION [CFLAGS ...] [LIBS ...] [REQUIRES ...] [STATIC ...]) installs
# NAME.pc. STATIC names the packages that a program needs as well if atoll's libraries are static.
file(RELATIVE_PATH to_prefix /prefix/${libdir}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" to_prefix ${to_prefix})
function(atoll_pkg_config name description)
  cmake_parse_arguments(arg "" "" "CFLAGS;LIBS;REQUIRES;STATIC" ${ARGN})
  if(NOT BUILD_SHARED_LIBS)
    list(APPEND arg_REQUIRES ${arg_STATIC})
  endif()
  list(JOIN arg_CFLAGS " " cflags)
  list(JOIN arg_LIBS " " libs)
  list(JOIN arg_REQUIRES " " requires)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${name}.pc CONTENT [[
prefix=${pcfiledir}/@to_prefix@
includedir=${prefix}/@CMAKE_INSTALL_INCLUDEDIR@
libdir=${prefix}/@libdir@

Name: @name@
Description: @description@
Version: @PROJECT_VERSION@
Requires: @requires@
Cflags: @cflags@
Libs: @libs@
]] @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${libdir}/pkgconfig
    COMPONENT development)
endfunction()

# Programs that link the static libraries also need these system libraries.
set(system_libraries "")
set(cuda_libraries "")
set(cxx_libraries "")  # for programs that a C compiler links
if(NOT BUILD_SHARED_LIBS)
  set(system_libraries -lpthread -ldl)
  set(cxx_libraries -lstdc++ -lm)
  if(ATOLL_CUDA)
    set(cuda_libraries -lcudart_static -lrt)
  endif()
endif()
# Compilers whose default is older than C++20 need -std for the headers.
atoll_pkg_config(atoll "Communication for sharded training"
  CFLAGS -I\${includedir} -std=c++20
  LIBS -L\${libdir} -latoll -latoll_topology ${cuda_libraries} ${system_libraries}
  STATIC fmt spdlog libhwy libsodium libxxhash hwloc)
atoll_pkg_config(atoll-c "The C API of atoll"
  CFLAGS -I\${includedir}
  LIBS -L\${libdir} -latoll -latoll_topology ${cuda_libraries} ${system_libraries} ${cxx_libraries}
  STATIC fmt spdlog libhwy libsodium libxxhash hwloc)
atoll_pkg_config(atoll-planner "Devices whose streams are clocks: the library of atoll-plan"
  CFLAGS -I\${includedir} -std=c++20
  LIBS -L\${libdir} -latoll_planner -latoll -latoll_topology ${cuda_libraries} ${system_libraries}
  STATIC fmt spdlog libhwy libsodium libxxhash hwloc)
atoll_pkg_config(atoll-inspect "Reads, checks and draws machines: the library of atoll-topo"
  CFLAGS -I\${includedir} -std=c++20
  LIBS -L\${libdir} -latoll_inspect -latoll_topology ${system_libraries}
  STATIC fmt pugixml hwloc)
atoll_pkg_config(atoll-plugin "Headers for backends of atoll"
  CFLAGS -I\${includedir} -I\${includedir}/atoll/plugins)
