// Checks the arguments of a collective before anything is sent.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "atoll/communicator.hpp"

namespace atoll_v1::atoll {

class BackendCommunicator;

// Returns true when the two views share a byte.
bool overlap(ConstView a, ConstView b);

// Checks the arguments of one call. Every check throws Error(invalid_argument) that names the rank,
// the operation and the communicator. Texts are built only for an error, so a successful check is
// cheap.
class Arguments {
 public:
  Arguments(const BackendCommunicator& group, std::string_view operation)
      : group_(group), operation_(operation) {}

  // Requires that `view` has memory unless it is empty, and that its size in bytes fits in 63 bits.
  // `which` is the name of the argument.
  void buffer(ConstView view, std::string_view which) const;
  void same_dtype(ConstView src, ConstView dst) const;
  // Requires equal dtypes and counts, and memory for both.
  void alike(ConstView src, ConstView dst) const;
  // Requires that the elements of src can be divided evenly among the ranks.
  void divisible(ConstView src) const;
  // Requires that the larger buffer, src or dst as selected by `whole`, holds one block per rank,
  // all of equal size, and that the other buffer holds one block. Neither address may be null. They
  // may overlap only if the block is this rank's part of the larger buffer.
  enum class Whole {
    src,
    dst
  };
  void blocks(ConstView src, ConstView dst, Whole whole) const;
  void peer(int rank) const;
  void list(std::size_t views, std::string_view which) const;  // one view for each rank
  // Requires a valid peer and tag of a message. A receive may pass ATOLL_ANY for both.
  void message(int peer, int tag, bool has_tags, bool receives) const;
  // Requires that the call contains as many receives of this rank from itself as sends to itself.
  void own_messages(int sends, int receives) const;
  // Requires that there is one count per rank, that the counts add up to `whole`, and that this
  // rank's count is `part`. Returns the element offset at which this rank's part begins.
  std::uint64_t counts(std::span<const std::uint64_t> counts, std::uint64_t whole,
                       std::uint64_t part) const;
  // Checks the counts of an all_to_all_v: `sent` and `received` must have one count per rank, their
  // sums must be `src_count` and `dst_count`, the elements of src and dst, and both must have the
  // same count for this rank.
  void exchanged(std::span<const std::uint64_t> sent, std::uint64_t src_count,
                 std::span<const std::uint64_t> received, std::uint64_t dst_count) const;
  // Requires that the two views share no byte, except that `one` may begin at `place` inside
  // `other`.
  void apart(ConstView one, ConstView other, const void* place = nullptr) const;
  // Requires an op that exists, and a sum or average of a floating-point type if the factor is not
  // 1. Throws Error(unsupported) for a dtype that cannot be reduced.
  void reduction(DType dtype, const Reduction& reduction) const;

 private:
  // Requires that the dtype exists: all other texts and sizes depend on it.
  void known(ConstView view, std::string_view which) const;
  template <class... Args>
  void require(bool condition, fmt::format_string<Args...> rule, Args&&... args) const {
    if (!condition) refuse(fmt::format(rule, std::forward<Args>(args)...));
  }
  [[noreturn]] void refuse(std::string_view rule,
                           ErrorCode code = ErrorCode::invalid_argument) const;
  // Requires one count per rank with a sum of `whole`, the elements of `buffer`. Returns the sum of
  // the counts of lower ranks.
  std::uint64_t layout(std::span<const std::uint64_t> counts, std::uint64_t whole,
                       std::string_view buffer) const;

  const BackendCommunicator& group_;
  std::string_view operation_;
};

}  // namespace atoll_v1::atoll
