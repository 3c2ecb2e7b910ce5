# cpack, run in the build folder, makes atoll_VERSION_ARCH.deb for the Debian release of this
# machine, and atoll-VERSION-SYSTEM.tar.gz, which can be unpacked anywhere.
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME atoll)
set(CPACK_PACKAGE_VENDOR atoll)
set(CPACK_PACKAGE_CONTACT "The developers of atoll <atoll@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "communication library and tools for sharded training")
set(CPACK_PACKAGE_DESCRIPTION "atoll lays a mesh of replicas and shards on the GPUs or CPUs of a job
and overlaps its collectives with compute. The package has the library with
its backends and headers, atoll-topo, atoll-busbw, atoll-train, atoll-data and
atoll-watch.")
set(CPACK_PACKAGE_FILE_NAME
  atoll-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3, python3-jinja2, python3-sentencepiece")  # atoll-data, atoll-watch
# CPack would make the .deb depend on all libraries that its files load. But users choose an MPI
# library, and Debian has no package of NCCL. So AtollShlibdeps.cmake finds the dependencies.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/AtollShlibdeps.cmake)
# Makes the dynamic loader know the libraries as soon as the package is installed.
file(WRITE ${PROJECT_BINARY_DIR}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/triggers)
include(CPack)
