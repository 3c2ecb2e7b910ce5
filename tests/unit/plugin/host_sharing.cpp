// Tests how the ranks of a host come to share memory: without a name in any file system, without
// help from /dev/shm, and over TCP where users differ or the kernel refuses it. The fuzzer
// shm_messages sends what other processes of the host may send.
#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>

#include "unit/plugin/host.hpp"

using namespace plugin_ranks;

namespace {

constexpr uid_t other_user = 65534;

// Opens a communicator on one rank.
Rank open_rank(FakeCore& core, const Layout& layout, int rank, const std::string& id) {
  const Group group(layout, rank, {.id = id});
  atoll_comm* comm = nullptr;
  const auto status = backend().open(&core.services(), &group.get(), &comm);
  REQUIRE_MESSAGE(status == ATOLL_OK, backend().last_error(nullptr));
  return {backend(), comm, layout, rank};
}

// Sums one number of each rank, and passes a larger message through every pair of ranks.
void expect_working(Rank& rank) {
  const auto n = static_cast<float>(rank.size());
  std::vector<float> in(50'000, static_cast<float>(rank.rank() + 1));
  std::vector<float> out(in.size());
  auto o = rank.operation(ATOLL_ALL_REDUCE, ATOLL_F32, in.data(), out.data(), in.size());
  o.op = ATOLL_SUM;
  const auto result = rank.submit(o);
  CHECK_MESSAGE(result.status == ATOLL_OK, result.text);
  CHECK(out.front() == n * (n + 1) / 2);
  CHECK(out.back() == n * (n + 1) / 2);
}

// Gives the calling thread its own mount and IPC namespaces, with a /dev/shm of 64 KiB. Returns
// false if the kernel forbids it.
bool isolate_shared_memory() {
  return ::unshare(CLONE_NEWNS | CLONE_NEWIPC) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") == 0;
}

// Makes memfd_create() fail with EPERM on the calling thread, as a security policy does.
void forbid_memory_files() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(rules)), rules};
  REQUIRE(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  REQUIRE(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

// Counts the lines that ranks log about memory that they cannot share.
std::atomic<int> reports = 0;
void count_reports(void*, std::int32_t level, const char* message) {
  if (level == ATOLL_LOG_WARN && std::strstr(message, "cannot share memory") != nullptr) ++reports;
}

}  // namespace

TEST_CASE("eight ranks share memory although each has its own small /dev/shm") {
  constexpr int size = 8;
  const Layout layout(size, 0);
  FakeCore core;
  core.services().log = count_reports;
  std::atomic<int> refused = 0;
  std::atomic<int> mapped = 0;
  in_threads(size, [&](int r) {
    if (!isolate_shared_memory()) ++refused;
    auto first = open_rank(core, layout, r, "first");
    auto second_comm = open_rank(core, layout, r, "second");
    mapped = mapped_inboxes();
    expect_working(first);
    expect_working(second_comm);
    // Ranks close without waiting, so a barrier keeps an early close from looking like a lost peer.
    auto meet = first.operation(ATOLL_BARRIER, 0, nullptr, nullptr, 0);
    CHECK(first.submit(meet).status == ATOLL_OK);
  });
  if (refused > 0) MESSAGE("the kernel forbids mount namespaces: /dev/shm was the common one");
  CHECK(mapped > 0);
  CHECK(reports == 0);
}

TEST_CASE("ranks use TCP if the kernel does not let one of them share memory, and say it once") {
  const std::vector<Layout> layouts = {{0, 0}, {0, 0, 0}, {0, 0, 1, 1}, {0, 1, 1}, {0, 0, 1, 2, 2}};
  const int before = reports;
  for (const Layout& layout : layouts) {
    for (const bool last : {false, true}) {
      CAPTURE(text(layout));
      const auto size = static_cast<int>(layout.size());
      FakeCore core;
      core.services().log = count_reports;
      in_threads(size, [&](int r) {
        if (r == (last ? size - 1 : 0)) forbid_memory_files();
        auto rank = open_rank(core, layout, r, "group");
        expect_working(rank);
      });
    }
  }
  CHECK(reports - before == 1);
}

TEST_CASE("ranks of different users use TCP") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can become another user");
    return;
  }
  FakeCore core;
  std::atomic<int> mapped = 0;
  in_threads(2, [&](int r) {
    // The system call changes the user of the calling thread only.
    if (r == 1) REQUIRE(::syscall(SYS_setresuid, other_user, other_user, other_user) == 0);
    auto rank = open_rank(core, {0, 0}, r, "group");
    expect_working(rank);  // afterwards both ranks have opened
    mapped += mapped_inboxes();
  });
  CHECK(mapped == 0);
}
