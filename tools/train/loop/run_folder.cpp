#include "loop/run_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "environment.hpp"
#include "fail.hpp"
#include "loop/checkpoints.hpp"
#include "report/files.hpp"
#include "report/log.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

constexpr const char* lock_name = "run.lock";

[[noreturn]] void fail_io(const fs::path& file, int error) {
  fail(ErrorCode::io, "--out: {}: {}", file.string(), std::strerror(error));
}

// Returns what the holder of the lock has written, if it is safe to print.
std::string holder_of(int fd) {
  std::array<char, 300> text{};
  const ssize_t bytes = ::pread(fd, text.data(), text.size(), 0);
  const std::string_view told(text.data(), static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  const bool plain = std::ranges::all_of(told, [](unsigned char c) { return c >= ' ' && c < 127; });
  return told.empty() || !plain ? "" : fmt::format(" ({})", told);
}

// Whether the file that `fd` has open is still the one of this name: its holder may have removed
// it.
bool is_named(int fd, const fs::path& file) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::stat(file.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

// Locks an open file. Returns false if another process has it, or another run of this process.
bool take(int fd) {
  int result = 0;
  do {
    result = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  log::debug("--out: this file system has no locks: {}", std::strerror(errno));
  return true;
}

bool is_within(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

void refuse_earlier_run(const RunOptions& options, const fs::path& out) {
  const bool continues = !options.resume.empty() && !resumes_other_folder(options, out);
  if (continues || find_checkpoints(out).empty()) return;
  const std::string other = options.resume.empty()
                                ? ""
                                : fmt::format(", and --resume {} is no part of it", options.resume);
  fail(
      ErrorCode::invalid_argument,
      "--out {}: the folder has the checkpoints of an earlier run{}: use another --out, go on with "
      "that run by --resume auto, or delete the folder",
      out.string(), other);
}

// Calls `body`. Returns the code and the text of its Error; "" if it throws none.
template <class Body>
std::string problem_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
  }
  return "";
}

}  // namespace

// Delegates to the default constructor, so that an exception in the body calls the destructor.
RunFolder::RunFolder(atoll::World& world, const RunOptions& options, const fs::path& out)
    : RunFolder() {
  std::string problem;
  if (world.rank() == 0) {
    problem = problem_of([&] {
      std::error_code ignored;
      made_ = !fs::exists(out, ignored);
      make_directory(out);
      out_ = out;
      lock();
      refuse_earlier_run(options, out);
    });
  }
  problem = world.exchange("train/out", problem).front();
  if (problem.empty()) return;
  int code = 0;
  const auto parsed = std::from_chars(problem.data(), problem.data() + problem.size(), code);
  throw Error(static_cast<ErrorCode>(code), std::string(parsed.ptr + 1));
}

void RunFolder::lock() {
  const fs::path file = out_ / lock_name;
  while (true) {
    fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) fail_io(file, errno);
    if (!take(fd_)) {
      const std::string holder = holder_of(fd_);
      ::close(std::exchange(fd_, -1));
      fail(ErrorCode::invalid_argument,
           "--out {}: another run{} writes to this folder: use another --out, or wait until that "
           "run has ended",
           out_.string(), holder);
    }
    if (is_named(fd_, file)) break;
    ::close(fd_);
  }
  const std::string mine = fmt::format("process {} on {}", ::getpid(), host_name());
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, mine.data(), mine.size(), 0) < 0) {
    log::debug("{}: {}", file.string(), std::strerror(errno));
  }
}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : out_(std::move(other.out_)), fd_(std::exchange(other.fd_, -1)), made_(other.made_) {}

RunFolder& RunFolder::operator=(RunFolder&& other) noexcept {
  std::swap(out_, other.out_);
  std::swap(fd_, other.fd_);
  std::swap(made_, other.made_);
  return *this;
}

RunFolder::~RunFolder() {
  if (fd_ < 0) return;
  ::unlink((out_ / lock_name).c_str());
  ::close(fd_);
  if (made_) ::rmdir(out_.c_str());  // fails unless the folder is empty
}

void RunFolder::check() const {
  if (fd_ < 0 || is_named(fd_, out_ / lock_name)) return;
  fail(ErrorCode::io,
       "--out {}: the folder, or {} in it, has been moved or deleted while the run wrote to it",
       out_.string(), lock_name);
}

bool resumes_other_folder(const RunOptions& options, const fs::path& out) {
  if (options.resume.empty() || options.resume == "auto") return false;
  std::error_code ignored;
  const auto whole = [&](const fs::path& path) {
    return fs::absolute(path, ignored).lexically_normal();
  };
  const auto real = [&](const fs::path& path) {
    return fs::weakly_canonical(whole(path), ignored);
  };
  // The folder of the checkpoints may be a link to another disk, so real paths count too.
  return !is_within(whole(options.resume), whole(out)) &&
         !is_within(real(options.resume), real(out)) &&
         !is_within(real(options.resume), real(checkpoints_folder(out)));
}

fs::path set_earlier_results_aside(const fs::path& out) {
  std::error_code error;
  const auto bytes = fs::file_size(out / "steps.jsonl", error);
  if (error || bytes == 0) return {};
  int number = 1;
  const auto folder = [&] { return out / fmt::format("earlier-{}", number); };
  while (fs::exists(folder(), error)) ++number;
  make_directory(folder());
  // steps.jsonl is moved last, so that the next start repeats a move that was cut off.
  for (const char* name : {"metrics.json", "run_args.json", "config.toml", "config-resumed.toml",
                           "report.html", "steps.jsonl"}) {
    const fs::path from = out / name, to = folder() / name;
    if (::rename(from.c_str(), to.c_str()) != 0 && errno != ENOENT) fail_io(from, errno);
  }
  return folder();
}

}  // namespace train
