// The catalog's JSON files, which embed.cmake compiles into the library.
#pragma once

#include <span>
#include <string_view>

namespace atoll_v1::atoll {

struct CatalogFile {
  std::string_view name;  // file name without ".json"; the prefix of all ids in the file
  std::string_view title;
  std::span<const std::string_view> pieces;  // parts of the file's JSON text, in order
};

// Returns one entry for each file, sorted by name.
std::span<const CatalogFile> catalog_files() noexcept;

}  // namespace atoll_v1::atoll
