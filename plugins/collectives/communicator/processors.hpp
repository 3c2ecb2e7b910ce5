// The processors on which the ranks of a host may run decide how these ranks wait for each other.
#pragma once

#include <span>
#include <string>

#include "collectives/exchange.hpp"

namespace atoll_collectives {

// The affinity mask of this process: the bytes of the kernel's mask as hexadecimal digits, without
// zeros at the end. Processor 0 is the lowest bit of the first byte.
std::string own_processors();

// How ranks wait that may run on these processors, of which the host has `online`. `masks` are those
// of the ranks of one communicator, and the job has `host_ranks` ranks on the host (0: unknown). Ranks
// spin if every one of them has a processor. If the job has more ranks than the communicator, the
// others count as bound like these: to other processors, if no two of these share one.
Waiting waiting_of(std::span<const std::string> masks, int host_ranks, int online);

}  // namespace atoll_collectives
