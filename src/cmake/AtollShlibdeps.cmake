# CPack includes this file when the files of a package are in CPACK_TEMPORARY_DIRECTORY. For a .deb,
# dpkg-shlibdeps then finds the packages that these files need. The .deb depends on them, except
# that it only recommends those of the mpi backend and ignores those of the nccl backend.
if(NOT CPACK_GENERATOR STREQUAL DEB)
  return()
endif()
set(root ${CPACK_TEMPORARY_DIRECTORY}/usr)
file(GLOB required ${root}/bin/atoll-*)
list(REMOVE_ITEM required ${root}/bin/atoll-data ${root}/bin/atoll-watch)  # scripts
file(GLOB_RECURSE libraries ${root}/lib/libatoll*.so)
foreach(file IN LISTS libraries)
  if(NOT file MATCHES "/libatoll-(mpi|nccl)\\.so$")
    list(APPEND required ${file})
  elseif(file MATCHES "mpi")
    set(recommended -dRecommends -e${file})
  endif()
endforeach()
list(TRANSFORM required PREPEND -e)
# dpkg-shlibdeps reads debian/control in the folder where it runs. --ignore-missing-info is for the
# libraries of atoll itself, which belong to no installed package.
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
