// Translates atoll's element types, reductions and byte counts to MPI.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "session.hpp"

namespace atoll_mpi {

// Returns the MPI type for a reduction. MPI has no 16-bit floating point types, so they are not
// supported.
MPI_Datatype reduction_type(std::int32_t dtype);
// Returns the MPI operation for a reduction. For an average this is the sum, and the caller must
// call divide() on the result.
MPI_Op reduction_op(const Session& session, std::int32_t dtype, std::int32_t op);

// Returns true if src must be multiplied by this rank's factor before MPI reduces it.
bool scaled(const atoll_operation& operation) noexcept;

// Divides each element of dst by n. Integer quotients are truncated, as everywhere in atoll.
void divide(void* dst, std::uint64_t count, std::int32_t dtype, std::int32_t n);

// Computes dst[i] = factor * src[i] with the operation's factor, rounded to its dtype. Copies src
// if the operation has no factor. dst may equal src. Returns dst.
std::byte* scale(std::byte* dst, const std::byte* src, std::uint64_t count,
                 const atoll_operation& operation);

// A pair of count and type that describes `bytes` contiguous bytes in an MPI call. MPI counts are
// ints, so sizes that exceed an int become one element of a derived type.
class Block {
 public:
  Block(Session& session, std::uint64_t bytes);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  int count() const noexcept { return count_; }
  MPI_Datatype type() const noexcept { return type_; }

 private:
  Session& session_;
  int count_;
  MPI_Datatype type_ = MPI_BYTE;
};

// Maximum size of the pieces in which large data is reduced. Reductions cannot use derived types,
// and with this limit no byte count inside an MPI library overflows an int.
inline constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 30;
// Maximum size of the scratch memory into which pieces of large operations are packed.
inline constexpr std::uint64_t packed_bytes = std::uint64_t{1} << 26;

}  // namespace atoll_mpi
