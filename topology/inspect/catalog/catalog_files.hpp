// The catalog's JSON files as the build embeds them (embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace atoll_v1::atoll {

struct CatalogFile {
  std::string_view name;  // without ".json"; the beginning of every id in it
  std::string_view title;
  std::span<const std::string_view> pieces;  // the text, in order
};

std::span<const CatalogFile> catalog_files() noexcept;  // by name

}  // namespace atoll_v1::atoll
