// The folder of a checkpoint: a save writes FOLDER.partial and renames it when it is complete.
#pragma once

#include <filesystem>

#include "core/socket.hpp"

namespace atoll_v1::atoll::fsdp {

// The path "out/" means "out".
std::filesystem::path without_slash(const std::filesystem::path& folder);

// If `folder` is a symbolic link, returns the folder to which it leads, even if that does not exist
// yet. Otherwise returns without_slash(folder). Throws Error(io).
std::filesystem::path without_link(const std::filesystem::path& folder);

std::filesystem::path partial_of(const std::filesystem::path& folder);

// The new content of a folder while one rank saves it. The destructor deletes partial_of(folder),
// unless publish() has succeeded, and ignores errors.
//
// Locks (flock) let two engines find out that they use one folder. SaveFolder locks partial_of()
// and `folder`. The engine keeps the lock of the folder that it has published until its next save,
// or its destruction. If the file system has no such locks (some NFS), the process logs one warning
// and saves, but cannot detect a second engine.
class SaveFolder {
 public:
  // Makes an empty folder partial_of(folder). `mine` is the result of the engine's last publish().
  // Throws Error(invalid_argument) if `folder` is empty or has no name, and Error(io) if another
  // engine has locked the folder, or if save() may not replace what is there. It may replace only
  // an empty folder, or a folder that contains the files of a checkpoint and nothing else.
  SaveFolder(std::filesystem::path folder, const net::Fd& mine);
  ~SaveFolder();
  SaveFolder(const SaveFolder&) = delete;
  SaveFolder& operator=(const SaveFolder&) = delete;

  // Renames partial_of(folder), whose files are synced, to `folder`, and deletes the old content of
  // `folder`. After a power loss at any moment, readable() finds the old or the new content whole.
  // On file systems that cannot exchange two names atomically, only `folder`.old exists for a
  // moment. Returns the lock of the folder, which may be empty.
  net::Fd publish();

 private:
  std::filesystem::path folder_;
  net::Fd partial_lock_, folder_lock_;
  bool owns_partial_ = false;
};

// Returns `folder`. If an interrupted save has left only `folder`.old, returns that path.
std::filesystem::path readable(const std::filesystem::path& folder);

}  // namespace atoll_v1::atoll::fsdp
