#include "sources/small_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "parse_number.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

constexpr std::size_t longest_line = 1024;
constexpr std::size_t most_entries = 4096;

struct CloseFolder {
  void operator()(DIR* folder) const noexcept { closedir(folder); }
};

}  // namespace

// O_NONBLOCK: opening a pipe or device in place of a file must not block.
SmallFile::SmallFile(const std::filesystem::path& path)
    : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  struct stat about {};
  if (descriptor_ < 0) return;
  if (fstat(descriptor_, &about) == 0 && S_ISREG(about.st_mode)) {
    size_ = static_cast<std::uintmax_t>(about.st_size);
    return;
  }
  close(descriptor_);
  descriptor_ = -1;
}

SmallFile::~SmallFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::optional<std::size_t> SmallFile::read_at(std::size_t offset, std::span<char> bytes) const {
  std::size_t done = 0;
  while (is_open() && done < bytes.size()) {
    const ssize_t got = pread(descriptor_, bytes.data() + done, bytes.size() - done,
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    // Some drivers fail at the end of a read; bytes that were read before remain valid.
    if (got < 0 && done == 0) return std::nullopt;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  if (!is_open()) return std::nullopt;
  return done;
}

std::optional<std::string> read_start(const std::filesystem::path& path, std::size_t limit) {
  const SmallFile file(path);
  std::string bytes(limit, '\0');
  const auto got = file.read_at(0, bytes);
  if (!got) return std::nullopt;
  bytes.resize(*got);
  return bytes;
}

std::string first_line(const std::filesystem::path& path) {
  const std::optional<std::string> start = read_start(path, longest_line);
  if (!start) return "";
  const std::string_view line = std::string_view(*start).substr(0, start->find('\n'));
  return printable(trimmed(line), longest_line);
}

std::optional<long long> read_number(const std::filesystem::path& path) {
  return parse_integer(first_line(path));
}

std::vector<std::string> entries(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  // Not std::filesystem::directory_iterator, which ends the process if memory runs out.
  const std::unique_ptr<DIR, CloseFolder> open(opendir(folder.c_str()));
  while (open && names.size() < most_entries) {
    const dirent* const entry = readdir(open.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::ranges::sort(names, natural_less);
  return names;
}

}  // namespace atoll_v1::atoll::topology_sources
