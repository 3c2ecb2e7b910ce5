// Block is a byte range of a tensor. EvenSplit divides a tensor into blocks of equal size, and
// piece_of() divides a block into pieces.
#pragma once

#include <algorithm>
#include <cstddef>

#include "collectives/shared_memory/control_block.hpp"

namespace atoll_collectives {

// A byte range of a tensor, for example the range that one rank contributes or receives.
struct Block {
  std::size_t offset;
  std::size_t bytes;
};

constexpr std::size_t round_up_to_line(std::size_t bytes) {
  return (bytes + cache_line - 1) / cache_line * cache_line;
}

// Divides `size` bytes into `parts` consecutive ranges of whole cache lines. The last ranges may be
// shorter or empty.
class EvenSplit {
 public:
  EvenSplit(std::size_t size, int parts)
      : size_(size),
        each_(round_up_to_line((size + static_cast<std::size_t>(parts) - 1) /
                               static_cast<std::size_t>(parts))) {}

  Block operator[](int part) const {
    const std::size_t begin = std::min(static_cast<std::size_t>(part) * each_, size_);
    return {begin, std::min(each_, size_ - begin)};
  }

 private:
  std::size_t size_;
  std::size_t each_;
};

// Returns piece `k` of a block that is cut into pieces of `piece` bytes. The last piece may be
// shorter, and pieces after the end of the block are empty.
inline Block piece_of(const Block& block, std::size_t k, std::size_t piece) {
  const std::size_t first = std::min(k * piece, block.bytes);
  return {block.offset + first, std::min(piece, block.bytes - first)};
}
// Returns the number of pieces of at most `piece` bytes into which `bytes` bytes are cut.
constexpr std::size_t pieces_of(std::size_t bytes, std::size_t piece) {
  return (bytes + piece - 1) / piece;
}

}  // namespace atoll_collectives
