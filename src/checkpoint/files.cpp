#include "checkpoint/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/size_signal_block.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_io(const fs::path& path, std::string_view what) {
  throw file_error(ErrorCode::io, path, "cannot {}: {}", what, std::strerror(errno));
}

std::string_view kind_of(mode_t mode) noexcept {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "of another kind";
}

}  // namespace

net::Fd open_regular(const fs::path& path, std::uint64_t& size) {
  net::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) fail_io(path, "open");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_io(path, "examine");
  require_io(S_ISREG(status.st_mode), path, "not a regular file, but {}", kind_of(status.st_mode));
  size = static_cast<std::uint64_t>(status.st_size);
  return file;
}

Mapping::Mapping(const fs::path& path) {
  std::uint64_t size = 0;
  const net::Fd file = open_regular(path, size);
  if (size == 0) return;
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapped == MAP_FAILED) fail_io(path, "map");
  data_ = static_cast<const std::byte*>(mapped);
  size_ = size;
}

Mapping::~Mapping() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void Mapping::advise(std::span<const std::byte> part, int advice) const noexcept {
  if (part.empty()) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = static_cast<std::size_t>(part.data() - data_) / page * page;
  const std::size_t last = static_cast<std::size_t>(part.data() - data_) + part.size();
  // A failure does no harm, because the kernel need not follow the advice.
  ::madvise(const_cast<std::byte*>(data_ + first), last - first, advice);
}

void Mapping::expect_parts() const noexcept { advise(bytes(), MADV_RANDOM); }

void Mapping::fetch(std::span<const std::byte> part) const noexcept {
  // Linux follows one piece of advice only up to the disk's read-ahead, which is 128 KiB by
  // default.
  constexpr std::size_t most = std::size_t{128} << 10;
  while (!part.empty()) {
    const std::size_t bytes = std::min(most, part.size());
    advise(part.first(bytes), MADV_WILLNEED);
    part = part.subspan(bytes);
  }
}

FileWriter::FileWriter(const fs::path& path) : path_(path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_io(path, "replace");
  file_ = net::Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file_) fail_io(path, "create");
}

void FileWriter::write_at(std::uint64_t offset, std::span<const std::byte> data) {
  const SizeSignalBlock block;
  while (!data.empty()) {
    const ssize_t written =
        ::pwrite(file_.get(), data.data(), data.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = EIO;
    if (written <= 0) fail_io(path_, "write");
    offset += static_cast<std::uint64_t>(written);
    data = data.subspan(static_cast<std::size_t>(written));
  }
}

void FileWriter::append(std::span<const std::byte> data) {
  write_at(size_, data);
  size_ += data.size();
}

void FileWriter::rewrite(std::uint64_t offset, std::span<const std::byte> data) {
  write_at(offset, data);
}

void FileWriter::close() {
  if (::fsync(file_.get()) != 0) fail_io(path_, "sync");
  file_.reset();
}

void write_file(const fs::path& path, std::string_view text) {
  FileWriter writer(path);
  writer.append(std::as_bytes(std::span(text)));
  writer.close();
}

void sync_to_disk(const fs::path& path) {
  const net::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail_io(path, "open");
  if (::fsync(file.get()) != 0) fail_io(path, "sync");
}

void sync_parents(const fs::path& path) {
  fs::path folder = fs::absolute(path).lexically_normal().parent_path();
  struct stat first {};
  if (::stat(folder.c_str(), &first) != 0) fail_io(folder, "examine");
  for (bool top = false; !top; folder = folder.parent_path()) {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0 || status.st_dev != first.st_dev) return;
    const net::Fd file(::open(folder.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
    // EINVAL: the file system cannot sync folders. EROFS: it is read-only.
    const bool synced = file && ::fsync(file.get()) == 0;
    if (!synced && errno != EACCES && errno != EPERM && errno != EINVAL && errno != EROFS)
      fail_io(folder, "sync");
    top = folder == folder.parent_path();
  }
}

}  // namespace atoll_v1::atoll::fsdp
