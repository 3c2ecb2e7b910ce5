# Embeds the JSON files of the catalog in the library. The next build notices when a file is added,
# removed or edited.
file(GLOB catalog_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.json)
set(catalog_names "")
foreach(path IN LISTS catalog_files)
  cmake_path(GET path STEM name)
  list(APPEND catalog_names ${name})
endforeach()
list(JOIN catalog_names "," catalog_names)
set(catalog_source ${CMAKE_CURRENT_BINARY_DIR}/catalog_files.cpp)
add_custom_command(OUTPUT ${catalog_source}
  COMMAND ${CMAKE_COMMAND} -DFOLDER=${CMAKE_CURRENT_LIST_DIR} -DNAMES=${catalog_names}
          -DOUTPUT=${catalog_source} -P ${CMAKE_CURRENT_LIST_DIR}/embed.cmake
  DEPENDS ${catalog_files} ${CMAKE_CURRENT_LIST_DIR}/embed.cmake
  COMMENT "Embedding the catalog of machines"
  VERBATIM)
target_sources(atoll_inspect PRIVATE ${catalog_source})
