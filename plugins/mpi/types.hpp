// Translates atoll's element types, reductions and byte counts to MPI.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "session.hpp"

namespace atoll_mpi {

// The MPI type for a reduction. MPI has no 16-bit floating point types.
MPI_Datatype reduction_type(std::int32_t dtype);
// The MPI operation for a reduction. An average is a sum; call divide() afterwards.
MPI_Op reduction_op(const Session& session, std::int32_t dtype, std::int32_t op);

// dst[i] /= n. Integers truncate, as in all of atoll.
void divide(void* dst, std::uint64_t count, std::int32_t dtype, std::int32_t n);

// dst[i] = factor * src[i], rounded to the type, which is f32 or f64. dst may be src.
void multiply(void* dst, const void* src, std::uint64_t count, const atoll_operation& operation);

// The (count, type) pair that describes `bytes` contiguous bytes in an MPI call. MPI counts are ints;
// larger sizes become one element of a derived type.
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

// Reductions cannot use derived types, so they run in pieces of at most this size. No byte count
// inside an MPI library then overflows an int.
inline constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 30;
// Limit of the scratch memory in which pieces of larger operations are packed.
inline constexpr std::uint64_t packed_bytes = std::uint64_t{1} << 26;

}  // namespace atoll_mpi
