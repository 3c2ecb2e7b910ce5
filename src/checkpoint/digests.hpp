// Digests of data in files: XXH3 with 64 bits. They find damage, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "atoll/namespace.hpp"

struct XXH3_state_s;

namespace atoll_v1::atoll::fsdp {

std::uint64_t digest_of(std::span<const std::byte> data) noexcept;
std::uint64_t digest_of(std::string_view text) noexcept;

// A digest as text: 16 lower-case hexadecimal digits.
inline constexpr std::size_t digest_digits = 16;
std::string digest_text(std::uint64_t digest);

// The digests of the blocks of one tensor. A rank that reads a part of a tensor verifies only the
// blocks that contain this part. 1 MiB stays in a core's cache between the digest and the copy.
inline constexpr std::uint64_t digest_block_bytes = std::uint64_t{1} << 20;

class BlockDigests {
 public:
  BlockDigests();
  ~BlockDigests();
  BlockDigests(const BlockDigests&) = delete;
  BlockDigests& operator=(const BlockDigests&) = delete;

  // Appends data of the tensor, in pieces of any size.
  void add(std::span<const std::byte> data);
  // Returns the digests of all blocks as one text, and starts the next tensor. The last block
  // may be short; a tensor without data has no block.
  std::string take();

  // Length of the text for a tensor with `bytes` bytes of data.
  static std::uint64_t text_bytes(std::uint64_t bytes) noexcept {
    return (bytes / digest_block_bytes + (bytes % digest_block_bytes != 0)) * digest_digits;
  }

 private:
  void finish_block();

  struct Free {
    void operator()(XXH3_state_s* state) const noexcept;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
  std::uint64_t in_block_ = 0;  // bytes of the current block so far
  std::string text_;
};

}  // namespace atoll_v1::atoll::fsdp
