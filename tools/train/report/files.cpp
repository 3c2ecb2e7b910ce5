#include "report/files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "fail.hpp"

namespace train {
namespace {

[[noreturn]] void fail_io(const std::filesystem::path& file, int error) {
  fail(ErrorCode::io, "{}: {}", file.string(), std::strerror(error));
}

// Flushes a file or folder to disk. Returns false, with errno set, if that fails.
bool flush(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool flushed = ::fsync(fd) == 0;
  const int error = errno;
  ::close(fd);
  errno = error;
  return flushed;
}

// The tag of the process keeps two runs in one folder from using the same temporary file.
std::filesystem::path draft_of(const std::filesystem::path& file) {
  return fmt::format("{}.{}.tmp", file.string(), process_tag());
}

// Returns the file to replace, following links. Throws if it exists and is not a regular file.
std::filesystem::path replaceable(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) return file;
  if (std::filesystem::is_directory(status)) fail_io(file, EISDIR);
  if (!std::filesystem::is_regular_file(status)) {
    fail(ErrorCode::io, "{}: is a {}, and only a regular file may be replaced: name another file",
         file.string(), std::filesystem::is_fifo(status) ? "pipe" : "device or socket");
  }
  if (!std::filesystem::is_symlink(file, error)) return file;
  const auto target = std::filesystem::canonical(file, error);
  return error ? file : target;
}

}  // namespace

std::filesystem::path run_directory(const std::string& out, const std::string& run_name) {
  if (!out.empty()) return out;
  const bool plain = !run_name.empty() && run_name != "." && run_name != ".." &&
                     run_name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
  require(plain, "run name `{}`: must be a single folder name", run_name);
  return std::filesystem::path("results") / "training" / run_name;
}

void make_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) fail_io(directory, error.value());
}

void check_writable(const std::filesystem::path& file) {
  replaceable(file);
  std::error_code error;
  const auto folder = std::filesystem::absolute(file, error).parent_path();
  if (!std::filesystem::exists(folder, error)) return check_folder(folder);
  const auto draft = draft_of(file);
  if (!std::ofstream(draft)) fail_io(file, errno);
  ::unlink(draft.c_str());
}

bool may_replace(const std::filesystem::path& file, std::string_view start) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return true;
  std::string begin(start.size(), '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return in.gcount() == 0 || begin == start;
}

void check_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::path nearest = std::filesystem::absolute(folder, error).lexically_normal();
  while (!std::filesystem::exists(nearest, error) && nearest.has_relative_path()) {
    nearest = nearest.parent_path();
  }
  if (!std::filesystem::is_directory(nearest, error)) fail_io(nearest, ENOTDIR);
  const auto draft = draft_of(nearest / "atoll-train-check");
  errno = 0;
  if (!std::ofstream(draft)) fail_io(nearest, errno != 0 ? errno : EIO);
  ::unlink(draft.c_str());
}

// Does not use std::filesystem::directory_iterator, which ends the process if memory runs out.
std::vector<std::string> names_in(const std::filesystem::path& folder) {
  struct Close {
    void operator()(DIR* open) const noexcept { ::closedir(open); }
  };
  const std::unique_ptr<DIR, Close> open(::opendir(folder.c_str()));
  if (!open && errno == ENOENT) return {};
  if (!open) fail_io(folder, errno);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(open.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

void write_file_atomic(const std::filesystem::path& named, std::string_view bytes) {
  const std::filesystem::path file = replaceable(named);
  const std::filesystem::path draft = draft_of(file);
  try {
    errno = 0;
    std::ofstream out(draft, std::ios::binary);
    out << bytes;
    out.close();
    if (!out || !flush(draft)) fail_io(file, errno != 0 ? errno : EIO);
    if (::rename(draft.c_str(), file.c_str()) != 0) fail_io(file, errno);
  } catch (...) {
    ::unlink(draft.c_str());
    throw;
  }
  // Make the rename survive a power cut. Failure is ignored, because some file systems cannot flush
  // directories.
  flush(file.has_parent_path() ? file.parent_path() : ".");
}

// A PID is unique only within one PID namespace (a container has its own) and one boot of a host,
// so the tag has ids of both. Eight digits of the boot id are enough and leave room for long names.
std::string process_tag() {
  const auto digits_of = [](std::string text, std::size_t most) {
    std::erase_if(text, [](char c) { return !std::isxdigit(static_cast<unsigned char>(c)); });
    return text.substr(0, most);
  };
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::error_code ignored;
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
  if (boot.empty() || space.empty()) return std::to_string(::getpid());
  // `space` is a text such as "pid:[4026531836]".
  return fmt::format("{}-{}-{}", digits_of(boot, 8),
                     digits_of(space.substr(space.find('[') + 1), 16), ::getpid());
}

bool is_unchanged(const std::filesystem::path& path, std::chrono::minutes time) {
  namespace fs = std::filesystem;
  const auto before = fs::file_time_type::clock::now() - time;
  std::error_code error;
  if (fs::last_write_time(path, error) > before || error) return false;
  if (!fs::is_directory(path, error)) return true;
  try {
    return std::ranges::all_of(names_in(path), [&](const std::string& name) {
      return fs::last_write_time(path / name, error) < before && !error;
    });
  } catch (const Error&) {
    return false;
  }
}

void write_json_atomic(const std::filesystem::path& file, const nlohmann::json& value) {
  write_file_atomic(file,
                    value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace train
