// ProcessMemory copies from the memory of the other processes of its host, with the system call
// process_vm_readv() (Linux: "cross-memory attach"). Data that is in no registered window is then
// copied once, from the memory of one process to that of the other, and not twice through a staging
// buffer. Ranks only read: a rank that fails may free its buffers while others still work, and a
// late write would change whatever the memory then holds.
//
// The kernel allows the call between processes of one user. It refuses the call in containers whose
// seccomp profile forbids it, and if the sysctl kernel.yama.ptrace_scope is 1 or more; if it is 1,
// processes that have called permit_access() may still be read. Therefore every rank tries the call
// when the communicator opens, and the ranks of a host use it only if it works for all of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "atoll/plugin.h"
#include "collectives/exchange.hpp"

namespace atoll_collectives {

class ShmTransport;

// A random number that identifies a process. It is in the private memory of the process and, in a
// ProcessIdentity, in its inbox.
using ProcessToken = std::array<std::uint64_t, 2>;

// Tells the other ranks of the host how to access the memory of a process. A process id is valid in
// one pid namespace only, and the system may reuse it for another process. So a rank checks the
// token in the memory of the process before it reads anything else.
struct ProcessIdentity {
  std::int64_t pid;
  std::uint64_t pid_namespace;
  std::uint64_t token_address;  // address of the token in the process
  ProcessToken token;
};

// `token` must be in memory that stays valid as long as other ranks may use the identity.
ProcessIdentity identity_of(const ProcessToken& token);
ProcessToken random_token();

// Lets every process of this user access the memory of this process although
// kernel.yama.ptrace_scope is 1. Does nothing unless atoll_group::process_memory requests it.
void permit_access(const atoll_group& group) noexcept;

class ProcessMemory {
 public:
  // Tries to access the memory of each other rank of this host. A null `transport` means that this
  // rank is alone on its host.
  ProcessMemory(const atoll_group& group, const Team& team, const ShmTransport* transport);

  // Returns true if this rank can read the memory of every other rank of its host.
  bool works() const noexcept { return works_; }
  // Returns true if the kernel can copy [data, data + bytes), which is memory of this process. It
  // cannot copy memory that a driver has mapped. Reads the first and the last byte; `bytes` must
  // not be 0.
  bool can_copy(const void* data, std::size_t bytes) const noexcept;
  // Copies memory of a local rank's process that begins there at `address`. Throws
  // Error(ATOLL_PEER_LOST) if the process has ended, or if the memory does not exist.
  void read(int local, std::uint64_t address, std::span<std::byte> into) const;

 private:
  bool reaches(std::size_t local) const;

  const Team& team_;
  const ShmTransport* transport_;
  bool works_ = false;
};

}  // namespace atoll_collectives
