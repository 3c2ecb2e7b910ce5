// Checks the arguments of a collective before anything is sent.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "atoll/communicator.hpp"

namespace atoll_v1::atoll {

class BackendGroup;

// The arguments of one call. Every check throws Error(invalid_argument) that names the rank, the
// operation and the communicator. Texts are built only for an error, so that checks cost little.
class Arguments {
 public:
  Arguments(const BackendGroup& group, std::string_view operation)
      : group_(group), operation_(operation) {}

  // A view with elements has memory, and its bytes fit in 64 bits.
  void buffer(ConstView view, std::string_view which) const;
  void same_dtype(ConstView src, ConstView dst) const;
  void same_count(ConstView src, ConstView dst) const;
  // `whole` is `part` times the number of ranks.
  void multiple(std::uint64_t whole, std::uint64_t part) const;
  // src and dst are one rank's block and the equal blocks of all ranks. They have memory, and may
  // overlap only where the block is this rank's part of the whole.
  enum class Whole {
    src,
    dst
  };
  void blocks(ConstView src, ConstView dst, Whole whole) const;
  void peer(int rank) const;
  // There is one count for each rank, the counts add up to `whole`, and this rank's count is
  // `part`. Returns where this rank's part begins.
  std::uint64_t counts(std::span<const std::uint64_t> counts, std::uint64_t whole,
                       std::uint64_t part) const;
  // The two views share no byte, except that `one` may begin at `place` inside `other`.
  void apart(ConstView one, ConstView other, const void* place = nullptr) const;
  // A factor other than 1 needs a sum or average of a floating-point type.
  void reduction(DType dtype, const Reduction& reduction) const;

 private:
  [[noreturn]] void refuse(std::string_view rule) const;

  const BackendGroup& group_;
  std::string_view operation_;
};

}  // namespace atoll_v1::atoll
