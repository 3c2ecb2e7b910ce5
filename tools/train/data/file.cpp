#include "data/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "fail.hpp"
#include "json_reader.hpp"

namespace train {

namespace {

// Returns the size of a regular file that is not empty.
std::uintmax_t checked_size(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code status;
  if (!std::filesystem::exists(path, status)) fail(ErrorCode::not_found, "{}: no such file", name);
  if (std::filesystem::is_directory(path, status)) {
    fail(ErrorCode::bad_data, "{}: a folder; name a file in it", name);
  }
  // A pipe or device is refused, because it has no size to check and may never end.
  if (!std::filesystem::is_regular_file(path, status)) {
    fail(ErrorCode::bad_data, "{}: not a regular file", name);
  }
  const std::uintmax_t size = std::filesystem::file_size(path, status);
  if (status) fail(ErrorCode::io, "{}: {}", name, status.message());
  if (size == 0) fail(ErrorCode::bad_data, "{}: empty file", name);
  return size;
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::uintmax_t limit) {
  checked_size(path);
  return read_text(path, limit);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto size = static_cast<std::size_t>(checked_size(path));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(ErrorCode::io, "{}: {}", path.string(), std::strerror(errno));
  void* const start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (start == MAP_FAILED) fail(ErrorCode::io, "{}: {}", path.string(), std::strerror(error));
  bytes_ = {static_cast<const std::byte*>(start), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

void MappedFile::expect_random_reads(std::span<const std::byte> part) const noexcept {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<std::size_t>(part.data() - bytes_.data());
  const std::size_t first = (begin + page - 1) / page * page;
  const std::size_t last = (begin + part.size()) / page * page;
  if (first >= last) return;
  // The result is ignored, because madvise() only gives the kernel advice.
  ::madvise(const_cast<std::byte*>(bytes_.data() + first), last - first, MADV_RANDOM);
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  // munmap() has a non-const parameter but writes nothing to the memory, so the cast is safe.
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

struct Digest::State {
  crypto_generichash_state hash;
};

Digest::Digest() : state_(std::make_shared<State>()) {
  crypto_generichash_init(&state_->hash, nullptr, 0, crypto_generichash_BYTES);
}

void Digest::add(std::span<const std::byte> bytes) {
  crypto_generichash_update(&state_->hash, reinterpret_cast<const unsigned char*>(bytes.data()),
                            bytes.size());
}

std::string Digest::finish() {
  std::array<unsigned char, crypto_generichash_BYTES> bytes{};
  crypto_generichash_final(&state_->hash, bytes.data(), bytes.size());
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace train
