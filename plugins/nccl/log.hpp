// Finds out which transports NCCL uses. NCCL has no call for that, so its log is captured in a
// memory file (NCCL_DEBUG=INFO for initialization and network) and parsed. If the user has set
// NCCL_DEBUG, the log is left to the user.
#pragma once

#include <string>
#include <string_view>

namespace atoll_nccl {

// Redirects the log. Call it before the first NCCL call of the process; NCCL ignores later changes.
void keep_log();
// Removes the variables that keep_log() has set, after NCCL has read them, so that no child process
// writes to an unrelated file descriptor.
void release_environment();

// The text of atoll_backend::transports.
std::string transports();

// Parses a log of NCCL 2.27 or later; the patterns come from its net.cc and nvls.cc.
std::string transports_of(std::string_view log);

}  // namespace atoll_nccl
