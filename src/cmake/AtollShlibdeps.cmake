# CPack includes this file when the files of a package are in CPACK_TEMPORARY_DIRECTORY. For a .deb it
# finds the packages that they need, with dpkg-shlibdeps: the mpi backend recommends its packages, and
# the nccl backend needs none.
if(NOT CPACK_GENERATOR STREQUAL DEB)
  return()
endif()
set(root ${CPACK_TEMPORARY_DIRECTORY}/usr)
file(GLOB required ${root}/bin/atoll-*)
file(GLOB_RECURSE libraries ${root}/lib/libatoll*.so)
foreach(file IN LISTS libraries)
  if(NOT file MATCHES "/libatoll-(mpi|nccl)\\.so$")
    list(APPEND required ${file})
  elseif(file MATCHES "mpi")
    set(recommended -dRecommends -e${file})
  endif()
endforeach()
list(TRANSFORM required PREPEND -e)
# dpkg-shlibdeps reads debian/control in the folder where it runs. Libraries of atoll itself belong to
# no installed package, so information on them is missing.
set(folder ${CPACK_TEMPORARY_DIRECTORY}-shlibdeps)
file(WRITE ${folder}/debian/control "Source: atoll\n\nPackage: atoll\nArchitecture: any\n")
execute_process(
  COMMAND dpkg-shlibdeps --ignore-missing-info --warnings=0 -l${root}/lib -O -dDepends ${required}
    ${recommended}
  WORKING_DIRECTORY ${folder} OUTPUT_VARIABLE found ERROR_VARIABLE complaint RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "dpkg-shlibdeps failed: ${complaint}")
endif()
foreach(kind Depends Recommends)
  if(found MATCHES "shlibs:${kind}=([^\n]*)")
    string(TOUPPER CPACK_DEBIAN_PACKAGE_${kind} name)
    set(${name} "${CMAKE_MATCH_1}")
  endif()
endforeach()
