// Reads small files of sysfs, procfs and settings, with limits and without blocking.
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

// A regular file that is open for reading; any other kind of file counts as absent.
class SmallFile {
 public:
  explicit SmallFile(const std::filesystem::path& path);
  SmallFile(const SmallFile&) = delete;
  SmallFile& operator=(const SmallFile&) = delete;
  ~SmallFile();
  bool is_open() const noexcept { return descriptor_ >= 0; }
  // Size that the file reports; the kernel may show fewer bytes.
  std::uintmax_t size() const noexcept { return size_; }
  // Returns the number of bytes read, which is less than requested at the end of the file. The
  // result is empty when nothing can be read.
  std::optional<std::size_t> read_at(std::size_t offset, std::span<char> bytes) const;

 private:
  int descriptor_;
  std::uintmax_t size_ = 0;
};

// Returns the first `limit` bytes of a regular file; empty when it cannot be read.
std::optional<std::string> read_start(const std::filesystem::path& path, std::size_t limit);

// Returns the first line, trimmed and printable; "" when the file cannot be read.
std::string first_line(const std::filesystem::path& path);

// Parses the first line as an integer; "0x..." is hexadecimal.
std::optional<long long> read_number(const std::filesystem::path& path);

// Returns the names in a folder in natural order, at most 4,096; empty when it cannot be read.
std::vector<std::string> entries(const std::filesystem::path& folder);

}  // namespace atoll_v1::atoll::topology_sources
