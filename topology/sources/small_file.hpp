// The small files of sysfs, procfs and settings, read within limits and without waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace atoll_v1::atoll::topology_sources {

// A regular file that is open for reading; anything else is treated as absent.
class SmallFile {
 public:
  explicit SmallFile(const std::filesystem::path& path);
  SmallFile(const SmallFile&) = delete;
  SmallFile& operator=(const SmallFile&) = delete;
  ~SmallFile();
  bool is_open() const noexcept { return descriptor_ >= 0; }
  // What the file claims to have, which may be more than the kernel shows.
  std::uintmax_t size() const noexcept { return size_; }
  // Number of bytes read; fewer than asked for at the end; empty when nothing can be read there.
  std::optional<std::size_t> read_at(std::size_t offset, std::span<char> bytes) const;

 private:
  int descriptor_;
  std::uintmax_t size_ = 0;
};

// The first `limit` bytes of a regular file; empty when it cannot be read.
std::optional<std::string> read_start(const std::filesystem::path& path, std::size_t limit);

// The first line without the white space around it, printable; "" when it cannot be read.
std::string first_line(const std::filesystem::path& path);

// The first line as an integer; 0x... is hexadecimal.
std::optional<long long> read_number(const std::filesystem::path& path);

// The names in a folder as people order them, at most 4096; none when it cannot be read.
std::vector<std::string> entries(const std::filesystem::path& folder);

// What is no printable ASCII becomes '?', and what is longer than `limit` is cut.
std::string printable(std::string_view text, std::size_t limit);

}  // namespace atoll_v1::atoll::topology_sources
