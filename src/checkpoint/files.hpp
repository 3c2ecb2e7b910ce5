// Files of checkpoints and weights: regular files only, written so that a power loss cannot leave a
// part of a file under its final name. Errors name the path and the reason of the operating system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/errors.hpp"
#include "core/socket.hpp"
#include "core/terminal_safe.hpp"

namespace atoll_v1::atoll::fsdp {

// An error that names a file.
template <class... Args>
Error file_error(ErrorCode code, const std::filesystem::path& file,
                 fmt::format_string<Args...> text, Args&&... args) {
  return {code, terminal_safe(fmt::format("{}: {}", file.string(),
                                          fmt::format(text, std::forward<Args>(args)...)))};
}
// Returns file_error() with ErrorCode::bad_data, for the content of a file.
template <class... Args>
Error bad(const std::filesystem::path& file, fmt::format_string<Args...> text, Args&&... args) {
  return file_error(ErrorCode::bad_data, file, text, std::forward<Args>(args)...);
}
// Throws Error(io) that names the file, unless `condition` is true.
template <class... Args>
void require_io(bool condition, const std::filesystem::path& file, fmt::format_string<Args...> text,
                Args&&... args) {
  if (!condition) throw file_error(ErrorCode::io, file, text, std::forward<Args>(args)...);
}

// Calls `call`, and throws Error(io) with path and reason for the errors of std::filesystem, whose
// own texts have several forms.
template <class Call>
void filesystem(const Call& call) {
  try {
    call();
  } catch (const std::filesystem::filesystem_error& error) {
    throw file_error(ErrorCode::io, error.path1(), "{}", error.code().message());
  }
}

// Opens a regular file for reading and stores its size in `size`. A FIFO, a device, a socket or a
// folder is Error(io) at once: opening never waits for a writer. Throws Error(io).
net::Fd open_regular(const std::filesystem::path& path, std::uint64_t& size);

// A regular file in memory, read-only. The file must not become shorter while the object exists.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

  // Without these calls, the kernel reads ahead of each access, on some disks by megabytes.
  // expect_parts() turns that off, and fetch() reads a part of bytes() before it is accessed.
  void expect_parts() const noexcept;
  void fetch(std::span<const std::byte> part) const noexcept;

 private:
  void advise(std::span<const std::byte> part, int advice) const noexcept;

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Writes a new file; a file of that name is replaced, and never followed if it is a link or opened
// if it is a FIFO. A file that exceeds the process's limit of size is Error(io) with the text of
// EFBIG, without the signal SIGXFSZ. Every function throws Error(io).
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);

  void append(std::span<const std::byte> data);
  // Overwrites bytes that were already appended.
  void rewrite(std::uint64_t offset, std::span<const std::byte> data);
  // Syncs the file to disk. The name of the file is durable only when its folder is synced, too.
  void close();

 private:
  void write_at(std::uint64_t offset, std::span<const std::byte> data);

  std::filesystem::path path_;
  net::Fd file_;
  std::uint64_t size_ = 0;
};

void write_file(const std::filesystem::path& path, std::string_view text);

// Flushes a file or folder to disk.
void sync_to_disk(const std::filesystem::path& path);
// Flushes the folder that contains `path`, and the folders above it on the same file system. Skips
// folders that this process may not open.
void sync_parents(const std::filesystem::path& path);

}  // namespace atoll_v1::atoll::fsdp
