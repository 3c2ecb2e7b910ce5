#include "sources/left_behind.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "sources/small_file.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

// Beginnings of the names that atoll (before its inboxes became anonymous memory), NCCL and Open
// MPI give to shared memory.
constexpr std::array<std::string_view, 4> prefixes = {"atoll-", "nccl-", "vader_segment.",
                                                      "sm_segment."};
constexpr std::size_t longest_name = 200;
constexpr std::size_t most_names = 256;
constexpr std::time_t least_age = 60;  // seconds

bool is_ours(std::string_view name) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  return name.size() <= longest_name && name.find_first_not_of(letters) == std::string_view::npos &&
         std::ranges::any_of(prefixes, [&](std::string_view p) { return name.starts_with(p); });
}

bool is_number(std::string_view name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
}

// Removes the files that a process maps. A line of /proc/PID/maps is "ADDRESSES PERMISSIONS OFFSET
// DEVICE INODE PATH", see proc(5); other file systems may have the same inode, which only hides a
// finding.
void keep_unmapped(const std::filesystem::path& maps, std::map<unsigned long, std::string>& files) {
  std::ifstream file(maps);
  for (std::string line; !files.empty() && std::getline(file, line);) {
    std::istringstream fields(line);
    std::string skipped;
    unsigned long inode = 0;
    if (fields >> skipped >> skipped >> skipped >> skipped >> inode) files.erase(inode);
  }
}

}  // namespace

std::string left_in_shared_memory(const LiveRequest& request) {
  const auto folder = request.dev / "shm";
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return "";
  std::map<unsigned long, std::string> files;  // by inode
  for (const std::string& name : entries(folder)) {
    if (!is_ours(name) || ::lstat((folder / name).c_str(), &status) != 0) continue;
    const bool is_visible = ::geteuid() == 0 || status.st_uid == ::geteuid();
    if (S_ISREG(status.st_mode) && is_visible && status.st_mtime + least_age < std::time(nullptr))
      files.emplace(status.st_ino, name);
  }
  if (files.empty()) return "none";
  for (const std::string& process : entries(request.procfs)) {
    if (is_number(process)) keep_unmapped(request.procfs / process / "maps", files);
  }
  std::string names;
  std::size_t count = 0;
  for (const auto& [inode, name] : files) {
    if (++count <= most_names) names += (names.empty() ? "" : " ") + name;
  }
  return names.empty() ? "none" : names;
}

}  // namespace atoll_v1::atoll::topology_sources
