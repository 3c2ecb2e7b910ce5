#include "checkpoint/folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "checkpoint/files.hpp"
#include "core/errors.hpp"
#include "core/folder.hpp"
#include "core/log.hpp"
#include "core/terminal_safe.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

namespace fs = std::filesystem;

fs::path old_of(const fs::path& folder) { return folder.string() + ".old"; }

// Replaces `folder` by two renames, synced in between: a power loss must not keep only the second.
void rename_twice(const fs::path& partial, const fs::path& folder) {
  const fs::path old = old_of(folder);
  const bool had_content = fs::exists(folder);
  if (had_content) {
    remove_tree(old);
    fs::rename(folder, old);
    sync_parents(folder);
  }
  try {
    fs::rename(partial, folder);
  } catch (...) {
    std::error_code ignored;
    if (had_content) fs::rename(old, folder, ignored);
    throw;
  }
}

// Returns whether save() gives this name to a file.
bool is_checkpoint_file(const std::string& name) {
  return name == "index.json" || (name.starts_with("shard-") && name.ends_with(".safetensors"));
}

void check_replaceable(const fs::path& folder) {
  require_io(fs::is_directory(folder), folder,
             "exists and is not a folder, so no checkpoint can replace it");
  bool has_index = false, has_shard = false;
  for (const std::string& name : names_in(folder)) {
    require_io(is_checkpoint_file(name), folder,
               "contains {}, which is not a file of a checkpoint, so no checkpoint can replace the "
               "folder: move the file, or save to another folder",
               name);
    (name == "index.json" ? has_index : has_shard) = true;
  }
  require_io(has_index == has_shard, folder,
             "contains {}, and thus is not a checkpoint, so no checkpoint can replace it: delete "
             "the folder, or save to another folder",
             has_index ? "index.json without shard files" : "shard files without index.json");
}

bool is_same_file(const net::Fd& a, const struct stat& b) {
  struct stat status {};
  return a && ::fstat(a.get(), &status) == 0 && status.st_dev == b.st_dev &&
         status.st_ino == b.st_ino;
}

// Logs once per process that a save cannot detect another engine that saves to the same folder.
void warn_without_locks(const fs::path& path, int error) {
  static std::atomic<bool> is_warned = false;
  if (is_warned.exchange(true)) return;
  log::warn(
      "{}: cannot lock this folder ({}), so atoll cannot detect that two engines save to one "
      "folder: give each engine a separate folder",
      terminal_safe(path.string()), std::strerror(error));
}

// Tries to lock an open folder. Returns 0 or the error, which is EWOULDBLOCK if another engine has
// locked the folder.
int try_lock(const net::Fd& file) {
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

// Locks `path` for a save to `folder`. Returns an empty object if `mine` already locks `path`. If
// the file system cannot lock the folder, logs a warning and returns an empty object: some file
// systems have no locks (ENOLCK, EOPNOTSUPP), and NFS locks only files that are open for writing
// (EBADF).
net::Fd lock(const fs::path& path, const fs::path& folder, const net::Fd& mine) {
  net::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  int error = file ? 0 : errno;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && is_same_file(mine, status)) return {};
  if (file) error = try_lock(file);
  // The other engine may have replaced the folder between open() and flock(), so compares it again.
  const bool is_in_use =
      error == EWOULDBLOCK || error == ENOENT ||
      (error == 0 && (::stat(path.c_str(), &status) != 0 || !is_same_file(file, status)));
  require_io(
      !is_in_use, folder,
      "another engine saves to this folder, or has saved to it: each engine needs a separate "
      "folder");
  if (error == 0) return file;
  require_io(error != EMFILE && error != ENFILE, path, "cannot open this folder: {}",
             std::strerror(error));
  warn_without_locks(path, error);
  return {};
}

// Throws if partial_of(folder) is a link, because a save would delete the files to which it leads.
void check_no_link(const fs::path& partial) {
  require_io(!fs::is_symlink(fs::symlink_status(partial)), partial,
             "is a symbolic link, but save() makes and deletes a folder of this name: delete the "
             "link");
}

// Removes the folder. Makes several attempts, because one fails if another rank creates a file in
// the folder at that moment.
void discard(const fs::path& partial) noexcept {
  constexpr int attempts = 5;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    try {
      return remove_tree(partial);
    } catch (...) {
      continue;
    }
  }
}

}  // namespace

fs::path without_slash(const fs::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

fs::path without_link(const fs::path& wanted) {
  constexpr int most_links = 40;  // the number of links that the kernel follows
  fs::path folder = without_slash(wanted);
  filesystem([&] {
    for (int links = 0; fs::is_symlink(fs::symlink_status(folder)); ++links) {
      require_io(links < most_links, wanted, "the symbolic links lead to each other");
      folder = without_slash(folder.parent_path() / fs::read_symlink(folder));
    }
  });
  return folder;
}

fs::path partial_of(const fs::path& folder) { return folder.string() + ".partial"; }

SaveFolder::SaveFolder(fs::path folder, const net::Fd& mine) : folder_(std::move(folder)) {
  const fs::path name = folder_.filename(), partial = partial_of(folder_);
  require(!name.empty() && name != "." && name != "..",
          "save: \"{}\" does not name a folder: pass a path such as \"out/checkpoint\"",
          terminal_safe(folder_.string()));
  filesystem([&] {
    if (fs::exists(folder_)) {
      check_replaceable(folder_);
      folder_lock_ = lock(folder_, folder_, mine);
    }
    // Reserves a descriptor for the lock: without one, the new folder would stay behind unlocked.
    net::Fd spare(::open("/", O_RDONLY | O_CLOEXEC | O_DIRECTORY));
    require_io(static_cast<bool>(spare), partial, "cannot open a folder: {}", std::strerror(errno));
    check_no_link(partial);
    fs::create_directories(partial);
    spare.reset();
    partial_lock_ = lock(partial, folder_, {});
    owns_partial_ = true;
  });
  try {
    filesystem([&] {
      for (const std::string& file : names_in(partial)) remove_tree(partial / file);
    });
  } catch (...) {
    discard(partial);
    throw;
  }
}

SaveFolder::~SaveFolder() {
  if (owns_partial_) discard(partial_of(folder_));
}

net::Fd SaveFolder::publish() {
  const fs::path partial = partial_of(folder_);
  sync_to_disk(partial);
  filesystem([&] {
    const bool exchanged =
        ::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, folder_.c_str(), RENAME_EXCHANGE) == 0;
    if (!exchanged) rename_twice(partial, folder_);
    sync_parents(folder_);
    remove_tree(partial);
    owns_partial_ = false;
    remove_tree(old_of(folder_));
  });
  return std::move(partial_lock_);
}

fs::path readable(const fs::path& folder) {
  const fs::path old = old_of(folder);
  if (fs::exists(folder) || !fs::exists(old / "index.json")) return folder;
  log::warn("{} does not exist: reading {}, which an interrupted save has left",
            terminal_safe(folder.string()), terminal_safe(old.string()));
  return old;
}

}  // namespace atoll_v1::atoll::fsdp
