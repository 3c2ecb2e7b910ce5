// When to pass MPI_IN_PLACE. MPI requires it on all ranks of a collective or on none, and a rank does
// not know where the data of other ranks is.
#pragma once

#include "comm.hpp"

namespace atoll_mpi {

// Where ranks have their contributions to a gather: at their blocks of dst, or elsewhere.
enum class Sources {
  in_place,
  elsewhere,
  mixed
};

// A block in place of up to this size is copied to scratch memory, which is faster than asking the
// other ranks. Collectives compare this limit with a size that is equal on all ranks.
inline constexpr std::uint64_t bounce_bytes = std::uint64_t{1} << 16;

// Collective: returns the common value of all ranks, or `mixed` if they differ. A rank without data
// passes `mixed` and agrees with any value.
Sources agree(Comm& comm, Sources own);

}  // namespace atoll_mpi
