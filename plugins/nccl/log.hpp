// Determines which transports NCCL uses. NCCL has no function that reports them, so these functions
// capture NCCL's log (NCCL_DEBUG=INFO for initialization and network) in a memory file and parse
// it. If the user has set NCCL_DEBUG, the log goes where the user directs it, and the transports
// are unknown.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace atoll_nccl {

// If `may_redirect`, redirects NCCL's log to a file in memory (memfd). Must be called before the
// first NCCL call of the process, because NCCL ignores later changes.
void keep_log(bool may_redirect);
// Removes the environment variables that keep_log() has set. Must be called after NCCL has read
// them. Otherwise a child process that uses NCCL would write its log to an unrelated file
// descriptor.
void release_environment();

// Returns the size of the log in bytes.
std::int64_t log_size() noexcept;
// Returns true if NCCL has opened copy engines since the log had `since` bytes. A communicator
// opens them for the first collective that it runs on them.
bool opened_copy_engines(std::int64_t since);
// Notes that an all_gather has been launched, and whether copy engines run it.
void note_gather(bool by_copy_engines) noexcept;

// Makes transports() ignore the log and the gathers so far. Call it only while no communicator is
// open.
void forget_log() noexcept;

// Returns the transports that the captured log shows, as the text that atoll_backend::transports
// specifies.
std::string transports();

// Returns the transports that the given NCCL log shows, in the format of atoll_backend::transports.
// Parses logs of NCCL 2.27 or later; the patterns come from NCCL's net.cc and nvls.cc.
std::string transports_of(std::string_view log);

}  // namespace atoll_nccl
