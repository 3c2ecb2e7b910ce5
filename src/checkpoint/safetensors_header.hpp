// The header of a safetensors file. Time and memory grow linearly with its length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"
#include "checkpoint/safetensors.hpp"

namespace atoll_v1::atoll::fsdp {

inline constexpr std::string_view safetensors_metadata_key = "__metadata__";
inline constexpr std::uint64_t safetensors_length_bytes = 8;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data in the file
  std::map<std::string, std::string, std::less<>> metadata;
  std::uint64_t data_begin = 0;  // offset of the first byte of data in the file

  struct Name {
    std::uint64_t digest;
    std::uint32_t entry;
  };
  std::vector<Name> names;  // of all entries, sorted by digest

  // Returns null if there is no tensor with this name.
  const SafetensorsEntry* find(std::string_view name) const noexcept;
};

// Parses and checks the header at the start of a file's bytes. Entries point into `file`. Throws
// the errors of SafetensorsFile::open(), which name `path`.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file,
                                    const std::filesystem::path& path);

}  // namespace atoll_v1::atoll::fsdp
