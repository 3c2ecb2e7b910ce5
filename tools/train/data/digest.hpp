// Checksums of files.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace train {

// BLAKE2b with 256 bits, by libsodium.
class Digest {
 public:
  Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  ~Digest();

  void add(std::span<const std::byte> bytes);
  // Returns the digest in hexadecimal digits. May be called once.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace train
