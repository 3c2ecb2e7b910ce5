#include "collectives/shared_memory/process_memory.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "collectives/auth.hpp"
#include "collectives/shared_memory/shm_transport.hpp"
#include "sdk/guard.hpp"

namespace atoll_collectives {

using namespace atoll_sdk;

namespace {

// Copies memory of the process `pid` that begins there at `address`. Returns 0 or an errno value.
int copy_from(std::int64_t pid, std::uint64_t address, std::span<std::byte> into) noexcept {
  while (!into.empty()) {
    const iovec mine{into.data(), into.size()};
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const iovec theirs{reinterpret_cast<void*>(address), into.size()};
    const ssize_t n = ::process_vm_readv(static_cast<pid_t>(pid), &mine, 1, &theirs, 1, 0);
    if (n < 0) return errno;
    if (n == 0) return EFAULT;
    const auto copied = static_cast<std::size_t>(n);  // may be less than asked for
    address += copied;
    into = into.subspan(copied);
  }
  return 0;
}

std::int32_t access_of(const atoll_group& group) {
  const bool has_field =
      group.size >= offsetof(atoll_group, process_memory) + sizeof(group.process_memory);
  return has_field ? group.process_memory : ATOLL_PROCESS_MEMORY_ALLOWED;
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

bool ProcessMemory::reaches(std::size_t local) const {
  const ProcessIdentity& own = transport_->process(transport_->self());
  const ProcessIdentity& other = transport_->process(local);
  if (other.pid_namespace != own.pid_namespace || own.pid_namespace == 0) return false;
  ProcessToken token{};
  return copy_from(other.pid, other.token_address, std::as_writable_bytes(std::span(token))) == 0 &&
         token == other.token;
}

void ProcessMemory::read(int local, std::uint64_t address, std::span<std::byte> into) const {
  const auto i = static_cast<std::size_t>(local);
  const int error = copy_from(transport_->process(i).pid, address, into);
  if (error == 0) return;
  const std::string rank = team_.describe(transport_->ranks()[i]);
  if (error == ESRCH) {
    throw Error(ATOLL_PEER_LOST, fmt::format("lost {}: its process has ended", rank));
  }
  throw Error(
      ATOLL_PEER_LOST,
      fmt::format("lost {}: cannot read {} bytes of its memory, which it may have freed after "
                  "a failure: {}",
                  rank, into.size(), std::strerror(error)));
}

bool ProcessMemory::can_copy(const void* data, std::size_t bytes) const noexcept {
  const std::int64_t pid = transport_->process(transport_->self()).pid;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  std::byte sink{};
  return copy_from(pid, begin, {&sink, 1}) == 0 &&
         copy_from(pid, begin + bytes - 1, {&sink, 1}) == 0;
}

}  // namespace atoll_collectives
