#include "collectives/shared_memory/caller_memory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

namespace atoll_collectives::shared_memory {
namespace {

// A mapping of this process, from a line of /proc/self/maps:
// "7f5c00000000-7f5c00100000 rw-s 00000000 00:01 1043   /memfd:atoll (deleted)".
struct Mapped {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::string rights;
  std::uint64_t offset = 0;
  dev_t device = 0;
  ino_t inode = 0;
  std::string path;
};

std::optional<Mapped> parse(const std::string& line) {
  Mapped one;
  char rights[5] = "";
  unsigned major = 0, minor = 0;
  int path = 0;
  std::uint64_t inode = 0;
  const int fields =
      std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %x:%x %" SCNu64 " %n",
                  &one.begin, &one.end, rights, &one.offset, &major, &minor, &inode, &path);
  if (fields < 7) return std::nullopt;
  one.rights = rights;
  one.device = makedev(major, minor);
  one.inode = static_cast<ino_t>(inode);
  one.path = line.substr(static_cast<std::size_t>(path));
  return one;
}

// Returns the mapping that contains all of the range.
std::optional<Mapped> mapping_of(std::uintptr_t begin, std::size_t bytes) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const auto one = parse(line);
    if (one && one->begin <= begin && begin < one->end) {
      return bytes <= one->end - begin ? one : std::nullopt;
    }
  }
  return std::nullopt;
}

// Returns true if `fd` is the mapped file, writable, and at least `bytes` bytes long. Excludes huge
// pages, whose files can be mapped only at multiples of a huge page.
bool is_file_of(int fd, const Mapped& mapped, std::uint64_t bytes) {
  struct stat file {};
  struct statfs system {};
  return ::fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_ino == mapped.inode &&
         file.st_dev == mapped.device && static_cast<std::uint64_t>(file.st_size) >= bytes &&
         (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR && ::fstatfs(fd, &system) == 0 &&
         system.f_type != HUGETLBFS_MAGIC;
}

// Opens the mapped file a second time, through any descriptor that this process has of it; returns
// none without such a descriptor. Other threads may close descriptors at any time, so this function
// opens their paths in /proc, and checks the opened file again.
Fd open_descriptor(const Mapped& mapped, std::uint64_t bytes) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  if (!folder) return {};
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    struct stat file {};
    if (::stat(path.c_str(), &file) != 0 || file.st_ino != mapped.inode ||
        file.st_dev != mapped.device || !S_ISREG(file.st_mode)) {
      continue;
    }
    Fd opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (opened && is_file_of(opened.get(), mapped, bytes)) return opened;
  }
  return {};
}

}  // namespace

std::optional<Range> find_file(const void* memory, std::size_t bytes) {
  if (auto range = find(memory, bytes)) return range;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const auto mapped = mapping_of(begin, bytes);
  if (!mapped || mapped->rights.size() != 4 || mapped->rights[1] != 'w' ||
      mapped->rights[3] != 's' || mapped->inode == 0) {
    return std::nullopt;
  }
  const std::uint64_t offset = mapped->offset + (begin - mapped->begin);
  Fd file = open_descriptor(*mapped, offset + bytes);
  if (!file && mapped->path.starts_with('/')) {
    Fd named(::open(mapped->path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    if (named && is_file_of(named.get(), *mapped, offset + bytes)) file = std::move(named);
  }
  if (!file) return std::nullopt;
  return Range{std::make_shared<const Fd>(std::move(file)), static_cast<std::size_t>(offset)};
}

}  // namespace atoll_collectives::shared_memory
