// Tests how the ranks of a host come to share memory: without a name in any file system, without
// help from /dev/shm, undisturbed by other users, and over TCP where the kernel refuses it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <string>

#include "unit/plugin/host.hpp"

using namespace plugin_ranks;
using namespace std::chrono_literals;

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

// Gives the calling thread its own file systems and System V and POSIX IPC, with a /dev/shm of
// 64 KiB. Returns false if the kernel forbids it.
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

// Returns the address at which a rank receives the memory of other ranks, in the abstract
// namespace. Other processes find it in /proc/net/unix.
std::string windows_address(FakeCore& core, int rank) {
  const auto published = core.get("group/inbox/" + std::to_string(rank));
  return published.substr(0, published.find(':')) + ".windows";
}

// Sends a message with `count` descriptors to an abstract address. Returns false if the queue is
// full.
bool send_descriptors(int socket, const std::string& address, std::size_t count) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path + 1, address.data(), address.size());
  char noise[64] = "noise";
  iovec data{noise, sizeof(noise)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
  msghdr header{};
  header.msg_name = &to;
  header.msg_namelen = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.size());
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(count * sizeof(int));
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &socket, sizeof(int));
  return ::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

// Sends descriptors to `address` for half a second. Returns the number of messages sent.
int flood(const std::string& address) {
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto end = std::chrono::steady_clock::now() + 500ms;
  int sent = 0;
  while (std::chrono::steady_clock::now() < end) {
    if (send_descriptors(socket, address, 2 + static_cast<std::size_t>(sent % 3))) {
      ++sent;
    } else {
      ::usleep(50);
    }
  }
  ::close(socket);
  return sent;
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
    // Closing waits for no rank of this host, but an early close would look like a lost peer.
    auto meet = first.operation(ATOLL_BARRIER, 0, nullptr, nullptr, 0);
    CHECK(first.submit(meet).status == ATOLL_OK);
  });
  if (refused > 0) MESSAGE("the kernel forbids mount namespaces: /dev/shm was the common one");
  CHECK(mapped > 0);
  CHECK(reports == 0);
}

TEST_CASE("a rank that is killed while it opens leaves no name behind") {
  const int before = entries_of("/dev/shm", "atoll-");
  int ready[2];
  REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
  backend();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    static int told = ready[1];
    FakeCore core;
    core.services().put = [](void*, const char*, const void*, std::size_t) -> atoll_status {
      return ::write(told, "x", 1) == 1 ? ATOLL_OK : ATOLL_IO;
    };
    const Group group({0, 0}, 0, {});
    atoll_comm* comm = nullptr;
    backend().open(&core.services(), &group.get(), &comm);
    ::_exit(0);
  }
  char byte = 0;
  CHECK(::read(ready[0], &byte, 1) == 1);
  // The rank waits for its peer, so its memory exists now.
  CHECK(entries_of("/dev/shm", "atoll-") == before);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  CHECK(entries_of("/dev/shm", "atoll-") == before);
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
    expect_working(rank);  // both ranks have opened then
    mapped += mapped_inboxes();
  });
  CHECK(mapped == 0);
}

TEST_CASE("descriptors that others send are not kept") {
  for (const bool is_stranger : {false, true}) {
    if (is_stranger && ::geteuid() != 0) {
      MESSAGE("skipped: only root can become another user");
      return;
    }
    CAPTURE(is_stranger);
    FakeCore core;
    auto ranks = open_ranks(backend(), core, {0, 0}, {.timeout_ns = second});
    void* memory = nullptr;
    REQUIRE(backend().mem_alloc(1 << 16, ATOLL_MEMORY_CPU, -1, &memory) == ATOLL_OK);
    const std::string address = windows_address(core, 0);
    const int before = open_descriptors();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      if (is_stranger && ::setresuid(other_user, other_user, other_user) != 0) ::_exit(2);
      ::_exit(flood(address) > 0 ? 0 : 1);
    }
    // Rank 1 never registers, so rank 0 reads messages until the time limit.
    const auto begin = std::chrono::steady_clock::now();
    const auto result = ranks[0].register_memory(memory, 1 << 16);
    CHECK(std::chrono::steady_clock::now() - begin < 5s);
    CHECK(open_descriptors() <= before + 1);
    CHECK_MESSAGE(result.status == ATOLL_TIMEOUT, result.text);
    CHECK_MESSAGE(result.text.find("rank 1 (world rank 3)") != std::string::npos, result.text);
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(backend().mem_free(memory) == ATOLL_OK);
  }
}
