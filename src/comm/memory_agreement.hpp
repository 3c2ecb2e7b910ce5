// Lets the ranks of a communicator compare a call that allocates or registers memory, before any
// rank touches a page.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "comm/backend_communicator.hpp"

namespace atoll_v1::atoll {

// The call that the ranks compare: it allocates memory, or registers memory of the caller.
enum class MemoryCall {
  allocates,
  registers
};

// Compares a call over the ranks of several groups, one group after the other. Collective over each
// of them. Throws the same error on all ranks: the error of `check` on the lowest rank where it
// throws; Error(mismatch) for different calls or sizes; and Error(out_of_memory) if CPU memory
// that the ranks of a host allocate together does not fit. An error of one group travels through
// the groups after it, so that their ranks do not wait for ranks that have failed. If a rank does
// not come before the timeout, the error on the others names that rank and the call.
void agree_on_memory(std::span<const BackendCommunicator* const> groups, MemoryCall call,
                     std::size_t bytes,
                     const std::function<void(const BackendCommunicator&)>& check);

}  // namespace atoll_v1::atoll
