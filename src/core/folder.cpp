#include "core/folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string_view>

namespace atoll_v1::atoll {
namespace {

namespace fs = std::filesystem;

struct Close {
  void operator()(DIR* folder) const noexcept { ::closedir(folder); }
};
using Folder = std::unique_ptr<DIR, Close>;

std::error_code last_problem() { return {errno, std::generic_category()}; }

std::vector<std::string> names_of(DIR* folder, std::error_code& problem) {
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(folder);
    if (entry == nullptr) {
      problem = last_problem();
      return names;
    }
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
}

[[noreturn]] void fail(const char* what, const fs::path& path, std::error_code problem) {
  throw fs::filesystem_error(what, path, problem);
}

// Deletes `name` in the open folder `parent`. Errors name `path`. Opens each folder below its
// parent's descriptor, so that a link that another process creates cannot lead out of the tree.
void remove_at(int parent, const char* name, const fs::path& path) {
  if (::unlinkat(parent, name, 0) == 0 || errno == ENOENT) return;
  if (errno != EISDIR) fail("cannot delete", path, last_problem());
  // An empty folder can be deleted without another descriptor.
  if (::unlinkat(parent, name, AT_REMOVEDIR) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST) fail("cannot delete", path, last_problem());
  const int descriptor = ::openat(parent, name, O_RDONLY | O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW);
  if (descriptor < 0) fail("cannot open", path, last_problem());
  const Folder folder(::fdopendir(descriptor));
  if (!folder) {
    const std::error_code problem = last_problem();
    ::close(descriptor);
    fail("cannot read", path, problem);
  }
  std::error_code problem;
  const std::vector<std::string> names = names_of(folder.get(), problem);
  if (problem) fail("cannot read", path, problem);
  for (const std::string& child : names) remove_at(descriptor, child.c_str(), path / child);
  if (::unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT) {
    fail("cannot delete", path, last_problem());
  }
}

}  // namespace

std::vector<std::string> names_in(const fs::path& folder, std::error_code& problem) {
  const Folder open(::opendir(folder.c_str()));
  if (open) return names_of(open.get(), problem);
  problem = last_problem();
  return {};
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::error_code problem;
  std::vector<std::string> names = names_in(folder, problem);
  if (problem) fail("cannot read", folder, problem);
  return names;
}

void remove_tree(const fs::path& path) { remove_at(AT_FDCWD, path.c_str(), path); }

}  // namespace atoll_v1::atoll
