// What an atoll_operation asks for: its arguments checked, and its name for messages.
#pragma once

#include <cstdint>
#include <string>

#include "atoll/plugin.h"

namespace atoll_sdk::mpi {

// Whether src has to be multiplied with this rank's factor first.
bool scaled(const atoll_operation& operation) noexcept;

// Throws Error(ATOLL_INVALID_ARGUMENT or ATOLL_UNSUPPORTED) unless rank `rank` of a group of
// `nranks` can perform this.
void validate(const atoll_operation& operation, int rank, int nranks);

// "all_reduce 17 (1000 x f32, 4000 bytes, sum)"; core adds the rank and the communicator.
std::string describe(const atoll_operation& operation);

}  // namespace atoll_sdk::mpi
