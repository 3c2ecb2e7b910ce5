// Tests how ranks of a host read each other's process memory, without a backend: which processes
// they accept as ranks, and their report about a process that has ended. If the kernel does not
// copy, only the refusal is tested.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "collectives/shared_memory/caller_memory.hpp"
#include "collectives/shared_memory/process_memory.hpp"
#include "collectives/shared_memory/shm_transport.hpp"
#include "sdk/guard.hpp"

namespace {

using atoll_collectives::Doorbell;
using atoll_collectives::ProcessIdentity;
using atoll_collectives::ProcessMemory;
using atoll_collectives::ShmTransport;

// Two ranks of one host in this process. Tests look at rank 1 from rank 0.
struct Pair {
  Pair() {
    zero.await_peer(1, one.published());
    one.await_peer(0, zero.published());
    for (bool opened = false; !opened;) {
      const bool first = zero.advance();
      opened = one.advance() && first;
    }
    team.world_ranks = {1, 3};
    group.size = sizeof(group);
  }
  // The identity that rank 1 publishes. A test may change it.
  ProcessIdentity& told() { return const_cast<ProcessIdentity&>(zero.process(1)); }
  ProcessMemory memory() { return {group, team, &zero}; }

  ShmTransport zero{{0, 1}, 0, Doorbell::futex_only};
  ShmTransport one{{0, 1}, 1, Doorbell::futex_only};
  atoll_collectives::Team team;
  atoll_group group{};
};

// Returns true if the kernel copies process memory at all; containers may forbid it.
bool kernel_copies() {
  Pair ranks;
  if (ranks.memory().works()) return true;
  MESSAGE("skipped: the kernel refuses process_vm_readv()");
  return false;
}

// Returns the id of a process that has ended.
pid_t ended_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  REQUIRE(child > 0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  return child;
}

std::string failure_of(const ProcessMemory& memory, const void* address) {
  std::array<std::byte, 64> into{};
  try {
    memory.read(1, reinterpret_cast<std::uintptr_t>(address), into);
  } catch (const atoll_sdk::Error& error) {
    CHECK(error.status() == ATOLL_PEER_LOST);
    return error.what();
  }
  return "no failure";
}

}  // namespace

TEST_CASE("a rank reads the memory of another rank's process") {
  if (!kernel_copies()) return;
  Pair ranks;
  const ProcessMemory memory = ranks.memory();
  REQUIRE(memory.works());
  const std::string text(100'000, 'x');
  std::string copy(text.size(), ' ');
  memory.read(1, reinterpret_cast<std::uintptr_t>(text.data()),
              std::as_writable_bytes(std::span(copy)));
  CHECK(copy == text);
}

TEST_CASE("a rank trusts a process only if its memory holds the token") {
  if (!kernel_copies()) return;
  Pair ranks;
  const ProcessIdentity told = ranks.told();
  ranks.told().token[1] ^= 1;
  CHECK_FALSE(ranks.memory().works());
  ranks.told() = told;
  ranks.told().pid_namespace += 1;
  CHECK_FALSE(ranks.memory().works());
  ranks.told() = told;
  ranks.told().pid = ended_process();
  CHECK_FALSE(ranks.memory().works());
  ranks.told() = told;
  CHECK(ranks.memory().works());
}

TEST_CASE("process memory is off on request, and for a backend's caller that does not know it") {
  if (!kernel_copies()) return;
  Pair ranks;
  ranks.group.process_memory = ATOLL_PROCESS_MEMORY_OFF;
  CHECK_FALSE(ranks.memory().works());
  // A caller with a smaller atoll_group has no such field, so its bytes mean nothing.
  ranks.group.size = offsetof(atoll_group, process_memory);
  CHECK(ranks.memory().works());
  ranks.group.size = sizeof(ranks.group);
  ranks.group.process_memory = ATOLL_PROCESS_MEMORY_PERMIT;
  atoll_collectives::permit_access(ranks.group);
  CHECK(ranks.memory().works());
  CHECK_FALSE(ProcessMemory(ranks.group, ranks.team, nullptr).works());
}

TEST_CASE("a process that has ended, and memory that is gone, are lost peers") {
  if (!kernel_copies()) return;
  Pair ranks;
  const ProcessMemory memory = ranks.memory();
  CHECK(failure_of(memory, nullptr) ==
        "lost rank 1 (world rank 3): cannot read 64 bytes of its memory, which it may have freed "
        "after a failure: Bad address");
  ranks.told().pid = ended_process();
  CHECK(failure_of(memory, &ranks) == "lost rank 1 (world rank 3): its process has ended");
}

TEST_CASE("memory that the kernel cannot copy is recognized") {
  if (!kernel_copies()) return;
  Pair ranks;
  const ProcessMemory memory = ranks.memory();
  const std::string text(10'000, 'x');
  CHECK(memory.can_copy(text.data(), text.size()));
  void* const page =
      ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  CHECK(memory.can_copy(page, 8192));
  REQUIRE(::munmap(static_cast<std::byte*>(page) + 4096, 4096) == 0);
  CHECK(memory.can_copy(page, 4096));
  CHECK_FALSE(memory.can_copy(page, 4097));
  ::munmap(page, 4096);
}

TEST_CASE("only memory of shared mappings has a file that other processes can map") {
  using atoll_collectives::shared_memory::find_file;
  std::string private_memory(100'000, 'x');
  CHECK_FALSE(find_file(private_memory.data(), private_memory.size()).has_value());
  void* const own = atoll_collectives::shared_memory::allocate(8192);
  const auto range = find_file(static_cast<std::byte*>(own) + 100, 1000);
  REQUIRE(range.has_value());
  CHECK(range->offset == 100);
  CHECK_FALSE(find_file(static_cast<std::byte*>(own) + 8000, 8192).has_value());
  atoll_collectives::shared_memory::free(own);
}
