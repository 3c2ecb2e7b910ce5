// How atoll's element types, reductions and byte counts are spoken in MPI.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "session.hpp"

namespace atoll_sdk::mpi {

// Of the reductions: MPI has no 16-bit floating point types, so capability() does not offer them.
MPI_Datatype reduction_type(std::int32_t dtype);
// avg is a sum, which divide() then finishes.
MPI_Op reduction_op(const Session& session, std::int32_t dtype, std::int32_t op);

// dst[i] /= n; integers truncate, as everywhere in atoll.
void divide(void* dst, std::uint64_t count, std::int32_t dtype, std::int32_t n);

// dst[i] = factor * src[i], rounded to the type; f32 and f64, as scaled() says. dst may be src.
void multiply(void* dst, const void* src, std::uint64_t count, const atoll_operation& operation);

// `bytes` bytes in a row, as the (count, type) pair of an MPI call. MPI counts are ints; what does
// not fit one is a single element of a derived type that spans all of it.
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

// Reductions cannot use derived types: they go in pieces, so small that no byte count inside an MPI
// library overflows an int.
inline constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 30;
// Of scratch memory in which pieces of larger operations are packed, at most.
inline constexpr std::uint64_t packed_bytes = std::uint64_t{1} << 26;

}  // namespace atoll_sdk::mpi
