// Reads and maps untrusted files, and computes their checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace train {

// Returns the bytes of a regular file. Throws Error: not_found if it does not exist, bad_data if it
// is empty or larger than `limit` bytes, io if reading fails.
std::string read_file(const std::filesystem::path& path, std::uintmax_t limit);

// A regular file that is mapped into memory read-only.
class MappedFile {
 public:
  // Throws Error: not_found if it does not exist, bad_data if it is empty, io if mapping fails.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

  // Tells the kernel that a part will be read in random order, so that it does not read ahead.
  void expect_random_reads(std::span<const std::byte> part) const noexcept;

 private:
  std::span<const std::byte> bytes_;
};

// BLAKE2b with 256 bits, by libsodium.
class Digest {
 public:
  Digest();

  void add(std::span<const std::byte> bytes);
  // Returns the digest in hexadecimal digits. May be called once.
  std::string finish();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace train
