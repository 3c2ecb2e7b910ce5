// What users pass to a collective is checked here, before anything is sent.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "comm/communicator_impl.hpp"

namespace atoll_v1::atoll {

// The arguments of one call. Every check throws Error(invalid_argument) that names the rank, the
// operation and the communicator; texts are made only then, for the sake of short messages.
class Arguments {
 public:
  Arguments(const Communicator::Impl& impl, std::string_view operation)
      : impl_(impl), operation_(operation) {}

  // Memory where there are elements, and a size that 64 bits hold.
  void buffer(ConstView view, std::string_view which) const;
  void same_dtype(ConstView src, ConstView dst) const;
  void same_count(ConstView src, ConstView dst) const;
  // `whole` is as many times `part` as there are ranks.
  void multiple(std::uint64_t whole, std::uint64_t part) const;
  void peer(int rank) const;
  // One count a rank, whose sum is `whole`; this rank's is `part`. Returns where its part begins.
  std::uint64_t counts(std::span<const std::uint64_t> counts, std::uint64_t whole,
                       std::uint64_t part) const;
  // src and dst share no byte, except that `one` of them may begin at `place`, in the other.
  void apart(ConstView one, ConstView other, const void* place = nullptr) const;
  // A factor is there for sums of floating point types; throws Error(unsupported) for a backend
  // that was built before there were factors.
  void reduction(DType dtype, const Reduction& reduction) const;

 private:
  [[noreturn]] void refuse(std::string_view rule,
                           ErrorCode code = ErrorCode::invalid_argument) const;

  const Communicator::Impl& impl_;
  std::string_view operation_;
};

}  // namespace atoll_v1::atoll
