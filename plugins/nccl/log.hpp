// What NCCL says of its connections. There is no call that tells, so its log is read:
// NCCL_DEBUG=INFO, of initialization and network, into memory of this process. Where the user asks
// for a log it is theirs.
#pragma once

#include <string>
#include <string_view>

namespace atoll_sdk::nccl {

// Before the first call of NCCL in this process; nothing happens after that.
void keep_log();
// Once NCCL has read its environment: what keep_log() put there goes, so that no child process and
// no other NCCL writes into a file of that number.
void release_environment();

// What plugin.h's `transports` gives.
std::string transports();

// The same of a log: lines of NCCL 2.27 and later, in the words of its net.cc and nvls.cc.
std::string transports_of(std::string_view log);

}  // namespace atoll_sdk::nccl
