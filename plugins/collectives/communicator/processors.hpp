// The processors on which the ranks of a host may run decide how these ranks wait for each other.
#pragma once

#include <span>
#include <string>

#include "collectives/exchange.hpp"

namespace atoll_collectives {

// The affinity mask of this process: the bytes of the kernel's mask as hexadecimal digits, without
// zeros at the end. Processor 0 is the lowest bit of the first byte.
std::string own_processors();

// Returns the number of processors in at least one of the masks; 0 if no mask could be read.
int count_processors(std::span<const std::string> masks);

// Decides how the ranks of a host wait for each other: they spin if each of them has a processor.
// `masks` are the affinity masks of the ranks of one communicator. The host has `online` processors
// and runs `host_ranks` ranks of the job (0: unknown). Ranks of the job that are not in the
// communicator are assumed to be bound in the same way: to processors of their own if no two ranks
// of the communicator share a processor.
Waiting waiting_of(std::span<const std::string> masks, int host_ranks, int online);

}  // namespace atoll_collectives
