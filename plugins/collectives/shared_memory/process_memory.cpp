#include "collectives/shared_memory/process_memory.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "collectives/auth.hpp"
#include "collectives/shared_memory/shm_transport.hpp"
#include "sdk/guard.hpp"

namespace atoll_collectives {

using namespace atoll_sdk;

namespace {

using Call = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                         unsigned long);

// Copies `bytes` bytes between `local` in this process and `remote` in the process `pid`. Returns 0
// or an errno value.
int transfer(Call call, std::int64_t pid, void* local, std::uint64_t remote, std::size_t bytes) {
  auto* here = static_cast<std::byte*>(local);
  while (bytes > 0) {
    const iovec mine{here, bytes};
    const iovec theirs{reinterpret_cast<void*>(remote), bytes};  // NOLINT(performance-no-int-to-ptr)
    const ssize_t n = call(static_cast<pid_t>(pid), &mine, 1, &theirs, 1, 0);
    if (n < 0) return errno;
    if (n == 0) return EFAULT;
    const auto copied = static_cast<std::size_t>(n);  // may be less than `bytes`
    here += copied;
    remote += copied;
    bytes -= copied;
  }
  return 0;
}

std::int32_t access_of(const atoll_group& group) {
  const bool has_field =
      group.size >= offsetof(atoll_group, process_memory) + sizeof(group.process_memory);
  return has_field ? group.process_memory : ATOLL_PROCESS_MEMORY_ALLOWED;
}

const ProcessIdentity& process_of(const ShmTransport& transport, int local) {
  return transport.process(static_cast<std::size_t>(local));
}

[[noreturn]] void refuse(const Team& team, const ShmTransport& transport, int local, int error,
                         std::string_view what, std::size_t bytes) {
  const std::string rank = team.describe(transport.ranks()[static_cast<std::size_t>(local)]);
  if (error == ESRCH) {
    throw Error(ATOLL_PEER_LOST, fmt::format("lost {}: its process has ended", rank));
  }
  throw Error(ATOLL_PEER_LOST,
              fmt::format("cannot {} {} bytes in the memory of {}: {}; that rank has failed, or its "
                          "src or dst is memory that the kernel cannot copy, for which "
                          "ATOLL_PROCESS_MEMORY=off is needed",
                          what, bytes, rank, std::strerror(error)));
}

}  // namespace

ProcessIdentity identity_of(const ProcessToken& token) {
  struct stat space {};
  if (::stat("/proc/self/ns/pid", &space) != 0) space.st_ino = 0;
  return {::getpid(), space.st_ino, reinterpret_cast<std::uintptr_t>(token.data()), token};
}

ProcessToken random_token() {
  const Digest random = random_digest();
  ProcessToken token{};
  static_assert(sizeof(random) >= sizeof(token));
  std::memcpy(token.data(), random.data(), sizeof(token));
  return token;
}

void permit_access(const atoll_group& group) noexcept {
#ifdef PR_SET_PTRACER
  if (access_of(group) == ATOLL_PROCESS_MEMORY_PERMIT) {
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // fails without the Yama module
  }
#endif
}

ProcessMemory::ProcessMemory(const atoll_group& group, const Team& team,
                             const ShmTransport* transport)
    : team_(team), transport_(transport) {
  if (transport_ == nullptr || access_of(group) == ATOLL_PROCESS_MEMORY_OFF) return;
  works_ = true;
  for (std::size_t i = 0; works_ && i < transport_->ranks().size(); ++i) works_ = reaches(i);
}

// Reads the token of a rank, and writes the same bytes back, because the kernel may allow reading
// only.
bool ProcessMemory::reaches(std::size_t local) const {
  const ProcessIdentity& own = transport_->process(transport_->self());
  const ProcessIdentity& other = transport_->process(local);
  if (other.pid_namespace != own.pid_namespace || own.pid_namespace == 0) return false;
  ProcessToken token{};
  const int cannot_read =
      transfer(&::process_vm_readv, other.pid, token.data(), other.token_address, sizeof(token));
  if (cannot_read != 0 || token != other.token) return false;
  return transfer(&::process_vm_writev, other.pid, token.data(), other.token_address,
                  sizeof(token)) == 0;
}

void ProcessMemory::read(int local, std::uint64_t address, std::span<std::byte> into) const {
  const int error = transfer(&::process_vm_readv, process_of(*transport_, local).pid, into.data(),
                             address, into.size());
  if (error != 0) refuse(team_, *transport_, local, error, "read", into.size());
}

void ProcessMemory::write(int local, std::uint64_t address, std::span<const std::byte> from) const {
  const int error = transfer(&::process_vm_writev, process_of(*transport_, local).pid,
                             const_cast<std::byte*>(from.data()), address, from.size());
  if (error != 0) refuse(team_, *transport_, local, error, "write", from.size());
}

}  // namespace atoll_collectives
