// Decides whether to pass MPI_IN_PLACE. MPI requires that either all ranks of a collective pass it
// or none, and a rank does not know whether the data of other ranks is in place.
#pragma once

#include "comm.hpp"

namespace atoll_mpi {

// Where the ranks of an all_gather have their contributions: in place, that is, at the ranks'
// blocks of dst; elsewhere; or some in place and some elsewhere (`mixed`).
enum class Sources {
  in_place,
  elsewhere,
  mixed
};

// A block of up to this size that is in place is copied to scratch memory, which is faster than an
// agreement with the other ranks. All ranks must decide alike, so collectives compare this limit
// with a size that is equal on all ranks.
inline constexpr std::uint64_t bounce_bytes = std::uint64_t{1} << 16;

// Compares where the ranks have their data: returns the location that all ranks have in common, or
// `mixed` if the ranks differ. Collective over the communicator. A rank without data passes
// `mixed`, which agrees with any location.
Sources agree(Comm& comm, Sources own);

}  // namespace atoll_mpi
