// Finds shared memory that jobs left behind when they died.
#pragma once

#include <string>

#include "sources/source.hpp"

namespace atoll_v1::atoll::topology_sources {

// Returns the names in /dev/shm that jobs of atoll, NCCL or Open MPI have made and that no process
// maps any more, separated by spaces, or "none". Considers only files of this user, or of all users
// for root, because other processes are not visible; files of the last minute may belong to a job
// that is starting. Returns "" if /dev/shm cannot be read. Processes in other PID namespaces are
// not visible either.
std::string left_in_shared_memory(const LiveRequest& request);

}  // namespace atoll_v1::atoll::topology_sources
