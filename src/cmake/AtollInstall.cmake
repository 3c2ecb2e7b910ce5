# Installs the package that find_package(atoll) finds: libraries, headers, targets, and the version
# and configuration files.
include(CMakePackageConfigHelpers)

# Examples that any program can compile: optimizers that are written outside the library.
install(FILES ${PROJECT_SOURCE_DIR}/tools/train/optimizers/muon.cpp
  ${PROJECT_SOURCE_DIR}/tools/train/optimizers/muon.hpp
  DESTINATION ${CMAKE_INSTALL_DATADIR}/atoll/examples COMPONENT development)

# Consumers must compile the public headers as C++20, except for plugin.h, which is C.
target_compile_features(atoll_topology INTERFACE cxx_std_20)
target_compile_features(atoll_inspect INTERFACE cxx_std_20)
target_compile_features(atoll INTERFACE cxx_std_20)

install(TARGETS atoll_plugin_api atoll_plugin_sdk atoll_topology atoll_inspect atoll EXPORT atoll-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/atoll DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT atoll-targets NAMESPACE atoll:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/atoll)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/atoll-config.cmake.in
  ${PROJECT_BINARY_DIR}/atoll-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/atoll)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/atoll-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/atoll-config.cmake ${CMAKE_CURRENT_LIST_DIR}/AtollPlugin.cmake
  ${PROJECT_BINARY_DIR}/atoll-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/atoll)
