#include "report/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "atoll/error.hpp"

namespace train {
namespace {

using atoll::Error;
using atoll::ErrorCode;

[[noreturn]] void fail(const std::filesystem::path& file, int error) {
  throw Error(ErrorCode::io, fmt::format("{}: {}", file.string(), std::strerror(error)));
}

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags)
      : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) fail(path_, errno);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(path_, errno);
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
  }

  void close_flushed() {
    if (::fsync(fd_) != 0) fail(path_, errno);
    if (::close(std::exchange(fd_, -1)) != 0) fail(path_, errno);
  }

 private:
  std::filesystem::path path_;
  int fd_;
};

// The process id keeps two runs in one directory from sharing a temporary file.
std::filesystem::path draft_of(const std::filesystem::path& file) {
  return fmt::format("{}.{}.tmp", file.string(), ::getpid());
}

}  // namespace

std::filesystem::path run_directory(const std::string& out, const std::string& run_name) {
  if (!out.empty()) return out;
  const bool plain = !run_name.empty() && run_name != "." && run_name != ".." &&
                     run_name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
  if (!plain) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("run name `{}`: must be a single folder name", run_name));
  }
  return std::filesystem::path("results") / "training" / run_name;
}

void make_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) fail(directory, error.value());
}

void check_writable(const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) fail(file, EISDIR);
  const auto draft = draft_of(file);
  const int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail(file, errno);
  ::close(fd);
  ::unlink(draft.c_str());
}

void write_file_atomic(const std::filesystem::path& file, std::string_view bytes) {
  const std::filesystem::path draft = draft_of(file);
  try {
    Descriptor out(draft, O_WRONLY | O_CREAT | O_TRUNC);
    out.write(bytes);
    out.close_flushed();
    if (::rename(draft.c_str(), file.c_str()) != 0) fail(file, errno);
  } catch (...) {
    ::unlink(draft.c_str());
    throw;
  }
  // Flush the directory, so that the rename survives a power cut. Failure is ignored, because some
  // file systems cannot flush directories.
  const std::filesystem::path directory = file.has_parent_path() ? file.parent_path() : ".";
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
}

void write_json_atomic(const std::filesystem::path& file, const nlohmann::json& value) {
  write_file_atomic(file,
                    value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace train
