// MPI_IN_PLACE is for all ranks of a collective or for none, and a rank does not know where the
// others have their data.
#pragma once

#include "comm.hpp"

namespace atoll_sdk::mpi {

// Where the blocks that a rank brings to a gather lie: in their places in dst, or elsewhere.
enum class Sources {
  in_place,
  elsewhere,
  mixed
};

// Up to so many bytes a block in place is copied into scratch memory, which takes less time than
// to ask; a collective must compare it with something that is equal on all ranks.
inline constexpr std::uint64_t bounce_bytes = std::uint64_t{1} << 16;

// What holds for all ranks: a collective. A rank that brings nothing passes `mixed`, for it does
// not mind.
Sources agree(Comm& comm, Sources own);

}  // namespace atoll_sdk::mpi
